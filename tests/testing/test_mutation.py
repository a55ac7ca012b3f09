"""The kit notices every demand that a contract loses or turns around."""

from __future__ import annotations

import pytest
from jaxtyping import Float32
from torch import Tensor

from contracts import contract
from contracts.facts import facts
from contracts.testing import generate
from contracts.testing.cases import Suite
from tools.mutants import mutants
from tools.mutate import noticed, repository_contracts

CONTRACTS = repository_contracts()


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_mutant_of_a_contract_is_noticed(name: str) -> None:
    declaration = CONTRACTS[name].declaration
    suite = generate(declaration)
    survivors = [
        f"{mutant.demand} {mutant.how}"
        for mutant in mutants(declaration)
        if not noticed(mutant, suite)
    ]
    assert survivors == []


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_demand_has_mutants(name: str) -> None:
    declaration = CONTRACTS[name].declaration
    demands = {rule.id for rule in declaration.rules} | {fact.id for fact in facts(declaration)}
    assert {mutant.demand for mutant in mutants(declaration) if mutant.how == "dropped"} == demands


def test_a_suite_without_the_call_for_a_rule_notices_less() -> None:
    @contract("n % 2 == 0")
    def f(x: Float32[Tensor, "n"]): ...

    declaration = f.contract.declaration
    suite = generate(declaration)
    blind = Suite(declaration, tuple(c for c in suite.cases if c.breaks != "n%2==0"), ())
    (dropped,) = (m for m in mutants(declaration) if (m.demand, m.how) == ("n%2==0", "dropped"))
    assert noticed(dropped, suite)
    assert not noticed(dropped, blind)
