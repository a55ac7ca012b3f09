"""Neither a check nor an explanation reads what a tensor contains, or waits for a device."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Complex64, Float32, Int32, Shaped
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from contracts import (
    ContractError,
    aligned,
    contiguous,
    contract,
    custom,
    device,
    dtype,
    no_grad,
    no_overlap,
    requires,
    same_device,
    same_dtype,
    unit_stride,
    values,
    when,
)

READERS = [
    *["item", "tolist", "numpy", "cpu", "cuda", "any", "all", "__bool__", "__int__", "__float__"],
    *["__index__", "__repr__", "__str__", "__format__", "__iter__", "__contains__", "__hash__"],
    *["__eq__", "__ne__", "__lt__", "__array__", "equal", "max", "min", "sum", "to", "clone"],
    *["contiguous", "resolve_neg", "resolve_conj", "__getitem__", "__len__", "is_nonzero"],
]


@contract(
    "n > 1",
    "numel(x) > 1 and size(x, 0) == 2 and stride(x, -1) == 1 and nbytes(x) > 4",
    "dtype(x) == dtype(x)",
    when("flag", "n % 2 == 0"),
    custom(lambda x, n: x.shape[1] == n, "n"),
    requires("y", when="z"),
    same_device(),
    same_dtype("x", "w"),
    device("cpu"),
    dtype((torch.float32, torch.int32, torch.complex64)),
    unit_stride(),
    contiguous("x"),
    aligned(4),
    no_grad(),
    no_overlap("x", "w"),
    values("0 <= x < n"),
)
def f(
    x: Float32[Tensor, "b n"],
    y: Shaped[Tensor, "#b"] | Int32[Tensor, "m m"] | None = None,
    z: Complex64[Tensor, "*rest"] | None = None,
    many: list[Float32[Tensor, "n/2"]] | None = None,
    *,
    w: Tensor | None = None,
    mode: Literal["a", 1, None, True] | list[int] = "a",
    flag: bool = True,
) -> str:
    return "accepted"


class NoOperators(TorchDispatchMode):
    """Fails on every operator that runs."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was run")


@pytest.fixture(autouse=True)
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("contents were read")

    with monkeypatch.context() as patch:
        for name in READERS:
            patch.setattr(Tensor, name, fail)
        with NoOperators():
            yield


X, Y = torch.zeros(2, 4), torch.zeros(2)
HALF, COMPLEX = torch.zeros(2), torch.zeros(3, dtype=torch.complex64)
CONJUGATE, WIDE, OTHER = COMPLEX.conj(), torch.zeros(2, 8)[:, ::2], torch.zeros(2, 5)
GRADIENT, META = torch.zeros(2, 4, requires_grad=True), torch.zeros(2, 4, device="meta")
SPARSE, ODD, INTEGERS = torch.eye(2, 4).to_sparse(), torch.zeros(2, 3), X.int()


def test_the_readers_are_watched() -> None:
    with pytest.raises(AssertionError, match="contents"):
        X.tolist()
    with pytest.raises(AssertionError, match="was run"):
        X.add(1)


def test_right_calls() -> None:
    assert f(X) == "accepted"
    assert f(X, Y, COMPLEX, [HALF, HALF], w=WIDE[:, :1] if False else OTHER) == "accepted"
    assert f.contract.check(X, Y) == {"b": 2, "n": 4}
    assert f.contract.accepts(X)


@pytest.mark.parametrize(
    "call",
    [
        {"x": WIDE},
        {"x": OTHER},
        {"x": GRADIENT},
        {"x": META},
        {"x": SPARSE},
        {"x": ODD},
        {"x": INTEGERS},
        {"x": X, "y": ODD},
        {"x": X, "y": X},
        {"x": X, "z": COMPLEX},
        {"x": X, "y": Y, "z": CONJUGATE},
        {"x": X, "many": [HALF, X]},
        {"x": X, "many": HALF},
        {"x": X, "w": X},
        {"x": X, "w": INTEGERS},
        {"x": X, "mode": X},
        {"x": X, "mode": [X]},
        {"x": X, "flag": X},
        {"x": [X], "y": [Y], "z": X, "many": {"a": X}, "w": META},
    ],
    ids=lambda call: "-".join(call),
)
def test_wrong_calls(call: dict[str, Any]) -> None:
    with pytest.raises(ContractError) as caught:
        f(**call)
    assert caught.value.violations
    assert caught.value.to_dict()["arguments"]
