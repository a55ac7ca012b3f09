"""Advice on annotation facts: checked at decoration, shown in violations."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractDefinitionError, about, contract
from contracts.facts import facts


def attend(
    q: Float32[Tensor, "q_len head_dim"],
    k: Float32[Tensor, "kv_len head_dim"],
    *more: Float32[Tensor, "... 2 head_dim"],
    bias: Float32[Tensor, "q_len kv_len"] | None = None,
    pair: tuple[Float32[Tensor, "n"], int] | None = None,
    scale: float = 1.0,
) -> None: ...


def test_the_facts_of_a_signature() -> None:
    ids = [fact.id for fact in facts(contract(attend).contract.declaration)]
    assert ids == [
        *("q-type", "q-dtype", "q-rank"),
        *("k-type", "k-dtype", "k-rank", "k-head_dim"),
        *("more[]-type", "more[]-dtype", "more[]-rank", "more[]-axis-2", "more[]-head_dim"),
        *("bias-type", "bias-dtype", "bias-rank", "bias-q_len", "bias-kv_len"),
        *("pair-type", "pair[0]-type", "pair[0]-dtype", "pair[0]-rank", "pair[1]-type"),
        "scale-type",
    ]


def test_a_hint_and_a_fix_stand_in_the_violation() -> None:
    note = about("k-head_dim", hint="cut both from one projection", fix="k = k[:, :{head_dim}]")
    fn = contract(note)(attend)
    (violation,) = fn.contract.violations(torch.zeros(3, 4), torch.zeros(5, 6))
    assert violation.hint == "cut both from one projection"
    assert violation.fix == "k = k[:, :4]"


def test_a_fact_keeps_the_fix_of_its_own() -> None:
    fn = contract(about("k-dtype", hint="why", fix="k = None"))(attend)
    (violation,) = fn.contract.violations(torch.zeros(3, 4), torch.zeros(5, 4).double())
    assert violation.fix == "k = k.to(torch.float32)"
    assert violation.hint == "why"


def test_one_note_may_be_about_several_facts() -> None:
    fn = contract(about("q-rank", "k-rank", hint="flatten the batch"))(attend)
    found = fn.contract.violations(torch.zeros(4), torch.zeros(4))
    assert [violation.hint for violation in found] == ["flatten the batch"] * 2


@pytest.mark.parametrize("fact", ["k-width", "q-head_dim", "scale-dtype", "nothing"])
def test_a_fact_that_is_not_stated_is_refused_at_decoration(fact: str) -> None:
    with pytest.raises(ContractDefinitionError, match=rf"no fact '{fact}'.*k-head_dim"):
        contract(about(fact, hint="never seen"))(attend)


def test_a_fact_is_annotated_once() -> None:
    with pytest.raises(ContractDefinitionError, match="twice"):
        contract(about("k-rank"), about("k-rank"))(attend)


def test_about_needs_a_fact() -> None:
    with pytest.raises(ContractDefinitionError, match="at least one"):
        about(hint="of nothing")


def test_ids_do_not_depend_on_the_rank_of_a_call() -> None:
    fn = contract(attend)
    q, k = torch.zeros(3, 4), torch.zeros(5, 4)
    for shape in ((7, 4), (1, 7, 4), (1, 1, 7, 4)):
        (violation,) = fn.contract.violations(q, k, torch.zeros(shape))
        assert violation.rule == "more[]-axis-2"
