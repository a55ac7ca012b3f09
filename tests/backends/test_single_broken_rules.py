"""Each rule of an operation's contract is alive: a call that breaks it alone is refused.

The mutants are those that `bench/checks.py` counts for every checker.
"""

from __future__ import annotations

import pytest

from bench.check_cases import Mutant
from bench.check_contestants import Signature, signatures
from contracts import ContractError

SIGNATURES = signatures()
MUTANTS = [
    pytest.param(signature, mutant, id=f"{signature.name}: {mutant.breaks}")
    for signature in SIGNATURES
    for mutant in signature.mutants
]


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_the_right_call_is_accepted(signature: Signature) -> None:
    assert signature.contract.violations(**signature.right) == ()
    signature.contract.guard(signature.body)(**signature.right)


@pytest.mark.parametrize(("signature", "mutant"), MUTANTS)
def test_one_broken_rule_is_refused(signature: Signature, mutant: Mutant) -> None:
    wrong = mutant.of(signature.right)
    guarded = signature.contract.guard(signature.body)
    with pytest.raises(ContractError) as refusal:
        guarded(**wrong)
    assert refusal.value.violations == signature.contract.violations(**wrong)
