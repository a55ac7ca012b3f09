"""A refused call -> every violation, with where each expectation comes from and how to mend it.

This path interprets the declaration instead of running generated code. It is slower, and it is
the definition: the generated check may refuse only what this refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import expressions
from .axes import Anonymous, Axis, Computed, Fixed, Named, Variadic, axis_key
from .binding import OUTVOTED, broadcast_shapes, broadcast_variadics, by_kind
from .errors import ContractError, Violation
from .expressions import Incomputable, Unbound
from .model import Argument, Declaration
from .reference import explain_command
from .rules.expression import Expression, When
from .rules.tensor import dtype_fault
from .rules.values import Values
from .spec import (
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
from .tensors import describe, tensors_in


@dataclass(frozen=True)
class Binding:
    """The size of an axis and the place that gave it."""

    size: Any
    argument: str
    axis: int | None

    def where(self) -> str:
        return self.argument if self.axis is None else f"{self.argument} axis {self.axis}"


class Mismatch(Exception):
    """A value does not match a spec."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


@dataclass
class Judgement:
    """One call being judged. Implements `rules.base.Call`."""

    declaration: Declaration
    arguments: dict[str, Any]
    bindings: dict[str, Binding] = field(default_factory=dict)
    found: list[Violation] = field(default_factory=list)
    refused_names: set[str] = field(default_factory=set)
    known: dict[str, Any] = field(default_factory=dict)
    """`env`, once nothing can bind any more."""
    loose: dict[str, list[tuple[tuple[int, ...], str, str]]] = field(default_factory=dict)

    # -- what rules use

    @property
    def env(self) -> dict[str, Any]:
        return self.known or self._env()

    def _env(self) -> dict[str, Any]:
        present = {name: value for name, value in self.arguments.items() if value is not None}
        return {**present, **{name: bound.size for name, bound in self.bindings.items()}}

    def tensors(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        if f"{name}:type" not in self.refused_names:
            yield from tensors_in(self.arguments.get(name), name)

    def origin(self, name: str) -> str | None:
        if name in self.bindings:
            bound = self.bindings[name]
            if bound.axis is None:
                return f"{name} is {bound.size}"
            return f"{name} is {bound.size}, from {bound.where()}"
        if name in self.arguments and not isinstance(self.arguments[name], torch.Tensor):
            return f"{name} is {describe(self.arguments[name])}"
        return None

    def refused(self, names: frozenset[str]) -> bool:
        """Whether any of these names is already part of a violation."""
        return not names.isdisjoint(self.refused_names)

    def conditions(self, name: str) -> list[expressions.Node]:
        """What the contract's expression rules demand of this name alone."""
        return [
            rule.node
            for rule in self.declaration.rules
            if isinstance(rule, Expression) and rule.names == {name}
        ]

    # -- judging

    def run(self) -> None:
        declaration = self.declaration
        kinds = by_kind(declaration)
        self.match_arguments({})
        if len(self.found) >= OUTVOTED and (elected := self.outvote([*kinds[0], *kinds[1]])):
            self.match_arguments(elected)
        self.join_broadcasts()
        self.known = self._env()
        deferred: list[Violation] = []
        for argument in (argument for kind in kinds[:3] for argument in kind):
            for fault in self.computed(
                argument.spec, self.arguments.get(argument.name), argument.name
            ):
                if fault.actual is None:  # could not be computed: a rule may say why
                    deferred.append(fault)
                else:
                    self.report(fault)
        order = {argument.name: i for i, argument in enumerate(declaration.arguments)}
        self.found.sort(key=lambda fault: order.get(_root(fault.argument), len(order)))
        for rule in declaration.rules:
            for fault in list(rule.judge(self)):
                self.report(fault)
                self.refused_names |= rule_names(rule)
        for fault in deferred:
            names = set(fault.expected.split()) if fault.expected else set()
            if names.isdisjoint(self.refused_names):
                self.report(fault)

    def match_arguments(self, elected: dict[str, Binding]) -> None:
        """Match every argument with its spec, given sizes that some axes have before."""
        declaration = self.declaration
        self.found.clear()
        self.refused_names.clear()
        self.loose.clear()
        self.bindings = {
            axis: Binding(value, axis, None)
            for axis in sorted(declaration.sizes)
            if isinstance(value := self.arguments.get(axis), int | torch.SymInt)
        }
        self.bindings = {**elected, **self.bindings}
        for argument in declaration.arguments:
            if isinstance(argument.inner, ValueSpec):
                self.match_argument(argument)
        for kind in by_kind(declaration):
            for argument in kind:
                self.match_argument(argument)

    def report(self, fault: Violation) -> None:
        if (
            fault.fix
            and fault.argument
            and not _is_assignable(self.arguments.get(_root(fault.argument)), fault.argument)
        ):
            fault = replace(fault, fix=None)
        note = self.declaration.note(fault.rule)
        self.found.append(fault if note is None else note.annotate(fault, self.env))

    def match_argument(self, argument: Argument) -> None:
        value = self.arguments.get(argument.name)
        for fault in self.match(argument.spec, value, argument.name, argument.name):
            self.report(fault)

    def match(self, spec: Spec, value: Any, label: str, rule: str) -> Iterator[Violation]:
        """Violations of everything but the computed axes; binds as it goes."""
        match spec:
            case AnySpec():
                return
            case ValueSpec():
                if not _is_value(spec, value):
                    yield self.wrong_type(spec, value, label, rule)
            case OptionalSpec(inner=inner):
                if value is not None:
                    yield from self.match(inner, value, label, rule)
            case TensorSpec():
                yield from self.match_tensor(spec, value, label, rule)
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
                for place, entry in _entries(value):
                    if key != AnySpec():
                        yield from self.match(key, place, f"{label} key {place!r}", f"{rule}[key]")
                    yield from self.match(item, entry, f"{label}[{place!r}]", f"{rule}[]")

    def wrong_type(self, spec: Spec, value: Any, label: str, rule: str) -> Violation:
        self.refused_names |= {_root(label), f"{_root(label)}:type"}
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

    def outvote(self, arguments: list[Argument]) -> dict[str, Binding]:
        """The axes of which the first tensor alone has a size that all others contradict.

        A size is otherwise what the first tensor says. But where one tensor stands against three
        or more, the caller wants to hear of the one.
        """
        places: dict[str, list[Binding]] = {}
        for argument in arguments:
            spec = argument.inner
            assert isinstance(spec, TensorSpec)
            shape = shape_of(spec, self.arguments.get(argument.name))
            for index, axis, size, _ in placed(spec, shape) if shape is not None else ():
                if isinstance(axis, Named) and not axis.broadcast:
                    places.setdefault(axis.name, []).append(Binding(size, argument.name, index))
        elected = {}
        for name, (first, *others) in places.items():
            agreed = all(other.size == others[0].size for other in others)
            if len(others) >= OUTVOTED and agreed and first.size != others[0].size:
                elected[name] = others[0]
        return elected

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
            self.refused_names.add(_root(label))
            wanted = f"[{', '.join(map(str, spec.shape.axes))}]"
            yield Violation(
                rule=f"{rule}-rank",
                message=f"{label} has {_count(len(shape), 'axis', 'axes')}, expected "
                f"{'' if exact else 'at least '}{least}: {wanted}",
                argument=label,
                expected=f"{_count(least, 'axis', 'axes')} {wanted}",
                actual=f"{_count(len(shape), 'axis', 'axes')} {list(shape)}",
            )
            return
        for index, axis, size, key in placed(spec, shape):
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
        if fix := _size_fix(title, size, expected, label, index, broadcastable=name is not None):
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
        self.refused_names |= {_root(label), f"{_root(label)}:type"}
        yield Violation(
            rule=f"{rule}-type",
            message=f"{label} matches none of: {'; '.join(reasons)}",
            argument=label,
            expected=spec.text,
            actual=describe(value),
        )

    def join_broadcasts(self) -> None:
        """Names that only ever broadcast are 1 where no tensor says more; `*#names` join."""
        for argument in self.declaration.arguments:
            if isinstance(argument.spec, TensorSpec) and not self.refused(
                frozenset({argument.name})
            ):
                for axis in argument.spec.shape.axes:
                    if isinstance(axis, Named) and axis.broadcast:
                        self.bindings.setdefault(axis.name, Binding(1, argument.name, None))
        for name in broadcast_variadics(self.declaration):
            exact = self.bindings.get(name)
            joined: tuple[int, ...] | None = exact.size if exact else None
            first = exact.where() if exact else None
            seen: list[tuple[int, ...]] = []
            for shape, label, rule in self.loose.get(name, []):
                try:
                    joined = broadcast_shapes(exact.size if exact else None, [*seen, shape])
                    seen.append(shape)
                except Incomputable as error:
                    self.report(
                        Violation(
                            rule=rule,
                            message=f"{label} axes (*{name}) are {shape}: {error}",
                            argument=label,
                            expected=f"axes that broadcast to {joined}",
                            actual=str(shape),
                            origin=f"*{name} is {joined}, from {first}" if first else None,
                        )
                    )
                first = first or label
            if joined is not None:
                self.bindings.setdefault(name, Binding(joined, first or name, None))

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
                for place, entry in _entries(value):
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
    axes, position = spec.shape.axes, spec.shape.variadic
    for index, axis in enumerate(axes):
        if isinstance(axis, Anonymous):
            continue
        if position is None or index < position:
            yield index, axis, shape[index], axis_key(axis, index)
        elif index == position:
            stop = len(shape) - (len(axes) - position - 1)
            if isinstance(axis, Variadic) and axis.name is not None:
                yield index, axis, shape[position:stop], axis_key(axis, index)
        else:
            place = len(shape) - len(axes) + index
            yield place, axis, shape[place], axis_key(axis, index - len(axes))


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


def _size_fix(
    title: str, size: Any, expected: Any, label: str, index: int, *, broadcastable: bool
) -> str | None:
    if not (broadcastable and isinstance(size, int) and isinstance(expected, int)):
        return None
    if "head" in title and "dim" not in title and 0 < size < expected and expected % size == 0:
        return f"{label} = {label}.repeat_interleave({expected // size}, dim={index})"
    return None


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def rule_names(rule: Any) -> frozenset[str]:
    names = getattr(rule, "names", ())
    return frozenset(names) if isinstance(names, frozenset) else frozenset()


def _is_value(spec: ValueSpec, value: Any) -> bool:
    if spec.types is not None:
        return isinstance(value, spec.types)
    return is_bearable(value, spec.hint)


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    yield from value.items() if hasattr(value, "items") else enumerate(value)


def _is_assignable(value: Any, label: str) -> bool:
    """Whether `label = ...` is a statement that works: items of tuples cannot be assigned."""
    if "[" not in label or isinstance(value, str):
        return True
    if isinstance(value, MutableMapping):
        return all(_is_assignable(item, label) for item in value.values())
    if isinstance(value, MutableSequence):
        return all(_is_assignable(item, label) for item in value)
    return not isinstance(value, Sequence | Mapping)


def _root(label: str | None) -> str:
    return (label or "").partition("[")[0].partition(" ")[0]


def violations(declaration: Declaration, arguments: dict[str, Any]) -> tuple[Violation, ...]:
    """Every broken rule of a call, given by argument name; empty where the call is right."""
    judgement = Judgement(declaration, arguments)
    judgement.run()
    return tuple(judgement.found)


def violations_of_contents(
    declaration: Declaration, arguments: dict[str, Any]
) -> tuple[Violation, ...]:
    """The broken rules on contents, of a call that breaks no other. Reads tensors, and waits."""
    judgement = Judgement(declaration, arguments)
    judgement.run()
    judgement.found.clear()
    for condition, rule in contents_rules(declaration):
        if condition is None or condition.applies(judgement.env):
            for fault in rule.judge_contents(judgement):
                judgement.report(fault if condition is None else condition.qualified(fault))
    return tuple(judgement.found)


def contents_rules(declaration: Declaration) -> list[tuple[When | None, Values]]:
    """The rules on contents, each with the condition that it stands under."""
    found: list[tuple[When | None, Values]] = []
    for rule in declaration.rules:
        if isinstance(rule, Values):
            found.append((None, rule))
        elif isinstance(rule, When) and isinstance(rule.rule, Values):
            found.append((rule, rule.rule))
    return found


def violations_of_result(
    declaration: Declaration, arguments: dict[str, Any], result: Any
) -> tuple[Violation, ...]:
    """Where a result differs from the return annotation, given the call that made it."""
    judgement = Judgement(declaration, arguments)
    judgement.run()
    judgement.found.clear()
    for fault in (
        *judgement.match(declaration.returns, result, "return", "return"),
        *judgement.computed(declaration.returns, result, "return"),
    ):
        judgement.report(fault)
    return tuple(judgement.found)


def sizes(declaration: Declaration, arguments: dict[str, Any]) -> dict[str, Any]:
    """The axis sizes of a call, as far as they can be known."""
    judgement = Judgement(declaration, arguments)
    judgement.run()
    return {name: bound.size for name, bound in judgement.bindings.items()}


def error(declaration: Declaration, arguments: dict[str, Any]) -> ContractError | None:
    """The error for a call, or None where the call is right."""
    found = violations(declaration, arguments)
    return refusal_of(declaration, arguments, found) if found else None


def refusal_of(
    declaration: Declaration, arguments: dict[str, Any], found: tuple[Violation, ...]
) -> ContractError:
    """The error for violations of a call, with a line about each argument."""
    shown = {name: arguments[name] for name in arguments if name != declaration.receiver}
    width = max(map(len, shown), default=0)
    lines = [f"{name:<{width}}  {describe(value)}" for name, value in shown.items()]
    return refusal(declaration, found, lines)


def refusal(
    declaration: Declaration, found: tuple[Violation, ...], lines: list[str]
) -> ContractError:
    """The error for violations that were found, with the command that tells more."""
    command = explain_command(declaration.function, found[0].rule)
    return ContractError(declaration.name, found, lines, command)


def violations_of_sizes(declaration: Declaration, sizes: dict[str, Any]) -> tuple[Violation, ...]:
    """The broken rules among those that need nothing but these axes and scalar arguments."""
    judgement = Judgement(declaration, {})
    judgement.bindings = {name: Binding(size, name, None) for name, size in sizes.items()}
    given = frozenset(sizes)
    for rule in declaration.rules:
        if rule_names(rule) and rule_names(rule) <= given:
            judgement.found += list(rule.judge(judgement))
    return tuple(judgement.found)
