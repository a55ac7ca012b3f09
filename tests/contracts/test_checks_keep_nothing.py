"""What a check remembers of a call never changes a verdict, and keeps no tensor alive."""

import contextlib
import gc
import itertools
import weakref

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from contracts import ContractError, contract, device, no_grad, same_device, same_dtype

Row = Float[Tensor, "n"]


@contract(same_device(), same_dtype("a", "b"), no_grad(), device("cpu", "d"))
def f(a: Row, b: Row, c: Row, d: Row, e: Row | None = None, g: Row | None = None) -> int:
    return len(a)


def tensors(count: int = 4) -> list[Tensor]:
    return [torch.zeros(3) for _ in range(count)]


def test_no_tensor_is_kept_alive() -> None:
    arguments = tensors(6)
    watched = [weakref.ref(x) for x in arguments]
    for _ in range(3):
        f(*arguments)
    with pytest.raises(ContractError):
        f(*arguments[:3], torch.zeros(4))
    del arguments
    gc.collect()
    assert [ref() for ref in watched] == [None] * 6


def test_every_order_of_kinds_gives_the_same_verdicts() -> None:
    double, half = torch.zeros(3).double(), torch.zeros(3).half()
    x, meta = torch.zeros(3), torch.zeros(3, device="meta")
    grad, sparse = torch.zeros(3, requires_grad=True), torch.ones(3).to_sparse()
    calls = [
        ([x, x.clone(), x.clone(), x.clone()], True),
        ([x, x, x, x], True),
        ([double, double.clone(), half, half.clone()], True),
        ([double, x, half, half.clone()], False),
        ([meta, meta, meta, meta], False),
        ([x, x.clone(), meta, x.clone()], False),
        ([grad, x.clone(), x.clone(), x], False),
        ([x, x.clone(), sparse, x.clone()], True),
        ([x, x.clone(), x.int(), x.clone()], False),
        ([torch.nn.Parameter(x, requires_grad=False), x.clone(), x.clone(), half], True),
    ]
    for first, second in itertools.permutations(calls, 2):
        for arguments, right in (first, second, first):
            assert f.contract.passes(*arguments, None, None) is right
            assert f.contract.accepts(*arguments) is right


def test_grad_mode_is_asked_at_every_call() -> None:
    arguments = [*tensors(3), torch.zeros(3, requires_grad=True)]
    for _ in range(3):
        with torch.no_grad():
            assert f(*arguments) == 3
        with pytest.raises(ContractError, match="requires grad"):
            f(*arguments)
    with torch.inference_mode():
        assert f(*arguments) == 3
        assert f(*tensors()) == 3
    assert f(*tensors()) == 3


def test_more_kinds_than_are_remembered() -> None:
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    for dtype in dtypes * 20:
        assert f(*[x.to(dtype) for x in tensors(6)]) == 3
        with pytest.raises(ContractError):
            f(*[x.to(dtype) for x in tensors(3)], torch.zeros(3, dtype=torch.int32))


def test_a_refused_call_is_freed_as_soon_as_its_error_is() -> None:
    """Not when the cycle collector comes round, which knows nothing of a device's memory."""
    gc.collect()
    gc.disable()
    try:
        x = torch.zeros(3)
        alive = weakref.ref(x)
        with contextlib.suppress(ContractError):
            f(x, x, x, torch.zeros(4))
        del x
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("called", [True, False])
def test_a_contract_dies_with_its_function(called: bool) -> None:
    def declared() -> weakref.ref[Tensor]:
        big = torch.ones(3)

        @contract("n > 0")
        def local(x: Row) -> Tensor:
            return big

        if called:
            local(torch.zeros(2))
        return weakref.ref(big)

    kept = declared()
    gc.collect()
    assert kept() is None
