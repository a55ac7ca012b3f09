"""A contract that cannot be honoured is refused where it is declared, with the reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

import contracts
from contracts import ContractDefinitionError, ContractError, contract


def declare(rules: tuple[Any, ...] = (), returns: Any = None, **annotations: Any) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(annotations)}): ...", scope)
    scope["f"].__annotations__ = annotations | ({"return": returns} if returns else {})
    return contract(*rules)(scope["f"])


CASES: list[tuple[str, Callable[[], Any], str]] = [
    (
        "an axis only inside expressions",
        lambda: declare(cos=Float32[Tensor, "n head_dim/2"], q=Float32[Tensor, "n"]),
        "argument 'cos': 'head_dim' in the axis head_dim/2 is bound by no argument's own axis",
    ),
    (
        "an axis only in the result's expressions",
        lambda: declare(x=Float32[Tensor, "n"], returns=Float32[Tensor, "n+m"]),
        "the result: 'm' in the axis n+m is bound by no argument's own axis",
    ),
    (
        "an axis and a tensor of one name",
        lambda: declare(x=Float32[Tensor, "x"]),
        "'x' is an axis and an argument that is not an int: two meanings of one name; rename one",
    ),
    (
        "an axis and a float of one name",
        lambda: declare(x=Float32[Tensor, "scale"], scale=float),
        "'scale' is an axis and an argument that is not an int",
    ),
    (
        "a variadic axis and an int of one name",
        lambda: declare(x=Float32[Tensor, "*n"], n=int),
        "'n' is an axis and an argument that is not an int",
    ),
    (
        "one axis and several of one name",
        lambda: declare(x=Float32[Tensor, "n"], y=Float32[Tensor, "*n"]),
        "'n' is one axis in one place and *n in another",
    ),
    (
        "a keyword as a name",
        lambda: declare(x=Float32[Tensor, "n lambda"]),
        "argument 'x': the axis 'lambda' has a name that no rule can write",
    ),
    (
        "a position in a pytree",
        lambda: declare(x=Float32[Tensor, "?n"]),
        "the axis '?n' depends on a position in a pytree",
    ),
    (
        "a condition as an axis",
        lambda: declare(x=Float32[Tensor, "n n==3"]),
        "argument 'x'",
    ),
    (
        "a name in braces that means nothing",
        lambda: declare(x=Float32[Tensor, "{nowhere}"]),
        "{nowhere} in the axis '{nowhere}' is neither an argument nor an integer",
    ),
    (
        "None inside the tensor's type",
        lambda: declare(x=Float32[Tensor | None, "n"]),
        "write the None outside: Float32[Tensor, ...] | None",
    ),
    (
        "another library's array",
        lambda: declare(x=Float32[pytest.importorskip("numpy").ndarray, "n"]),
        "ndarray is not a torch tensor type",
    ),
    (
        "a set of tensors",
        lambda: declare(x=set[Tensor]),
        "tensors inside set cannot be checked item by item; use a list, tuple, Sequence, dict",
    ),
    (
        "a variadic broadcast inside a union",
        lambda: declare(x=Float32[Tensor, "*#b"] | Float32[Tensor, "n"] | Shaped[Tensor, "n m"]),
        "argument 'x': Float32[Tensor, \"*#b\"] broadcasts several axes inside a union",
    ),
    (
        "an unknown name in a rule",
        lambda: declare(("head_dmi % 2 == 0",), x=Float32[Tensor, "head_dim"]),
        "'head_dmi' is neither an axis nor an argument, in the rule 'head_dmi % 2 == 0'",
    ),
    (
        "a tensor as a number",
        lambda: declare(("x > 3",), x=Float32[Tensor, "n"]),
        "the tensor 'x' may only stand inside a tensor function, in the rule 'x > 3'",
    ),
    (
        "a rule that says nothing",
        lambda: declare(("n",), x=Float32[Tensor, "n"]),
        "the rule 'n' is neither a condition nor a bool argument",
    ),
    (
        "a rule that is always the same",
        lambda: declare(("1 < 2",), x=Float32[Tensor, "n"]),
        "no call can decide the rule '1 < 2'",
    ),
    (
        "a method call in a rule",
        lambda: declare(("x.size(0) == 3",), x=Float32[Tensor, "n"]),
        "outside the rule language in the expression 'x.size(0) == 3'",
    ),
    (
        "an argument that may be None",
        lambda: declare(("k > 3 or k is None",), x=Float32[Tensor, "n"], k=int | None),
        "'k' may be None where it is used",
    ),
    (
        "two rules of one id",
        lambda: declare(("n > 1", "n >  1"), x=Float32[Tensor, "n"]),
        "two rules have the id 'n>1'",
    ),
    (
        "a tensor rule over a number",
        lambda: declare((contracts.contiguous("k"),), x=Float32[Tensor, "n"], k=int),
        "contiguous: 'k' is not a tensor argument",
    ),
]


@pytest.mark.parametrize(
    ("make", "reason"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_reason_is_said(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ContractDefinitionError) as caught:
        make()
    assert reason in str(caught.value)


def test_it_is_a_type_error_and_no_contract_error() -> None:
    assert issubclass(ContractDefinitionError, TypeError)
    assert not issubclass(ContractDefinitionError, ContractError)


def test_an_axis_that_is_an_int_argument_has_one_meaning() -> None:
    f = declare(x=Float32[Tensor, "n n+1"], n=int)
    assert f.contract.accepts(torch.zeros(3, 4), 3)


def test_a_dtype_that_torch_lacks() -> None:
    class Nothing(Float):
        dtypes = ["float7"]  # noqa: RUF012

    with pytest.raises(ContractDefinitionError, match="torch has no such dtype"):
        declare(x=Nothing[Tensor, "n"])
