"""What is wrong with a contract itself: nothing obeys it, or nothing breaks a rule alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..model import Declaration
from .cases import Defect
from .forms import Form, presences
from .problem import Problem
from .solver import attempt, broken_by


def why_never(
    declaration: Declaration,
    id: str,
    together: Mapping[str, set[frozenset[str]]],
    given: Mapping[str, Any],
) -> str:
    """Why no call breaks a rule or fact alone; `together` has what was seen broken with it."""
    seen = set(together.get(id, ()))
    rule = next((rule for rule in declaration.rules if rule.id == id), None)
    if rule is not None:
        alone = replace(declaration, rules=(rule,))
        plan = attempt(Problem(alone, Form(), given), broken=rule)
        ids = broken_by(declaration, plan, given) if plan is not None else frozenset[str]()
        seen |= {ids - {id}} if id in ids else set()
    if not seen and rule is not None and rule.values:
        return f"no contents were found that break {id} alone"
    if not seen:
        return f"{id} can never be broken: what else the contract demands implies it"
    always = frozenset.intersection(*seen)
    fewest = min(seen, key=lambda ids: (len(ids), sorted(ids)))
    others = ", ".join(sorted(always or fewest))
    if always:
        return f"{id} is never broken alone: whatever breaks it breaks {others} too"
    return f"no call was found that breaks {id} alone; the closest also breaks {others}"


def unsatisfiable(declaration: Declaration, given: Mapping[str, Any]) -> Defect:
    """Which single rules stand in the way of any legal call."""
    culprits = []
    for rule in declaration.rules:
        rest = tuple(other for other in declaration.rules if other is not rule)
        if _is_satisfiable(replace(declaration, rules=rest), given):
            culprits.append(rule.id)
    without = f"; there are some without {' or without '.join(culprits)}" if culprits else ""
    return Defect(None, f"no legal call of {declaration.name} was found{without}")


def _is_satisfiable(declaration: Declaration, given: Mapping[str, Any]) -> bool:
    for form in presences(declaration):
        plan = attempt(Problem(declaration, form, given))
        if plan is not None and not broken_by(declaration, plan, given):
            return True
    return False
