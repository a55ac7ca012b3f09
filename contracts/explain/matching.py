"""Values against specs: what does not match, and the sizes that what matches binds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import expressions
from ..axes import Axis, Computed, Fixed, Named, Variadic
from ..errors import Violation
from ..expressions import Incomputable, Unbound
from ..rules.tensor import dtype_fault
from ..spec import (
    AnySpec,
    ItemsSpec,
    OptionalSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
    ValueSpec,
    is_bearable,
)
from ..tensors import describe
from .places import Binding, axis_title, entries, placed, root, shape_of


@dataclass
class Matching:
    """The arguments of one call, matched one after the other."""

    arguments: dict[str, Any]
    bindings: dict[str, Binding] = field(default_factory=dict)
    refused_names: set[str] = field(default_factory=set)
    """Arguments and axes that are part of a violation; `x:type` and `x:dtype` say of which."""
    known: dict[str, Any] = field(default_factory=dict)
    """`env`, once nothing can bind any more."""
    loose: dict[str, list[tuple[tuple[int, ...], str, str]]] = field(default_factory=dict)
    """The shapes that may broadcast to each `*name`, with their places and rules."""

    @property
    def env(self) -> dict[str, Any]:
        return self.known or self._env()

    def _env(self) -> dict[str, Any]:
        present = {name: value for name, value in self.arguments.items() if value is not None}
        return {**present, **{name: bound.size for name, bound in self.bindings.items()}}

    def origin(self, name: str) -> str | None:
        if name in self.bindings:
            bound = self.bindings[name]
            if bound.axis is None:
                return f"{name} is {bound.size}"
            return f"{name} is {bound.size}, from {bound.where()}"
        if name in self.arguments and not isinstance(self.arguments[name], torch.Tensor):
            return f"{name} is {describe(self.arguments[name])}"
        return None

    def match(self, spec: Spec, value: Any, label: str, rule: str) -> Iterator[Violation]:
        """Violations of everything but the computed axes; binds as it goes."""
        match spec:
            case TensorSpec():
                yield from self.match_tensor(spec, value, label, rule)
            case AnySpec():
                return
            case ValueSpec():
                if not is_value(spec, value):
                    yield self.wrong_type(spec, value, label, rule)
            case OptionalSpec(inner=inner):
                if value is not None:
                    yield from self.match(inner, value, label, rule)
            case UnionSpec():
                yield from self.match_union(spec, value, label, rule)
            case TupleSpec(items=items):
                if not isinstance(value, tuple) or len(value) != len(items):
                    yield self.wrong_type(spec, value, label, rule)
                    return
                for index, item in enumerate(items):
                    yield from self.match(
                        item, value[index], f"{label}[{index}]", f"{rule}[{index}]"
                    )
            case ItemsSpec(container=container, item=item, key=key):
                if not isinstance(value, container):
                    yield self.wrong_type(spec, value, label, rule)
                    return
                for place, entry in entries(value):
                    if key != AnySpec():
                        yield from self.match(key, place, f"{label} key {place!r}", f"{rule}[key]")
                    yield from self.match(item, entry, f"{label}[{place!r}]", f"{rule}[]")

    def wrong_type(self, spec: Spec, value: Any, label: str, rule: str) -> Violation:
        self.refused_names |= {root(label), f"{root(label)}:type"}
        advice: dict[str, Any] = {}
        if isinstance(spec, TensorSpec) and type(value).__module__ == "numpy":
            advice = {"fix": f"{label} = torch.from_numpy({label})"}
        return Violation(
            rule=f"{rule}-type",
            message=f"{label} is {describe(value)}, expected {spec.text}",
            argument=label,
            expected=spec.text,
            actual=describe(value),
            **advice,
        )

    def match_tensor(
        self, spec: TensorSpec, value: Any, label: str, rule: str
    ) -> Iterator[Violation]:
        if not isinstance(value, spec.array_type):
            yield self.wrong_type(spec, value, label, rule)
            return
        if spec.dtypes is not None and value.dtype not in spec.dtypes:
            self.refused_names.add(f"{label}:dtype")
            yield Violation(rule=f"{rule}-dtype", **dtype_fault(label, value, spec.dtypes))
        if spec.shape.axes == (Variadic(),):
            return
        try:
            shape = tuple(value.shape)
        except RuntimeError:  # a strided nested tensor has no shape
            yield self.wrong_type(spec, value, label, rule)
            return
        least, exact = spec.shape.least_rank, spec.shape.variadic is None
        if len(shape) < least or (exact and len(shape) != least):
            self.refused_names.add(root(label))
            wanted = f"[{', '.join(map(str, spec.shape.axes))}]"
            yield Violation(
                rule=f"{rule}-rank",
                message=f"{label} has {counted(len(shape), 'axis', 'axes')}, expected "
                f"{'' if exact else 'at least '}{least}: {wanted}",
                argument=label,
                expected=f"{counted(least, 'axis', 'axes')} {wanted}",
                actual=f"{counted(len(shape), 'axis', 'axes')} {list(shape)}",
            )
            return
        for index, axis, size, key in placed(spec, shape):
            if isinstance(axis, Named):
                bound = self.bindings.get(axis.name)
                if bound is not None and bound.size == size:
                    continue
            yield from self.match_axis(axis, size, label, index, f"{rule}-{key}")

    def match_axis(
        self, axis: Axis, size: Any, label: str, index: int, rule: str
    ) -> Iterator[Violation]:
        match axis:
            case Fixed(size=fixed, broadcast=broadcast):
                if size != fixed and not (broadcast and size == 1):
                    yield self.wrong_size(axis, size, fixed, label, index, rule, None)
            case Variadic(name=str(name), broadcast=True):
                self.loose.setdefault(name, []).append((size, label, rule))
            case Named(name=name) | Variadic(name=str(name)):
                if axis.broadcast and size == 1:
                    return
                bound = self.bindings.get(name)
                if bound is None:
                    self.bindings[name] = Binding(size, label, index)
                elif bound.size != size:
                    self.refused_names.add(name)
                    yield self.wrong_size(axis, size, bound.size, label, index, rule, name)

    def wrong_size(
        self,
        axis: Axis,
        size: Any,
        expected: Any,
        label: str,
        index: int,
        rule: str,
        name: str | None,
    ) -> Violation:
        title = axis_title(axis)
        details: dict[str, Any] = {}
        if name is not None:
            details["origin"] = self.origin(name)
        if fix := size_fix(title, size, expected, label, index, broadcastable=name is not None):
            details["fix"] = fix
        places = "axes" if isinstance(axis, Variadic) else f"axis {index}"
        shown = f" ({title})" if title else ""
        return Violation(
            rule=rule,
            message=f"{label} {places}{shown} is {size}, expected {expected}",
            argument=label,
            axis=index,
            expected=str(expected),
            actual=str(size),
            **details,
        )

    def match_union(
        self, spec: UnionSpec, value: Any, label: str, rule: str
    ) -> Iterator[Violation]:
        reasons = []
        for branch in spec.branches:
            before, refused = dict(self.bindings), set(self.refused_names)
            fault = next(self.match(branch, value, label, rule), None)
            if fault is None:
                fault = next(self.computed(branch, value, label), None)
            if fault is None:
                return
            self.bindings, self.refused_names = before, refused
            reasons.append(f"{branch.text} ({fault.message})")
        self.refused_names |= {root(label), f"{root(label)}:type"}
        yield Violation(
            rule=f"{rule}-type",
            message=f"{label} matches none of: {'; '.join(reasons)}",
            argument=label,
            expected=spec.text,
            actual=describe(value),
        )

    def computed(self, spec: Spec, value: Any, label: str, rule: str = "") -> Iterator[Violation]:
        """Violations of computed axes; those without `actual` could not be computed."""
        rule = rule or label
        match spec:
            case OptionalSpec(inner=inner) if value is not None:
                yield from self.computed(inner, value, label, rule)
            case TupleSpec(items=items) if isinstance(value, tuple) and len(value) == len(items):
                for index, item in enumerate(items):
                    yield from self.computed(
                        item, value[index], f"{label}[{index}]", f"{rule}[{index}]"
                    )
            case ItemsSpec(container=container, item=item) if isinstance(value, container):
                for place, entry in entries(value):
                    yield from self.computed(item, entry, f"{label}[{place!r}]", f"{rule}[]")
            case TensorSpec() if spec.shape.has_computed:
                shape = shape_of(spec, value)
                for index, axis, size, key in placed(spec, shape) if shape is not None else ():
                    if isinstance(axis, Computed):
                        yield from self.computed_axis(axis, size, label, index, f"{rule}-{key}")

    def computed_axis(
        self, axis: Computed, size: Any, label: str, index: int, rule: str
    ) -> Iterator[Violation]:
        names = sorted(expressions.value_names(axis.expression))
        env = self.env
        if any(env.get(name) is None or f"{name}:type" in self.refused_names for name in names):
            return
        if axis.broadcast and size == 1:
            return
        title = axis_title(axis)
        facts = "; ".join(filter(None, map(self.origin, names))) or None
        common: dict[str, Any] = {
            "rule": rule,
            "argument": label,
            "axis": index,
            "origin": facts,
        }
        try:
            expected = expressions.evaluate(axis.expression, env)
        except Unbound:
            return
        except Incomputable as error:
            yield Violation(
                message=f"{label} axis {index} should be {title}, but {error}",
                expected=" ".join(names),
                **common,
            )
            return
        if expected != size:
            yield Violation(
                message=f"{label} axis {index} ({title}) is {size}, expected {expected}",
                expected=str(expected),
                actual=str(size),
                **common,
            )


def size_fix(
    title: str, size: Any, expected: Any, label: str, index: int, *, broadcastable: bool
) -> str | None:
    if not (broadcastable and isinstance(size, int) and isinstance(expected, int)):
        return None
    if "head" in title and "dim" not in title and 0 < size < expected and expected % size == 0:
        return f"{label} = {label}.repeat_interleave({expected // size}, dim={index})"
    return None


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def is_value(spec: ValueSpec, value: Any) -> bool:
    if spec.types is not None:
        return isinstance(value, spec.types)
    return is_bearable(value, spec.hint)
