"""The order in which arguments bind their axes, so that no name is needed before it is known.

The generated check and the explaining path both follow it: tensors that are always there, then
optional ones, then containers, then unions; then sizes that are computed from others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from . import expressions
from .axes import Computed, Named, Variadic
from .expressions import Incomputable
from .model import Argument, Declaration
from .spec import (
    AnySpec,
    ItemsSpec,
    OptionalSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
    ValueSpec,
    tensor_specs,
)

R = TypeVar("R")

OUTVOTED = 3
"""Tensors that agree on an axis against the first one: then the first is the one to blame."""


def _once(function: Callable[[Declaration], R]) -> Callable[[Declaration], R]:
    """Computed once for a declaration, and kept with it: what a contract holds dies with it."""
    name = f"_{function.__name__}"

    @functools.wraps(function)
    def computed(declaration: Declaration) -> R:
        kept = vars(declaration)
        if name not in kept:
            kept[name] = function(declaration)
        found: R = kept[name]
        return found

    return computed


@_once
def by_kind(declaration: Declaration) -> tuple[list[Argument], ...]:
    """Tensors that are always there, optional ones, containers, and whatever has a union."""
    plain, optional, containers, unions = [], [], [], []
    for argument in declaration.arguments:
        if isinstance(argument.inner, ValueSpec | AnySpec):
            continue
        if _has_union(argument.spec):
            unions.append(argument)
        elif isinstance(argument.spec, TensorSpec):
            plain.append(argument)
        elif isinstance(argument.inner, TensorSpec):
            optional.append(argument)
        else:
            containers.append(argument)
    return plain, optional, containers, unions


def _has_union(spec: Spec) -> bool:
    match spec:
        case UnionSpec():
            return True
        case OptionalSpec(inner=inner) | ItemsSpec(item=inner):
            return _has_union(inner)
        case TupleSpec(items=items):
            return any(map(_has_union, items))
    return False


def axis_names(spec: Spec) -> set[str]:
    """The names that a spec can bind."""
    return {
        axis.name
        for tensor in tensor_specs(spec)
        for axis in tensor.shape.axes
        if isinstance(axis, Named | Variadic) and axis.name is not None
    }


def computed_names(tensor: TensorSpec) -> set[str]:
    """The names that a tensor's computed axes need."""
    return set().union(
        *(
            expressions.value_names(axis.expression)
            for axis in tensor.shape.axes
            if isinstance(axis, Computed)
        )
    )


@_once
def broadcast_names(declaration: Declaration) -> set[str]:
    """Names that stand somewhere as `#name` or `*#name`."""
    return {
        axis.name
        for argument in declaration.arguments
        for tensor in tensor_specs(argument.spec)
        for axis in tensor.shape.axes
        if isinstance(axis, Named | Variadic) and axis.broadcast and axis.name is not None
    } - declaration.sizes


@_once
def broadcast_variadics(declaration: Declaration) -> list[str]:
    """Names that stand somewhere as `*#name`."""
    return sorted(
        {
            axis.name
            for argument in declaration.arguments
            for tensor in tensor_specs(argument.spec)
            for axis in tensor.shape.axes
            if isinstance(axis, Variadic) and axis.broadcast and axis.name is not None
        }
    )


def broadcast_shapes(
    exact: tuple[int, ...] | None, loose: list[tuple[int, ...]]
) -> tuple[int, ...] | None:
    """The shape of `*name`, from its exact occurrence and those that may broadcast to it."""
    shape = exact
    for other in loose:
        shape = other if shape is None else _broadcast(shape, other)
    if exact is not None and shape != exact:
        raise Incomputable(f"they do not broadcast to {exact}")
    return shape


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    joined = []
    for x, y in zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True):
        if x != y and x != 1 and y != 1:
            raise Incomputable(f"{b} does not broadcast with {a}")
        joined.append(y if x == 1 else x)
    return tuple(joined)
