"""Calls solved from a contract alone: the smallest legal one, and what a suite asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..errors import Violation
from ..explain import violations
from ..model import Declaration
from ..rules.base import Rule
from ..rules.expression import When
from ..rules.tensor import Device
from ..spec import tensor_specs
from .forms import Form, presences
from .making import PREFERRED_DTYPES
from .plans import Plan
from .problem import Problem
from .search import Exhausted


def example(declaration: Declaration, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """A small legal call, by argument name; `sizes` fixes axes and scalar arguments.

    Optional tensors are absent where the call is legal without them and `sizes` needs none.
    TypeError where `sizes` names what the contract does not have, ValueError where no legal call
    was found.
    """
    known = set(declaration.axes) | declaration.names.arguments
    for name in sizes:
        if name not in known:
            raise TypeError(f"{declaration.name} has no axis {name!r}; it has {sorted(known)}")
    for form in presences(declaration):
        plan = legal(declaration, form, sizes)
        if plan is not None and all(name in plan.sizes for name in sizes):
            return plan.build()
    wanted = ", ".join(f"{name}={size}" for name, size in sizes.items())
    raise ValueError(f"no legal call of {declaration.name} was found{wanted and f' with {wanted}'}")


def legal(
    declaration: Declaration,
    form: Form,
    sizes: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Plan | None:
    """A legal call of this form with these sizes."""
    for variant in _variants(declaration, form):
        plan = attempt(Problem(declaration, variant, given), sizes)
        if plan is not None and not broken_by(declaration, plan, given):
            return plan
    return None


def attempt(problem: Problem, sizes: Mapping[str, Any] | None = None, **wanted: Any) -> Plan | None:
    """A solution, or None where there is none or it is too far to look for."""
    fixed = {name: size for name, size in (sizes or {}).items() if name in problem.domains}
    try:
        return problem.solve(fixed, **wanted)
    except Exhausted:
        return None


def _variants(declaration: Declaration, form: Form) -> Iterator[Form]:
    """The form as it is, then with the dtypes and devices that conditional rules may ask for."""
    yield form
    for rule in declaration.rules:
        for device in _devices(rule):
            yield replace(form, device=str(device.device))
    allowed = {
        dtype
        for argument in declaration.arguments
        for spec in tensor_specs(argument.spec)
        for dtype in spec.dtypes or PREFERRED_DTYPES
    }
    if len(allowed) > 1:
        for dtype in PREFERRED_DTYPES:
            if dtype in allowed:
                yield replace(form, dtype=dtype)


def _devices(rule: Rule) -> Iterator[Device]:
    while isinstance(rule, When):
        rule = rule.rule
        if isinstance(rule, Device):
            yield rule


def judged(
    declaration: Declaration, plan: Plan, given: Mapping[str, Any] | None = None
) -> tuple[Violation, ...]:
    """What a call breaks; `given` may hold the receiver of a method."""
    arguments = plan.build(filled=False)
    receiver = declaration.receiver
    if receiver is not None and given is not None and receiver in given:
        arguments = {receiver: given[receiver], **arguments}
    return violations(declaration, arguments)


def broken_by(
    declaration: Declaration, plan: Plan, given: Mapping[str, Any] | None = None
) -> frozenset[str]:
    """The ids of all that a call breaks."""
    return frozenset(fault.rule for fault in judged(declaration, plan, given))
