"""What annotations demand, fact by fact, each with the id that its violations carry.

`kv: Float8e4m3fn[Tensor, "s_kv h_kv=1 d_qk"]` states that kv is a tensor (`kv-type`), its dtype
(`kv-dtype`), that it has three axes (`kv-rank`), that the second is 1 (`kv-h_kv`), and that d_qk is
the size that another argument gave it (`kv-d_qk`). Where an axis is named first there is nothing
to compare, and no fact; unless so many others have it that the first can be the odd one out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .axes import ANY_SHAPE, Anonymous, Axis, Named, Variadic, axis_key
from .binding import OUTVOTED, axis_names, by_kind
from .errors import ContractDefinitionError
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

_PACKED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

Kind = Literal["type", "dtype", "rank", "axis"]


Places = dict[str, tuple[str, int | None]]
"""Where axes get their sizes: an argument and the position of its axis, counted from the end after
a variadic one; without a position, an int argument of the same name."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One demand of one annotation."""

    id: str
    kind: Kind
    argument: str
    label: str
    """The argument, or the item of it (`feats[]`), that the fact is about."""
    spec: Spec
    axis: Axis | None = None
    index: int | None = None
    """Where the axis stands; counted from the end after a variadic one."""


def facts(declaration: Declaration) -> tuple[Fact, ...]:
    """Every fact that some call can break, in the order of the signature."""
    bound = set(declaration.sizes) | _outvotable(declaration)
    found: dict[str, Fact] = {}
    values = [a for a in declaration.arguments if isinstance(a.inner, ValueSpec)]
    for argument in (*values, *(a for kind in by_kind(declaration) for a in kind)):
        for fact in _facts(argument, argument.spec, argument.name, bound):
            found.setdefault(fact.id, fact)
        if declaration.signature.parameters[argument.name].kind in _PACKED:
            found.pop(f"{argument.name}-type", None)  # Python itself packs `*args` and `**kwargs`
    order = [argument.name for argument in declaration.arguments]
    return tuple(sorted(found.values(), key=lambda fact: order.index(fact.argument)))


def _outvotable(declaration: Declaration) -> set[str]:
    """Axes that stand in so many tensors that even the first can be the odd one out."""
    plain, optional, _, _ = by_kind(declaration)
    axes = [
        axis
        for argument in (*plain, *optional)
        for tensor in tensor_specs(argument.spec)
        for axis in tensor.shape.axes
        if isinstance(axis, Named) and not axis.broadcast
    ]
    return {axis.name for axis in axes if axes.count(axis) > OUTVOTED}


def _facts(argument: Argument, spec: Spec, label: str, bound: set[str]) -> Iterator[Fact]:
    match spec:
        case OptionalSpec(inner=inner):
            yield from _facts(argument, inner, label, bound)
        case ValueSpec() | UnionSpec():
            yield Fact(f"{label}-type", "type", argument.name, label, spec)
        case TupleSpec(items=items):
            yield Fact(f"{label}-type", "type", argument.name, label, spec)
            for index, item in enumerate(items):
                yield from _facts(argument, item, f"{label}[{index}]", bound)
        case ItemsSpec(item=item, key=key):
            yield Fact(f"{label}-type", "type", argument.name, label, spec)
            if not isinstance(key, AnySpec):
                yield Fact(f"{label}[key]-type", "type", argument.name, f"{label}[key]", key)
            # The second item is compared with the first: within a container every name is bound.
            yield from _facts(argument, item, f"{label}[]", bound | set(axis_names(item)))
        case TensorSpec():
            yield from _tensor_facts(argument, spec, label, bound)


def _tensor_facts(
    argument: Argument, spec: TensorSpec, label: str, bound: set[str]
) -> Iterator[Fact]:
    yield Fact(f"{label}-type", "type", argument.name, label, spec)
    if spec.dtypes is not None:
        yield Fact(f"{label}-dtype", "dtype", argument.name, label, spec)
    if spec.shape == ANY_SHAPE:
        return
    if spec.shape.variadic is None or spec.shape.least_rank:
        yield Fact(f"{label}-rank", "rank", argument.name, label, spec)
    for position, axis in enumerate(spec.shape.axes):
        index = _counted(spec, position)
        if isinstance(axis, Anonymous) or axis == Variadic():
            continue
        first = isinstance(axis, Named | Variadic) and axis.name not in bound
        if isinstance(axis, Named | Variadic) and axis.name is not None:
            bound.add(axis.name)
        if not first:
            key = axis_key(axis, index)
            yield Fact(f"{label}-{key}", "axis", argument.name, label, spec, axis, index)


def check_notes(declaration: Declaration) -> None:
    """ContractDefinitionError where `about` speaks of a fact that the annotations do not state."""
    if not declaration.notes:
        return
    known = [fact.id for fact in facts(declaration)]
    named = [name for note in declaration.notes for name in note.facts]
    for name in named:
        if name not in known:
            raise ContractDefinitionError(
                f"about: {declaration.name} states no fact {name!r}; it states {', '.join(known)}"
            )
        if named.count(name) > 1:
            raise ContractDefinitionError(f"about: {name!r} is annotated twice")


def places(declaration: Declaration, *, besides: str | None = None) -> Places:
    """Where each axis gets its size, by the first argument that has it; `besides` is left out
    where another has it too."""
    found: Places = {axis: (axis, None) for axis in declaration.sizes}
    arguments = [a for kind in by_kind(declaration) for a in kind]
    arguments.sort(key=lambda argument: argument.name == besides)
    for argument in arguments:
        items = "" if isinstance(argument.inner, TensorSpec | UnionSpec) else "[0]"
        for tensor in tensor_specs(argument.spec):
            for position, axis in enumerate(tensor.shape.axes):
                if isinstance(axis, Named | Variadic) and axis.name is not None:
                    index = _counted(tensor, position)
                    found.setdefault(axis.name, (argument.name + items, index))
    return found


def _counted(tensor: TensorSpec, position: int) -> int:
    """Where an axis stands in every shape: counted from the end after a variadic one."""
    variadic = tensor.shape.variadic
    after = variadic is not None and position > variadic
    return position - len(tensor.shape.axes) if after else position
