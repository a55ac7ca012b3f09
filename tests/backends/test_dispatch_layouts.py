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
from backends.dispatch.selection import Table
from contracts import aligned, contiguous, contract, custom, same_device, unit_stride

Rows = Float32[Tensor, "n d"]
Mix = Op[..., Tensor]
willing = True


@contract("n > 0", same_device(), unit_stride())
def mix(
    a: Rows, b: Rows, c: Rows, bias: Float32[Tensor, "d"] | None = None, power: int = 1
) -> Rows:
    """`(a + b + c + bias) ** power`."""


def mix_reference(a: Tensor, b: Tensor, c: Tensor, bias: Tensor | None, power: int) -> Tensor:
    total = a + b + c if bias is None else a + b + c + bias
    return total**power


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
        assert chosen(op(*call)) == "reference"
        return op(x, *call[1:])

    assert torch.func.vmap(inside)(torch.ones(2, 6, 4)).shape == (2, 6, 4)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(call[0], torch.ones(6, 4))
        result = op(dual, *call[1:])
        assert torch.autograd.forward_ad.unpack_dual(result).tangent is not None
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(op(*call)) is not Tensor
    assert chosen(op(*call)) == "fast"


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
