"""A backend without a gradient never cuts one, whatever the contract says and whatever the mode."""

from __future__ import annotations

import itertools

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import contracts
from backends import NoBackendError, Op
from contracts import Rule, contract, no_grad, when

Row = Float32[Tensor, "n"]
numbers = itertools.count()


def product(*rules: Rule, of_backend: tuple[Rule, ...] = ()) -> Op:
    """q * k, with a backend that autograd sees nothing of."""

    def multiply(q: Row, k: Row) -> Row: ...

    multiply.__name__ = multiply.__qualname__ = f"multiply_{next(numbers)}"

    def reference(q: Tensor, k: Tensor) -> Tensor:
        return q * k

    op = Op(contract(*rules)(multiply), reference=reference)

    @op.backend("fast", priority=1, rules=of_backend)
    def fast(q: Tensor, k: Tensor) -> Tensor:
        return torch.mul(q.detach(), k.detach())

    return op


OPS = {
    "no rule": product(),
    "contract on q": product(no_grad("q")),
    "backend on q": product(of_backend=(no_grad("q"),)),
    "conditional": product(when("n > 100", no_grad())),
    "contract on all": product(no_grad()),
}
CASES = [(name, mode) for name in OPS for mode in ("static", "off")]
CASES.remove(("contract on all", "static"))  # refuses the call


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_the_reference_serves_what_needs_a_gradient(name: str, mode: str, compiled: bool) -> None:
    op = OPS[name]
    torch._dynamo.reset()
    call = torch.compile(op, backend="aot_eager", fullgraph=True) if compiled else op
    q, k = torch.full((4,), 3.0), torch.ones(4, requires_grad=True)
    with contracts.mode(mode):
        for _ in range(3):
            (gradient,) = torch.autograd.grad(call(q, k).sum(), k)
            assert gradient.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_demanded_backend_refuses_it(name: str, mode: str) -> None:
    q, k = torch.ones(4), torch.ones(4, requires_grad=True)
    with contracts.mode(mode):
        with pytest.raises(NoBackendError, match="k requires grad"):
            OPS[name](q, k, backend="fast")
        with torch.no_grad():
            assert OPS[name](q, k, backend="fast").tolist() == [1, 1, 1, 1]


def fill(x: Row, out: Row | None = None) -> Row: ...


def fill_reference(x: Tensor, out: Tensor) -> None:
    out.copy_(x)


filling = Op(
    contract(outputs=lambda x, out: x.new_empty(x.shape) if out is None else out)(fill),
    reference=fill_reference,
    buffers=("out",),
)


@filling.backend("kernel", priority=1)
def fill_by_kernel(x: Tensor, out: Tensor) -> None:
    out.numpy()[:] = x.numpy()  # as a kernel writes: autograd is not told


@pytest.mark.parametrize("through_library", [False, True])
def test_a_buffer_that_a_backward_needs_is_known_to_be_overwritten(through_library: bool) -> None:
    weight, buffer = torch.ones(4, requires_grad=True), torch.full((4,), 2.0)
    loss = (weight * buffer).sum()
    with torch.no_grad():
        if through_library:
            filling.inner(torch.zeros(4), buffer, "kernel", True)
        else:
            filling(torch.zeros(4), out=buffer, backend="kernel")
    assert buffer.tolist() == [0, 0, 0, 0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
