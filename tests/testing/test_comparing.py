"""Where a hand-written validator and a contract part, both ways, with the rule."""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import contract
from contracts.testing import compare
from examples.migrate_validator import attention, check_attention


@contract("rows % 4 == 0")
def f(x: Float32[Tensor, "rows cols"], scale: float = 1.0): ...


def test_a_validator_that_says_the_same_agrees_everywhere() -> None:
    def same(x: object, scale: object) -> bool:
        return (
            isinstance(x, Tensor)
            and x.dtype is torch.float32
            and x.ndim == 2
            and x.shape[0] % 4 == 0
            and isinstance(scale, float)
        )

    comparison = compare(same, f)
    assert comparison
    assert comparison.calls > 20
    assert str(comparison).count("\n") == 0


def test_what_a_validator_lets_through_is_named_by_the_rule() -> None:
    def lax(x: Tensor, **others: object) -> None:
        if x.dim() != 2 or x.dtype != torch.float32:
            raise ValueError("no")

    comparison = compare(lax, f)
    assert not comparison
    assert {found.rule for found in comparison.too_lax} == {"rows%4==0", "scale-type"}
    assert comparison.too_strict == ()
    assert "lax accepts what the contract refuses:\n" in str(comparison)


def test_what_a_validator_refuses_for_no_reason_is_named_by_its_own_words() -> None:
    def strict(x: Tensor) -> None:
        assert x.is_contiguous(), "dense only"
        if not f.contract.accepts(x):
            raise ValueError("no")

    refusals = {found.refusal for found in compare(strict, f).too_strict}
    assert refusals == {"AssertionError: dense only"}


def test_a_crash_counts_as_a_refusal() -> None:
    def crashing(x: Tensor, scale: float) -> None:
        if x.ndim * scale < 0 or not f.contract.accepts(x, scale):  # no ndim: AttributeError
            raise ValueError("no")

    assert compare(crashing, f)


def test_the_example_finds_what_thirty_careful_lines_missed() -> None:
    comparison = compare(check_attention, attention)
    assert {found.rule for found in comparison.too_lax} == {
        "v-dtype",
        "block_table-batch",
        "window-type",
        "0<head_dim<=256andhead_dim%8==0",
        "same_dtype(q,k,v)",
        "same_device",
        "unit_stride(q,k,v)",
    }
    assert {found.refusal for found in comparison.too_strict} == {
        "ValueError: q must be contiguous"
    }
