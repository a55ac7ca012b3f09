"""Calls whose checks would raise in the middle of a test are refused in a graph as outside, with
sizes known or dynamic: a wrong number of axes to unpack, a division by zero, a number among few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from contracts import ContractError, aligned, contract, unit_stride


@contract
def vector(x: Float[Tensor, "n"]) -> Tensor:
    return 2 * x


@contract
def matrix(x: Float[Tensor, "n d"], bias: Float[Tensor, "d"] | None = None) -> Tensor:
    return 2 * x


@contract(aligned(4))
def many(
    x: Float[Tensor, "n d"], y: Float[Tensor, "m"], z: Float[Tensor, "n d"], w: Float[Tensor, "m k"]
) -> Tensor:
    return 2 * x


@contract("n % m == 0")
def remainder(x: Float[Tensor, "n d"], m: int) -> Tensor:
    return 2 * x


@contract("n // (m - 1) > 1")
def floor(x: Float[Tensor, "n d"], m: int) -> Tensor:
    return 2 * x


@contract("n / m > 1")
def exact(x: Float[Tensor, "n d"], m: int) -> Tensor:
    return 2 * x


@contract("cdiv(n, m) > 1", "is_power_of_2(m)", "min(n, m) > 0")
def functions(x: Float[Tensor, "n d"], m: int) -> Tensor:
    return 2 * x


@contract
def halves(x: Float[Tensor, "n d"], y: Float[Tensor, "n/m"], m: int) -> Tensor:
    return 2 * x


@contract("n / s > 1")
def float_exact(x: Float[Tensor, "n d"], s: float) -> Tensor:
    return 2 * x


@contract("m ** -1 > 0", "n ** (m - 3) >= 1")
def powers(x: Float[Tensor, "n d"], m: int) -> Tensor:
    return 2 * x


@contract("size(x, 2) > 1")
def third(x: Float[Tensor, "*b d"]) -> Tensor:
    return 2 * x


@contract("stride(x, -3) > 1", unit_stride("x", dim=1))
def strides(x: Float[Tensor, "*b d"]) -> Tensor:
    return 2 * x


@contract
def named(x: Float[Tensor, "n d"], m: Literal["a", "b"]) -> Tensor:
    return 2 * x


@contract
def mixed(x: Float[Tensor, "n d"], m: Literal[2, True, "auto"] | None = None) -> Tensor:
    return 2 * x


@contract
def chosen(x: Float[Tensor, "n d"], m: Literal[2, 4, 8]) -> Tensor:
    return m * x


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


CALLS: list[tuple[Callable[..., Tensor], tuple[Any, ...], list[str]]] = [
    (vector, (ones(2),), []),
    (vector, (ones(2, 3),), ["x-rank"]),
    (vector, (ones(),), ["x-rank"]),
    (matrix, (ones(2, 3), ones(3)), []),
    (matrix, (ones(2),), ["x-rank"]),
    (matrix, (ones(2, 3, 4),), ["x-rank"]),
    (matrix, (ones(2, 3), ones(3, 3)), ["bias-rank"]),
    (many, (ones(2, 3), ones(3), ones(2, 3), ones(3, 2)), []),
    (many, (ones(2, 3), ones(3, 1), ones(2, 3), ones(3, 2)), ["y-rank"]),
    (many, (ones(2, 3), ones(3), ones(2, 3), ones(3)), ["w-rank"]),
    (remainder, (ones(6, 1), 3), []),
    (remainder, (ones(6, 1), 4), ["n%m==0"]),
    (remainder, (ones(6, 1), 0), ["n%m==0"]),
    (floor, (ones(6, 1), 4), []),
    (floor, (ones(6, 1), 1), ["n//(m-1)>1"]),
    (exact, (ones(6, 1), 3), []),
    (exact, (ones(6, 1), 4), ["n/m>1"]),
    (exact, (ones(6, 1), 0), ["n/m>1"]),
    (functions, (ones(6, 1), 4), []),
    (functions, (ones(6, 1), 3), ["is_power_of_2(m)"]),
    (functions, (ones(6, 1), 0), ["cdiv(n,m)>1", "is_power_of_2(m)", "min(n,m)>0"]),
    (halves, (ones(6, 1), ones(3), 2), []),
    (halves, (ones(6, 1), ones(3), 0), ["y-axis0"]),
    (float_exact, (ones(6, 1), 2.0), []),
    (float_exact, (ones(6, 1), 0.0), ["n/s>1"]),
    (powers, (ones(6, 1), 3), []),
    (powers, (ones(6, 1), 0), ["m**-1>0", "n**(m-3)>=1"]),
    (powers, (ones(0, 1), 2), ["n**(m-3)>=1"]),
    (third, (ones(2, 3, 4),), []),
    (third, (ones(2, 3),), ["size(x,2)>1"]),
    (strides, (ones(2, 3, 4).transpose(1, 2),), []),
    (strides, (ones(4),), ["stride(x,-3)>1", "unit_stride(dim=1,x)"]),
    (named, (ones(6, 1), "a"), []),
    (named, (ones(6, 1), "c"), ["m-type"]),
    (named, (ones(6, 1), 3), ["m-type"]),
    (mixed, (ones(6, 1), 2), []),
    (mixed, (ones(6, 1), 1), []),
    (mixed, (ones(6, 1), "auto"), []),
    (mixed, (ones(6, 1),), []),
    (mixed, (ones(6, 1), 3), ["m-type"]),
    (mixed, (ones(6, 1), "b"), ["m-type"]),
    (chosen, (ones(6, 1), 4), []),
    (chosen, (ones(6, 1), 3), ["m-type"]),
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def broken(function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> list[str]:
    try:
        function(*arguments)
    except ContractError as error:
        return [violation.rule for violation in error.violations]
    return []


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "arguments", "rules"), CALLS, ids=lambda x: getattr(x, "__name__", None)
)
def test_in_a_graph_as_outside(
    function: Callable[..., Tensor], arguments: tuple[Any, ...], rules: list[str], dynamic: bool
) -> None:
    assert broken(function, arguments) == rules
    graph = torch.compile(function, backend="eager", fullgraph=True, dynamic=dynamic)
    assert broken(graph, arguments) == rules


def test_a_number_that_became_dynamic_is_still_one_of_few() -> None:
    graph = torch.compile(chosen, backend="eager", fullgraph=True)
    for m in (2, 4, 8, 4):
        assert graph(ones(2, 2), m)[0, 0] == m
    for m in (3, 5):
        assert broken(graph, (ones(2, 2), m)) == ["m-type"]


@pytest.mark.parametrize("dynamic", [None, True])
def test_bytes_of_a_dynamic_size(dynamic: bool | None) -> None:
    @contract("nbytes(x) <= 64")
    def small(x: Float[Tensor, "n"]) -> Tensor:
        return x + 1

    compiled = torch.compile(small, backend="eager", fullgraph=True, dynamic=dynamic)
    for n in (8, 9, 16):
        assert compiled(torch.ones(n)).tolist() == [2] * n
    with pytest.raises(ContractError, match="nbytes"):
        compiled(torch.ones(17))
