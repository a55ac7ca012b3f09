"""Contents are judged whatever is switched on around a call, and what is made at the first call
serves all later ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from jaxtyping import Float32, Int32
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import contracts
from backends.values import KernelObserver
from contracts import ContractError, contiguous, contract, values
from contracts.contents.torch_observer import TorchObserver
from contracts.contents.watch import watch

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
WAYS = ("debug", "torch", "kernel")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A way to judge, with an observer that has seen no call yet."""
    observer = TorchObserver() if request.param == "torch" else KernelObserver()
    monkeypatch.setitem(watch.observers, DEVICE.type, observer)
    monkeypatch.setattr(watch, "errors", {})
    with contracts.mode("debug" if request.param == "debug" else "async"):
        yield request.param


def positive(text: str = "x > 0") -> Callable[..., Any]:
    @contract(values(text))
    def f(x: Float32[Tensor, "*n"]) -> Tensor:
        return 2 * x.sum()

    return f


def refused(call: Callable[[], Any]) -> str:
    """What the refusal of a call says, at once or later; "" where there is none."""
    try:
        call()
        contracts.synchronize()
    except ContractError as error:
        return error.violations[0].message
    return ""


class Counting(TorchDispatchMode):
    """A mode of the user's, who counts operations of his own."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "a default device": lambda: torch.device("meta"),
    "another default device": lambda: torch.device(DEVICE.type),
    "fakes": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "a mode": Counting,
    "autocast": lambda: torch.autocast(DEVICE.type, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("text", ["x > 0", "unique(x) or x > 0", "x // 0.5 >= 1"])
@pytest.mark.parametrize("around", AROUND)
def test_calls_are_judged_within(around: str, text: str, way: str) -> None:
    f = positive(text)
    right, wrong = torch.tensor([1.0, 2, 3]), torch.tensor([1.0, -5, -5])
    right, wrong = right.to(DEVICE), wrong.to(DEVICE)

    def within(x: Tensor) -> None:
        with AROUND[around]():
            f(x)

    for _ in range(2):
        assert refused(lambda: within(right)) == ""
        assert refused(lambda: f(right)) == ""
        assert refused(lambda: f(wrong)).startswith(("x[1] is -5", "x[2] is -5"))
        assert refused(lambda: within(wrong)).startswith(("x[1] is -5", "x[2] is -5"))


def test_a_mode_of_the_users_sees_its_own_operations_alone(way: str) -> None:
    @contract(values("x + 1 > 0"))
    def f(x: Float32[Tensor, "n"]) -> None: ...

    with Counting() as mode:
        f(torch.ones(3, device=DEVICE))
    contracts.synchronize()
    assert mode.count <= 1  # ones


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[[Tensor], Any]]] = {
    "grad": torch.func.grad,
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](torch.ones((), device=DEVICE)),
    "hessian": torch.func.hessian,
    "grad of grad": lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sum()),
    "functionalize": torch.func.functionalize,
    "grad of functionalize": lambda f: torch.func.grad(torch.func.functionalize(f)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_calls_are_judged_in_transforms_and_after_them(transform: str, way: str) -> None:
    f = positive("unique(x) or x > 0")
    right, wrong = torch.ones(4, device=DEVICE), -torch.ones(4, device=DEVICE)
    for _ in range(2):
        if transform != "hessian":  # which is a vmap
            assert refused(lambda: TRANSFORMS[transform](f)(wrong)).startswith("x[1] is -1")
        assert refused(lambda: TRANSFORMS[transform](f)(right)) == ""
        assert refused(lambda: f(right)) == ""
        assert refused(lambda: f(wrong)).startswith("x[1] is -1")


VMAPS: dict[str, Callable[[Callable[..., Any]], Callable[[Tensor], Any]]] = {
    "vmap": torch.vmap,
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(f)),
    "grad of vmap": lambda f: torch.func.grad(lambda x: torch.vmap(f)(x).sum()),
    "vmap of vmap": lambda f: lambda x: torch.vmap(torch.vmap(f))(x[None]),
}


@pytest.mark.parametrize("transform", VMAPS)
def test_inside_vmap_there_are_no_contents_of_one_call(transform: str, way: str) -> None:
    f = positive()
    assert refused(lambda: VMAPS[transform](f)(-torch.ones(3, 4, device=DEVICE))) == ""
    assert refused(lambda: f(-torch.ones(4, device=DEVICE))) != ""


def test_writes_that_functionalize_puts_off_are_seen(way: str) -> None:
    f = positive()

    def written(x: Tensor) -> Tensor:
        y = x.clone()
        y[2] = -3
        return f(y)

    ones = torch.ones(4, device=DEVICE)
    assert refused(lambda: torch.func.functionalize(written)(ones)).startswith("x[2] is -3")


@pytest.mark.parametrize("text", ["x > y", "x // y > 1", "x / y > 1 and unique(x)"])
def test_known_layouts_are_judged_in_every_call(text: str, way: str) -> None:
    """By a kernel, by torch, and with what is made for each call."""

    @contract(contiguous("x", "y"), "n > 0", "n < 99", "n != 7", "n != 9", values(text))
    def f(x: Int32[Tensor, "n"], y: Int32[Tensor, "n"]) -> None: ...

    x, y = torch.tensor([[8, 9, 10], [2, 2, 2]], dtype=torch.int32, device=DEVICE)
    for divisor in (2, 2, 2, 2, 20, 30, 2, 20):
        y[1] = divisor
        said = "" if divisor == 2 else f"x[1] is 9 and y[1] is {divisor}, breaks {text}"
        assert refused(lambda: f(x, y)) == said
        with torch.inference_mode():
            assert refused(lambda: f(x, y)) == said


@pytest.mark.filterwarnings("ignore")
def test_a_masked_tensor_cannot_be_judged_and_that_is_said(way: str) -> None:
    masked = torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True]))
    said = refused(lambda: positive()(masked))
    assert "cannot be judged: x is a MaskedTensor" in said
