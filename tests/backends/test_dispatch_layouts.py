"""What was decided for a layout holds for its calls, and nothing else is taken for decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import backends
from backends import NoBackendError, Op
from backends.dispatch.selection import NOTED, Table
from contracts import (
    aligned,
    contiguous,
    contract,
    custom,
    no_overlap,
    same_device,
    unit_stride,
    when,
)
from contracts.layouts import Layouts

Rows = Float32[Tensor, "n d"]
Mix = Op[..., Tensor]
willing = True


@contract("n > 0", same_device(), unit_stride())
def mix(
    a: Rows, b: Rows, c: Rows, bias: Float32[Tensor, "d"] | None = None, power: int = 1
) -> Rows:
    """`(a + b + c + bias) ** power`."""


@contract("n > 0", same_device())
def mix_loosely(
    a: Rows, b: Rows, c: Rows, bias: Float32[Tensor, "d"] | None = None, power: int = 1
) -> Rows:
    """The same, of tensors that lie anyhow."""


@contract("n > 0", "d > 0", "n < 4096", "d < 4096", same_device())
def mix_into(a: Rows, b: Rows, c: Rows, out: Rows | None = None, power: int = 1) -> Rows:
    """The same, with one that may overlap itself."""


def mix_reference(a: Tensor, b: Tensor, c: Tensor, bias: Tensor | None, power: int) -> Tensor:
    total = a + b + c if bias is None else a + b + c + bias
    return total**power


def mix_into_reference(a: Tensor, b: Tensor, c: Tensor, out: Tensor | None, power: int) -> Tensor:
    return mix_reference(a, b, c, None, power)


def filled(value: float) -> Callable[..., Tensor]:
    def kernel(a: Tensor, b: Tensor, c: Tensor, bias: Tensor | None, power: int) -> Tensor:
        return torch.full_like(a, value)

    return kernel


@pytest.fixture
def op() -> Iterator[Mix]:
    made = Op(mix, reference=mix_reference)
    rules = [aligned(16), "power == 1", contiguous("b"), custom(lambda: willing, "it is willing")]
    made.backend("fast", rules=rules, priority=2)(filled(-2.0))
    made.backend("plain", rules=["bias is None"], priority=1)(filled(-1.0))
    return made


def rows(skip: int = 0, **options: bool) -> Tensor:
    return torch.zeros(24 + skip, **options)[skip:].view(6, 4)


def chosen(result: Tensor) -> str:
    return {-2.0: "fast", -1.0: "plain"}.get(float(result.detach()[0, 0]), "reference")


def warm(op: Mix) -> list[Tensor]:
    call = [rows(), rows(), rows()]
    assert [chosen(op(*call)) for _ in range(4)] == ["fast"] * 4
    return call


def test_tables_are_noted_with_a_layout(op: Mix, monkeypatch: pytest.MonkeyPatch) -> None:
    narrowed: list[Table] = []
    decide = Table.narrowed
    monkeypatch.setattr(Table, "narrowed", lambda t, a: narrowed.append(t) or decide(t, a))
    call = warm(op)
    assert len(narrowed) == 1
    op(*call, backend="plain")
    op(*call, backend="plain")
    op(*call)
    assert len(narrowed) == 2


def test_addresses_are_looked_at_in_every_call(op: Mix) -> None:
    call = warm(op)
    for _ in range(3):
        for name, skip in (("fast", 0), ("plain", 1), ("fast", 4), ("plain", 2)):
            assert chosen(op(rows(skip), *call[1:])) == name


def test_scalars_and_functions_are_asked_in_every_call(
    op: Mix,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = warm(op)
    for _ in range(3):
        assert chosen(op(*call, power=2)) == "plain"
        assert chosen(op(*call)) == "fast"
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}.willing", False)
            assert chosen(op(*call)) == "plain"
            with pytest.raises(NoBackendError, match="it is willing does not hold"):
                op(*call, backend="fast")


def test_other_strides_and_optional_arguments_are_other_layouts(op: Mix) -> None:
    a, b, c = warm(op)
    wide = torch.zeros(6, 8)[:, :4]
    for arguments, name in (
        ((a, wide, c), "plain"),
        ((wide, b, c), "fast"),
        ((a, b, c, torch.zeros(4)), "fast"),
        ((a, wide, c, torch.zeros(4)), "reference"),
        ((a, b, c), "fast"),
    ):
        assert [chosen(op(*arguments)) for _ in range(4)] == [name] * 4


def test_gradients_are_never_cut(op: Mix) -> None:
    _, b, c = warm(op)
    trained = rows(requires_grad=True)
    for _ in range(4):
        result = op(trained, b, c)
        assert chosen(result) == "reference"
        assert result.requires_grad
    for _ in range(4):
        with torch.no_grad():
            assert chosen(op(trained, b, c)) == "fast"
    assert op(trained, b, c).requires_grad


def test_transforms_and_modes_are_noticed(op: Mix) -> None:
    call = warm(op)

    def inside(x: Tensor) -> Tensor:
        for _ in range(4):
            assert chosen(op(*call)) == "reference"
        return op(x, *call[1:])

    for _ in range(4):
        assert torch.func.vmap(inside)(torch.ones(2, 6, 4)).shape == (2, 6, 4)
        mapped = torch.func.vmap(op)(*(torch.ones(2, 6, 4) for _ in range(3)))
        assert float(mapped.sum()) == 3 * 48
        functional = torch.func.functionalize(lambda *tensors: op(*tensors))
        assert float(functional(*(torch.ones(6, 4) for _ in range(3))).sum()) == 3 * 24
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(call[0], torch.ones(6, 4))
        for _ in range(4):
            result = op(dual, *call[1:])
            assert torch.autograd.forward_ad.unpack_dual(result).tangent is not None
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(op(*call)) is not Tensor
    assert chosen(op(*call)) == "fast"


def test_lazy_views_reach_no_kernel() -> None:
    """A rule on memory refuses them; where there is none, they are resolved on the way."""
    op = Op(mix_loosely, reference=mix_reference)
    op.backend("fast", rules=[aligned(16)], priority=1)(filled(-2.0))
    _, b, c = warm(op)
    lazy = torch._neg_view(torch.full((6, 4), 3.0))
    assert [chosen(op(lazy, b, c)) for _ in range(4)] == ["reference"] * 4
    op.backend("first", priority=2)(
        lambda a, b, c, bias, power: a.as_strided((6, 4), (4, 1)).clone()
    )
    for x in (rows(), lazy, lazy, lazy):
        assert torch.equal(op(x, b, c), x.resolve_neg())


def test_a_condition_on_a_scalar_is_asked_in_every_call() -> None:
    op = Op(mix_into, reference=mix_into_reference)
    rules = [when("power == 2", no_overlap("out"))]
    op.backend("fast", rules=rules)(lambda a, b, c, out, power: torch.full_like(a, -2.0))
    call, itself = [rows(), rows(), rows()], torch.zeros(1, 4).expand(6, 4)
    for _ in range(3):
        assert [chosen(op(*call, itself)) for _ in range(3)] == ["fast"] * 3
        assert [chosen(op(*call, itself, power=2)) for _ in range(3)] == ["reference"] * 3


def test_notes_do_not_grow_without_end(op: Mix) -> None:
    """Registering a backend makes a table obsolete."""
    call = warm(op)
    (layouts,) = (x for x in op.__globals__.values() if isinstance(x, Layouts))  # type: ignore[attr-defined]
    for number in range(2 * NOTED):
        op.backend(f"late-{number}", needs="sm >= 200", priority=number)(filled(0.0))
        assert chosen(op(*call)) == "fast"
        assert len(layouts.known[call[0].shape][-1]) <= NOTED


def test_a_backend_that_is_registered_later_is_found(op: Mix) -> None:
    call = warm(op)
    op.backend("newer", priority=3)(filled(7.0))
    assert float(op(*call)[0, 0]) == 7.0


def test_a_demand_is_asked_for_in_every_call(op: Mix) -> None:
    call = warm(op)
    for _ in range(3):
        with backends.use("plain"):
            assert chosen(op(*call)) == "plain"
        with backends.use(mix="reference"):
            assert chosen(op(*call)) == "reference"
        assert chosen(op(*call)) == "fast"
        assert chosen(op(*call, backend="plain")) == "plain"
