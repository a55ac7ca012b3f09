"""Ops of any kind inside graphs: rules on pointers act when the graph runs, all others before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import backends
from backends import NoBackendError, Op
from contracts import aligned, contract, no_grad

Row = Float32[Tensor, "n"]


@contract(no_grad())
def graph_double(x: Row) -> Row:
    """2 x."""


def double_reference(x: Tensor) -> Tensor:
    return x * 2


def double_aligned(x: Tensor) -> Tensor:
    return torch.full_like(x, float(x.data_ptr() % 16))


double = Op(graph_double, reference=double_reference)
double.backend("aligned", rules=["n % 4 == 0", aligned(16)], priority=1)(double_aligned)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def at(offset: int, n: int = 8) -> Tensor:
    """`n` ones that start `offset` floats past an aligned address."""
    return torch.ones(n + offset)[offset:]


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "inductor"])
def test_a_misaligned_address_is_passed_over_when_the_graph_runs(compiler: str) -> None:
    compiled = torch.compile(double, fullgraph=True, backend=compiler)
    assert compiled(at(0))[0] == 0
    assert compiled(at(1))[0] == 2
    assert compiled(at(0))[0] == 0


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "inductor"])
def test_a_misaligned_address_is_refused_where_the_backend_was_demanded(compiler: str) -> None:
    compiled = torch.compile(
        lambda x: double(x, backend="aligned"), fullgraph=True, backend=compiler
    )
    assert compiled(at(0))[0] == 0
    with pytest.raises(NoBackendError, match="aligned: x starts 4 bytes past a 16-byte boundary"):
        compiled(at(1))
    assert compiled(at(0))[0] == 0


@pytest.mark.parametrize("strict", [True, False])
def test_a_misaligned_address_in_an_exported_program(strict: bool) -> None:
    class Calls(torch.nn.Module):
        def __init__(self, backend: str | None) -> None:
            super().__init__()
            self.backend = backend

        def forward(self, x: Tensor) -> Tensor:
            return double(x, backend=self.backend)

    free, demanding = (
        torch.export.export(Calls(backend), (at(0),), strict=strict).module()
        for backend in (None, "aligned")
    )
    assert (free(at(0))[0], free(at(1))[0], demanding(at(0))[0]) == (0, 2, 0)
    with pytest.raises(NoBackendError, match="starts 4 bytes past a 16-byte boundary"):
        demanding(at(1))


def test_results_that_are_not_laid_out_as_a_graph_was_told_are_an_error() -> None:
    Table = Float32[Tensor, "n m"]

    @contract(no_grad(), name="turned")
    def turned(x: Table) -> Float32[Tensor, "m n"]: ...

    op = Op(turned, reference=turned_reference)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(1, 3)).shape == (3, 1)
    with pytest.raises(RuntimeError, match=r"reference returned strides \(1, 3\) for the shape"):
        compiled(torch.ones(2, 3))


def turned_reference(x: Tensor) -> Tensor:
    return torch.empty_like(x).t()


def test_sizes_choose_while_tracing() -> None:
    compiled = torch.compile(double, fullgraph=True, backend="eager", dynamic=True)
    assert [float(compiled(at(0, n))[0]) for n in (8, 6, 12)] == [0, 2, 0]


def test_a_block_within_the_graph() -> None:
    def call(x: Tensor) -> Tensor:
        with backends.use(graph_double="reference"):
            inside = double(x)
        return inside + 10 * double(x)

    assert torch.compile(call, fullgraph=True, backend="eager")(at(0))[0] == call(at(0))[0] == 2


def test_a_backend_registered_later_serves_new_graphs() -> None:
    @contract(no_grad(), name="grows")
    def grows(x: Row) -> Row: ...

    op = Op(grows, reference=double_reference)
    x = at(0)
    assert op(x)[0] == 2
    op.backend("better", priority=1)(lambda x: x * 3)
    assert op(x)[0] == 3
    assert torch.compile(op, fullgraph=True, backend="eager")(x)[0] == 3


def test_the_reference_of_an_op_without_a_gradient_is_traced_through() -> None:
    @contract(name="traced_through")
    def plain(x: Row) -> Row: ...

    op = Op(plain, reference=double_reference)
    x = torch.ones(3, requires_grad=True)
    torch.compile(op, fullgraph=True, backend="aot_eager")(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_fakes_go_through_the_library_op_and_launch_nothing() -> None:
    @contract(no_grad(), name="never_run")
    def never(x: Row) -> Row: ...

    def fails(x: Tensor) -> Tensor:
        raise AssertionError("a kernel was launched on fakes")

    op = Op(never, reference=fails)
    op.backend("kernel", priority=1)(fails)
    with FakeTensorMode():
        x = torch.empty(5)
        assert op(x).shape == (5,)
        assert op(x, backend="kernel").shape == (5,)
    fake = FakeTensorMode().from_tensor(torch.ones(5))
    assert op(fake, backend="kernel").shape == (5,)


def test_several_results_and_a_number() -> None:
    @contract(no_grad(), name="several_results")
    def several(x: Row, factor: float = 1.0) -> tuple[Row, Row]: ...

    def reference(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return x * factor, x + factor

    op = Op(several, reference=reference)
    compiled: Any = torch.compile(op, fullgraph=True, backend="aot_eager")
    for factor in (2.0, 3.0):
        product, total = compiled(at(0), factor)
        assert (product[0], total[0]) == (factor, 1 + factor)
    torch.library.opcheck(op.inner, (at(0), 2.0, "reference", True))
