"""Forms of a call beside the plain one: more items, another branch, dtype or device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..model import Declaration
from ..rules.expression import When
from ..rules.tensor import Device
from ..spec import ItemsSpec, UnionSpec, tensor_specs
from ..tensors import dtype_name
from .forms import Form
from .making import PREFERRED_DTYPES
from .problem import Problem

LONGEST = 16
"""Items in a container, at most."""


def needed_forms(declaration: Declaration, form: Form, given: Mapping[str, Any]) -> Iterator[Form]:
    """The form, then with what rules may ask for: numbers of items, a device."""
    for length in _lengths(declaration, given) or [form.length]:
        yield replace(form, length=length)
    for rule in declaration.rules:
        if isinstance(rule, When) and isinstance(rule.rule, Device):
            yield replace(form, device=str(rule.rule.device))


def other_forms(
    declaration: Declaration, form: Form, given: Mapping[str, Any]
) -> Iterator[tuple[str, Form]]:
    """Other lengths of containers, branches of unions, broadcast sizes and dtypes, with a name."""
    for length in _lengths(declaration, given):
        yield f"{length} items", replace(form, length=length)
    specs = [argument.inner for argument in declaration.arguments]
    branches = max((len(s.branches) for s in specs if isinstance(s, UnionSpec)), default=0)
    for branch in range(1, branches):
        yield f"branch {branch} of a union", replace(form, branch=branch)
    tensors = [tensor for spec in specs for tensor in tensor_specs(spec)]
    if any(getattr(axis, "broadcast", False) for t in tensors for axis in t.shape.axes):
        yield "broadcast axes of 1", replace(form, ones=True)
    if any(t.dtypes is None or len(t.dtypes) > 1 for t in tensors):
        allowed = {dtype for t in tensors for dtype in t.dtypes or PREFERRED_DTYPES}
        for dtype in PREFERRED_DTYPES:
            if dtype in allowed:
                yield dtype_name(dtype), replace(form, dtype=dtype)


def _lengths(declaration: Declaration, given: Mapping[str, Any]) -> list[int]:
    """How many items containers may hold, those that rules name included."""
    names = [a.name for a in declaration.arguments if isinstance(a.inner, ItemsSpec)]
    if not names:
        return []
    problem = Problem(declaration, Form(), given)
    marks = [mark for name in names for mark in problem.landmarks(name) if mark <= LONGEST]
    return list(dict.fromkeys([2, 1, 3, 0, *marks]))
