"""Mutants of a contract: each rule and each fact of an annotation dropped, and turned around."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from contracts import Violation, explain
from contracts.axes import ANY_SHAPE, Anonymous, Axis, Computed, Fixed, Named, Variadic
from contracts.expressions import Binary, Const, Name
from contracts.facts import Fact, facts
from contracts.model import Declaration
from contracts.rules.base import Call, Code, Rule
from contracts.rules.tensor import TensorRule
from contracts.rules.values import Values, values
from contracts.spec import (
    ItemsSpec,
    OptionalSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
    ValueSpec,
)

STRANGER = ValueSpec("str", str, (str,))
"""A type that no argument of the contracts here has."""
UNLIKELY = (torch.complex128,)


@dataclass(frozen=True)
class Mutant:
    """A declaration with one demand less, or one turned around."""

    demand: str
    """The id of the rule or fact."""
    how: str
    declaration: Declaration


@dataclass(frozen=True)
class Inverted(Rule):
    """Broken exactly where another rule holds."""

    rule: Rule | None = None
    declaration: Declaration | None = None

    @property
    def pointers(self) -> bool:  # type: ignore[override]
        assert self.rule is not None
        return self.rule.pointers

    def judge(self, call: Call) -> Iterator[Violation]:
        assert self.rule is not None
        if not list(self.rule.judge(call)):
            yield Violation(self.id, f"not: {self.rule.text}")

    def emit(self, code: Code) -> None:
        assert self.rule is not None
        assert self.declaration is not None
        alone = replace(self.declaration, rules=(self.rule,))
        names = [argument.name for argument in alone.arguments]

        def breaks(*values: Any) -> bool:
            found = explain.violations(alone, dict(zip(names, values, strict=True)))
            return any(fault.rule == self.id for fault in found)

        code.require(f"{code.constant(breaks, 'breaks')}({', '.join(map(code.name, names))})")


def mutants(declaration: Declaration) -> Iterator[Mutant]:
    """Every demand of a contract dropped, and inverted."""
    for rule in declaration.rules:
        yield from _of_rule(declaration, rule)
    for fact in facts(declaration):
        for how, change in _of_fact(fact):
            arguments = tuple(
                replace(argument, spec=_rewritten(argument.spec, argument.name, fact.label, change))
                if argument.name == fact.argument
                else argument
                for argument in declaration.arguments
            )
            yield Mutant(fact.id, how, replace(declaration, arguments=arguments))


def _of_rule(declaration: Declaration, rule: Rule) -> Iterator[Mutant]:
    def instead(*rules: Rule) -> Declaration:
        kept = [other if other is not rule else None for other in declaration.rules]
        place = kept.index(None)
        found = [*declaration.rules[:place], *rules, *declaration.rules[place + 1 :]]
        return replace(declaration, rules=tuple(found))

    yield Mutant(rule.id, "dropped", instead())
    yield Mutant(rule.id, "inverted", instead(_inverted(declaration, rule)))
    if isinstance(rule, TensorRule) and len(rule.names) > 1:
        for name in rule.names:
            rest = tuple(other for other in rule.names if other != name)
            yield Mutant(rule.id, f"without {name}", instead(replace(rule, names=rest)))


def _inverted(declaration: Declaration, rule: Rule) -> Rule:
    if isinstance(rule, Values):
        return values(f"not ({rule.text})", id=rule.id).resolve(declaration.names)
    return Inverted(id=rule.id, rule=rule, declaration=declaration)


Change = Callable[[Spec], Spec]


def _of_fact(fact: Fact) -> Iterator[tuple[str, Change]]:
    match fact.kind:
        case "type":
            yield "dropped", lambda spec: UnionSpec((spec, STRANGER))
            yield "inverted", lambda spec: STRANGER
        case "dtype":
            yield "dropped", _tensor(lambda spec: replace(spec, dtypes=None))
            yield "inverted", _tensor(lambda spec: replace(spec, dtypes=UNLIKELY))
        case "rank":
            if isinstance(fact.spec, TensorSpec) and fact.spec.shape.variadic is None:
                yield "dropped", _axes(lambda axes: (Variadic(), *axes))
            yield "inverted", _axes(lambda axes: (Anonymous(), *axes))
        case "axis":
            place, axis = fact.index, fact.axis
            assert place is not None
            assert axis is not None
            anything: Axis = Variadic() if isinstance(axis, Variadic) else Anonymous()
            yield "dropped", _axes(lambda axes: _with_axis(axes, place, anything))
            if (larger := _larger(axis)) is not None:
                yield "inverted", _axes(lambda axes: _with_axis(axes, place, larger))


def _larger(axis: Axis) -> Axis | None:
    match axis:
        case Fixed(size=size):
            return replace(axis, size=size + 1)
        case Named(name=name):
            return Computed(Binary("+", Name(name), Const(1)))
        case Computed(expression=expression):
            return replace(axis, expression=Binary("+", expression, Const(1)))
    return None


def _with_axis(axes: tuple[Axis, ...], place: int, axis: Axis) -> tuple[Axis, ...]:
    changed = list(axes)
    changed[place] = axis
    return tuple(changed)


def _axes(change: Callable[[tuple[Axis, ...]], tuple[Axis, ...]]) -> Change:
    return _tensor(
        lambda spec: replace(spec, shape=replace(ANY_SHAPE, axes=change(spec.shape.axes)))
    )


def _tensor(change: Callable[[TensorSpec], TensorSpec]) -> Change:
    def changed(spec: Spec) -> Spec:
        assert isinstance(spec, TensorSpec)
        return change(spec)

    return changed


def _rewritten(spec: Spec, label: str, wanted: str, change: Change) -> Spec:
    """The spec with `change` at the part that a fact's label names."""
    match spec:
        case OptionalSpec(inner=inner):
            return OptionalSpec(_rewritten(inner, label, wanted, change))
        case _ if label == wanted:
            return change(spec)
        case ItemsSpec(item=item):
            return replace(spec, item=_rewritten(item, f"{label}[]", wanted, change))
        case TupleSpec(items=items):
            return replace(
                spec,
                items=tuple(
                    _rewritten(item, f"{label}[{index}]", wanted, change)
                    for index, item in enumerate(items)
                ),
            )
    return spec
