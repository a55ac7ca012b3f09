"""Mutation proof of the testing kit: a contract that lost or turned a demand is found out.

    python tools/mutate.py

Each rule and each fact of an annotation is dropped, and inverted, in every contract of the
repository's operations and examples; rules over several arguments also lose one at a time. The
tests generated from the original contract then run against the mutant. A mutant that they do not
notice is printed, and makes the exit status 1.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]

from contracts import Contract  # noqa: E402
from contracts.testing.cases import Case, Suite  # noqa: E402
from contracts.testing.subjects import Subject  # noqa: E402
from contracts.testing.suite import generate  # noqa: E402
from contracts.testing.verdict import Trial  # noqa: E402
from tools.mutants import Mutant, mutants  # noqa: E402


def noticed(mutant: Mutant, suite: Suite) -> bool:
    """Whether some test of the original contract fails against the mutant."""
    subject = Subject(Contract(mutant.declaration), {})
    about: list[Case] = []
    others: list[Case] = []
    for case in suite.cases:
        (about if case.breaks in (mutant.demand, None) else others).append(case)
    # A dropped demand shows in a call that breaks it, an inverted one in any legal call.
    about.sort(key=lambda case: (case.breaks is None) is (mutant.how != "inverted"))
    return any(Trial(subject, case).failures() for case in (*about, *others))


def repository_contracts() -> dict[str, Contract]:
    """The contracts of every operation, and of the examples that test themselves."""
    import backends

    found = {
        op.contract.name: op.contract
        for op in backends.registered()
        if op.__module__.startswith("backends.ops.")
    }
    example = importlib.import_module("examples.test_my_op")
    return {**found, example.my_op.contract.name: example.my_op.contract}


def main() -> int:
    survivors = 0
    for name, contract in repository_contracts().items():
        start = time.perf_counter()
        suite = generate(contract.declaration)
        made = list(mutants(contract.declaration))
        missed = [mutant for mutant in made if not noticed(mutant, suite)]
        seconds = time.perf_counter() - start
        print(f"{name}: {len(made) - len(missed)} of {len(made)} mutants noticed, {seconds:.1f} s")
        for mutant in missed:
            print(f"  not noticed: {mutant.demand} {mutant.how}")
        survivors += len(missed)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
