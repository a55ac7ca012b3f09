"""Broken calls mended, for the catalogue: before, what the call is told, and after.

The calls come from the contract's own generated tests. A fix is shown only after it was tried: the
code before makes a call that breaks exactly its rule, the code after it one that is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..errors import Violation
from ..explain import contents_rules, violations, violations_of_contents
from ..model import Declaration
from ..testing.cases import Case
from ..testing.plans import Plan, source_of
from ..testing.suite import generate
from .entry import Fix

CANDIDATES = 3
"""Broken calls of one rule that are tried, smallest first."""

FORBIDDEN = (-2, 1000, 0, 0.5, float("nan"), float("inf"))
"""What is put into tensors whose contents have a rule."""


def fixes(declaration: Declaration, rules: Iterable[str] | None = None) -> dict[str, Fix]:
    """A mended call for each of these rules and facts, by default for all, by its id."""
    suite = generate(declaration)
    wanted = None if rules is None else set(rules)
    by_rule: dict[str, list[Case]] = {}
    for case in sorted(suite.broken, key=lambda case: _size(case.plan)):
        if case.breaks is not None and (wanted is None or case.breaks in wanted):
            by_rule.setdefault(case.breaks, []).append(case)
    legal = [case.plan for case in suite.legal]
    for rule, case in _broken_contents(declaration, legal):
        if wanted is None or rule in wanted:
            by_rule.setdefault(rule, []).append(case)
    found = {}
    for rule, cases in by_rule.items():
        if (best := _best(declaration, cases[:CANDIDATES], legal)) is not None:
            found[rule] = best
    return found


def _best(declaration: Declaration, cases: list[Case], legal: list[Plan]) -> Fix | None:
    """The first call that the violation's own line mends, else the one with the least to change."""
    found: list[tuple[int, Fix]] = []
    for case in cases:
        for certain, changes, fix in _mended(declaration, case, legal):
            if certain:
                return fix
            found.append((changes, fix))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _mended(
    declaration: Declaration, case: Case, legal: list[Plan]
) -> Iterator[tuple[bool, int, Fix]]:
    """The ways to mend one call: by the violation's own line of code, which is certain, then by
    other values; with how many arguments change."""
    plan = case.plan
    faults = _faults(declaration, plan.build())
    near = min(legal, key=lambda other: _distance(plan, other, faults[0].argument))
    changed = _differences(plan, near)
    setup = _assign(plan, [name for name in plan.values if name not in changed])
    before = _assign(plan, changed)
    fake = plan.fake or near.fake
    broken = _run(declaration, fake, "import torch", setup, before)
    if broken is None:
        return
    faults = _faults(declaration, broken)
    if [fault.rule for fault in faults] != [case.breaks]:
        return
    message = str(faults[0]).splitlines()[0]
    for certain, after in ((True, faults[0].fix), (False, _assign(near, changed))):
        if after is None:
            continue
        arguments = _run(declaration, fake, "import torch", setup, before, after)
        if arguments is not None and not _faults(declaration, arguments):
            fix = Fix(f"import torch\n\n{setup}", before, after, message)
            yield certain, len(changed), fix


def _faults(declaration: Declaration, arguments: dict[str, Any]) -> tuple[Violation, ...]:
    """What the call breaks in the mode that reads contents too."""
    return violations(declaration, arguments) or violations_of_contents(declaration, arguments)


def _broken_contents(declaration: Declaration, legal: list[Plan]) -> Iterator[tuple[str, Case]]:
    """For each rule on contents, a call whose tensors hold what it forbids."""
    plans = sorted(legal, key=_size)
    for _, rule in contents_rules(declaration):
        fills = (filled for plan in plans for filled in _filled(plan, rule.resolved.tensors))
        broken = (plan for plan in fills if _breaks_only(declaration, plan, rule.id))
        if (plan := next(broken, None)) is not None:
            yield rule.id, Case("contents", plan, rule.id)


def _filled(plan: Plan, names: tuple[str, ...]) -> Iterator[Plan]:
    for path, tensor in plan.tensors():
        if path[0] in names and tensor.numel:
            for fill in FORBIDDEN:
                yield plan.put(path, replace(tensor, fill=fill))


def _breaks_only(declaration: Declaration, plan: Plan, rule: str) -> bool:
    try:
        faults = _faults(declaration, plan.build())
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return False  # a dtype that cannot hold the value
    return [fault.rule for fault in faults] == [rule]


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
