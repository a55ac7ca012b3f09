"""Broken calls mended, for the catalogue: before, what the call is told, and after.

The calls come from the contract's own generated tests. A fix is shown only after it was tried: the
code before makes a call that breaks exactly its rule, the code after it one that is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..explain import violations
from ..model import Declaration
from ..testing.plans import Plan, source_of
from ..testing.suite import Case, generate
from .entry import Fix

CANDIDATES = 4
"""Broken calls of one rule that are tried, smallest first."""


def fixes(declaration: Declaration, rules: Iterable[str] | None = None) -> dict[str, Fix]:
    """A mended call for each of these rules and facts, by default for all, by its id."""
    suite = generate(declaration)
    wanted = None if rules is None else set(rules)
    by_rule: dict[str, list[Case]] = {}
    for case in sorted(suite.broken, key=lambda case: _size(case.plan)):
        if case.breaks is not None and (wanted is None or case.breaks in wanted):
            by_rule.setdefault(case.breaks, []).append(case)
    legal = [case.plan for case in suite.legal]
    found = {}
    for rule, cases in by_rule.items():
        tried = [fix for case in cases[:CANDIDATES] for fix in _mended(declaration, case, legal)]
        if tried:
            found[rule] = min(tried, key=lambda pair: pair[0])[1]
    return found


def _mended(
    declaration: Declaration, case: Case, legal: list[Plan]
) -> Iterator[tuple[tuple[bool, int], Fix]]:
    """The ways to mend one call, each with how well it explains: the violation's own line of code
    before a value of the reader's own making, little before much."""
    plan = case.plan
    faults = violations(declaration, plan.build(filled=False))
    near = min(legal, key=lambda other: _distance(plan, other, faults[0].argument))
    changed = _differences(plan, near)
    setup = _assign(plan, [name for name in plan.values if name not in changed])
    before = _assign(plan, changed)
    fake = plan.fake or near.fake
    broken = _run(declaration, fake, "import torch", setup, before)
    if broken is None:
        return
    faults = violations(declaration, broken)
    if [fault.rule for fault in faults] != [case.breaks]:
        return
    message = str(faults[0]).splitlines()[0]
    for own, after in ((False, faults[0].fix), (True, _assign(near, changed))):
        if after is None:
            continue
        arguments = _run(declaration, fake, "import torch", setup, before, after)
        if arguments is not None and not violations(declaration, arguments):
            fix = Fix(f"import torch\n\n{setup}", before, after, message)
            yield (own, len(changed)), fix


def _size(plan: Plan) -> tuple[int, int]:
    """How little a call shows: tensors without elements, then how much there is to read."""
    tensors = [tensor for _, tensor in plan.tensors()]
    return sum(not tensor.numel for tensor in tensors), sum(1000 + t.numel for t in tensors)


def _distance(plan: Plan, other: Plan, argument: str | None) -> tuple[int, ...]:
    """How far a legal call is from a broken one: the same optional arguments and a change of the
    culprit alone come first."""
    changed = _differences(plan, other)
    presence = sum((plan.values[name] is None) != (other.values[name] is None) for name in changed)
    culprit = (argument or "").partition("[")[0]
    sizes = dict(plan.tensors())
    steps = sum(
        abs(a - b)
        for path, tensor in other.tensors()
        if path in sizes and len(sizes[path].shape) == len(tensor.shape)
        for a, b in zip(tensor.shape, sizes[path].shape, strict=True)
    )
    empty, _ = _size(other)
    return presence, bool(culprit) and culprit not in changed, empty, len(changed), steps


def _differences(plan: Plan, other: Plan) -> list[str]:
    return [name for name, value in plan.values.items() if other.values.get(name) != value]


def _assign(plan: Plan, names: list[str]) -> str:
    """Assignments that make these arguments; what shares memory with another comes after it."""
    late = {path[0] for path, tensor in plan.tensors() if tensor.shares}
    return "\n".join(
        f"{name} = {source_of(plan.values[name], fake=plan.fake)}"
        for name in sorted(names, key=lambda name: name in late)
    )


def _run(declaration: Declaration, fake: bool, *code: str) -> dict[str, Any] | None:
    """The arguments that this code makes, or None where it does not run as it stands."""
    names: dict[str, Any] = {"torch": torch}
    with FakeTensorMode() if fake else nullcontext(), torch.enable_grad():
        try:
            for part in code:
                exec(part, names)
        except Exception:
            return None
    return {argument.name: names.get(argument.name) for argument in declaration.arguments}
