"""Where things stand in a call: labels, shapes, and the sizes that axes are bound to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

from ..axes import Anonymous, Axis, Computed, Fixed, Named, Variadic
from ..spec import TensorSpec


@dataclass(frozen=True)
class Binding:
    """The size of an axis and the place that gave it."""

    size: Any
    argument: str
    axis: int | None

    def where(self) -> str:
        return self.argument if self.axis is None else f"{self.argument} axis {self.axis}"


def shape_of(spec: TensorSpec, value: Any) -> tuple[Any, ...] | None:
    """The shape of a value, if it is a tensor of the rank that its spec asks for."""
    if not isinstance(value, spec.array_type):
        return None
    try:
        shape = tuple(value.shape)
    except RuntimeError:  # a strided nested tensor has no shape
        return None
    least, exact = spec.shape.least_rank, spec.shape.variadic is None
    return None if len(shape) < least or (exact and len(shape) != least) else shape


def placed(spec: TensorSpec, shape: tuple[Any, ...]) -> Iterator[tuple[int, Axis, Any, str]]:
    """Each axis with its position, size and key; a variadic one has the sizes it covers."""
    axes, position, keys = spec.shape.axes, spec.shape.variadic, spec.shape.keys
    for index, axis in enumerate(axes):
        if isinstance(axis, Anonymous):
            continue
        if position is None or index < position:
            yield index, axis, shape[index], keys[index]
        elif index == position:
            stop = len(shape) - (len(axes) - position - 1)
            if isinstance(axis, Variadic) and axis.name is not None:
                yield index, axis, shape[position:stop], keys[index]
        else:
            place = len(shape) - len(axes) + index
            yield place, axis, shape[place], keys[index]


def axis_title(axis: Axis) -> str:
    """What to call an axis in a message."""
    match axis:
        case Named(name=name):
            return name
        case Fixed(label=label):
            return label or ""
        case Computed():
            return str(axis).lstrip("#")
        case Variadic(name=name):
            return f"*{name}" if name else "..."
    return "_"


def entries(value: Any) -> Iterator[tuple[Any, Any]]:
    yield from value.items() if hasattr(value, "items") else enumerate(value)


def root(label: str | None) -> str:
    return (label or "").partition("[")[0].partition(" ")[0]


def is_assignable(value: Any, label: str) -> bool:
    """Whether `label = ...` is a statement that works: items of tuples cannot be assigned."""
    if "[" not in label or isinstance(value, str):
        return True
    if isinstance(value, MutableMapping):
        return all(is_assignable(item, label) for item in value.values())
    if isinstance(value, MutableSequence):
        return all(is_assignable(item, label) for item in value)
    return not isinstance(value, Sequence | Mapping)
