"""What tensors contain: fills that obey the rules on contents, and fills that break one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from typing import Any

import torch

from .. import expressions
from ..explain import contents_rules, violations_of_contents
from ..expressions import Const
from ..model import Declaration
from ..rules.values import Values
from .plans import Plan
from .tensor_plans import COUNTS

COMMON: tuple[float | str, ...] = (
    *(0, 1, -1, 2, 0.5, -2, 1000, -1000),
    *COUNTS,
    *(math.nan, math.inf),
)
"""Fills to try whatever a rule says, in order of preference."""
TRIES = 400


def broken_contents(
    declaration: Declaration, plan: Plan, given: Mapping[str, Any]
) -> frozenset[str]:
    """The ids of the rules on contents that a call breaks which breaks no other rule."""
    arguments = {**given, **plan.build()}
    return frozenset(fault.rule for fault in violations_of_contents(declaration, arguments))


def settled(declaration: Declaration, plan: Plan, given: Mapping[str, Any]) -> Plan | None:
    """The same call with contents that break no rule; None where no fill does."""
    rules = [rule for _, rule in contents_rules(declaration)]
    if not rules or plan.fake or not broken_contents(declaration, plan, given):
        return plan
    tensors = list(dict.fromkeys(name for rule in rules for name in rule.resolved.tensors))
    for candidate in _fillings(plan, tensors, rules):
        if not broken_contents(declaration, candidate, given):
            return candidate
    return None


def unsettled(
    declaration: Declaration, plan: Plan, rule: Values, given: Mapping[str, Any]
) -> Iterator[tuple[str, Plan]]:
    """The same call with contents that break one rule and no other, and a name for each."""
    if plan.fake:
        return
    for name in rule.resolved.tensors:
        for candidate in _fillings(plan, [name], [rule]):
            if broken_contents(declaration, candidate, given) == {rule.id}:
                yield f"{name} filled with {candidate.values[name].fill}", candidate


def _fillings(plan: Plan, names: list[str], rules: list[Values]) -> Iterator[Plan]:
    present = [name for name in names if plan.values.get(name) is not None]
    choices = [_fills(plan, plan.values[name].dtype, rules) for name in present]
    for fills in islice(product(*choices), TRIES):
        filled = plan
        for name, fill in zip(present, fills, strict=True):
            filled = filled.put((name,), replace(plan.values[name], fill=fill))
        yield filled


def _fills(plan: Plan, dtype: torch.dtype, rules: list[Values]) -> list[float | str]:
    """What a tensor may hold: around every number that the rules compare it with, and more."""
    env = {**plan.values, **plan.sizes}
    limits: set[float] = set()
    for rule in rules:
        condition = rule.resolved
        limits |= {
            node.value
            for node in expressions.walk(condition.elements)
            if isinstance(node, Const) and isinstance(node.value, int | float)
        }
        try:
            numbers = condition.numbers_of(env)
        except expressions.Unbound:
            continue
        limits |= {number for number in numbers if isinstance(number, int | float)}
    near = sorted({n + step for n in limits for step in (-1, 0, 1)})
    fitting = [fill for fill in (*COMMON, *near) if _holds(dtype, fill)]
    return list({repr(fill): fill for fill in fitting}.values())


def _holds(dtype: torch.dtype, fill: float | str) -> bool:
    """Whether a dtype has this value, exactly."""
    if isinstance(fill, str):
        return dtype is not torch.bool
    if dtype.is_floating_point or dtype.is_complex:
        return not math.isfinite(fill) or abs(fill) <= torch.finfo(dtype).max
    if not math.isfinite(fill) or fill != int(fill):
        return False
    if dtype is torch.bool:
        return fill in (0, 1)
    limits = torch.iinfo(dtype)
    return limits.min <= fill <= limits.max
