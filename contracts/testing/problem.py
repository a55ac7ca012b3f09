"""One form of a call as a constraint problem: its axes and scalar arguments are the variables, the
expression rules and computed axes the conditions, and a solution becomes a plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import expressions
from ..axes import Anonymous, Axis, Computed, Named, Variadic
from ..expressions import Incomputable, Logical, Node, Unary, Unbound
from ..model import Argument, Declaration
from ..rules.base import Rule
from ..rules.custom import Custom
from ..rules.expression import Expression, When
from ..spec import AnySpec, ValueSpec, tensor_specs
from . import samples
from .forms import Form
from .making import Maker
from .plans import Plan
from .search import Condition, expression, solve
from .suggestions import constants

SMALL = (2, 3, 4, 5)
SHAPES: tuple[tuple[int, ...], ...] = (
    *((2,), (), (2, 3), (1,), (0,), (1, 1), (2, 3, 4), (2, 1, 2, 3)),
)
"""What a variadic axis may stand for, in order of preference."""


class Problem:
    """The sizes of one form of call."""

    def __init__(
        self, declaration: Declaration, form: Form, given: Mapping[str, Any] | None = None
    ) -> None:
        self.declaration = declaration
        self.form = form
        self.given = dict(given or {})
        self.maker = Maker(declaration, form, self.given)
        self.nodes = [node for rule in declaration.rules for node in rule_nodes(rule)]
        self.nodes += [
            axis.expression
            for argument in declaration.arguments
            for tensor in tensor_specs(argument.spec)
            for axis in tensor.shape.axes
            if isinstance(axis, Computed)
        ]
        receiver = declaration.receiver
        self.fixed = {receiver: self.given[receiver]} if receiver in self.given else {}
        self.domains: dict[str, Sequence[Any]] = {}
        for argument in declaration.arguments:
            if argument.name not in form.absent:
                self._add(argument)

    # -- variables

    def _add(self, argument: Argument) -> None:
        name, spec = argument.name, argument.inner
        if name in self.given:
            self.fixed[name] = self.given[name]
        elif isinstance(spec, ValueSpec):
            if self._is_variable(argument):
                self.domains[name] = self._scalars(argument, spec)
            else:
                self.fixed[name] = self._sample(argument, spec)
        elif isinstance(spec, AnySpec):
            self.fixed[name] = self._default(argument)
        else:
            # Rules may ask whether it is there, and how long it is.
            self.fixed[name] = (0,) * self.form.length
            for tensor, label in self.form.tensors(spec, name):
                for index, axis in enumerate(tensor.shape.axes):
                    self._add_axis(axis, f"{label}:{index}")

    def _add_axis(self, axis: Axis, hidden: str) -> None:
        match axis:
            case Named(name=name) if name not in self.domains:
                self.domains[name] = self._sizes(name)
            case Variadic(name=name):
                self.domains.setdefault(name or hidden, SHAPES)
            case Anonymous():
                self.domains[hidden] = (2, 1, 0)

    def _is_variable(self, argument: Argument) -> bool:
        name = argument.name
        used = any(name in expressions.value_names(node) for node in self.nodes)
        return used or name in self.declaration.sizes

    def _sizes(self, name: str) -> list[int]:
        start = len(self.domains) % len(SMALL)
        small = [*SMALL[start:], *SMALL[:start], 1, 6, 7, 8, 0]
        return list(dict.fromkeys([*small, *self.landmarks(name)]))

    def _scalars(self, argument: Argument, spec: ValueSpec) -> list[Any]:
        default = self._parameter(argument).default
        numbers = {
            item.value
            for node in self.nodes
            if argument.name in expressions.value_names(node)
            for item in expressions.walk(node)
            if isinstance(item, expressions.Const) and item.value is not None
        }
        marks = self.landmarks(argument.name)
        near = sorted({n + step for n in numbers for step in (-1, 0, 1)} | numbers, key=repr)
        candidates = [default, 2, 3, 1, 4, 0, -1, *marks, 0.5, 1.0, *near, True, False]
        candidates += [*samples.SAMPLES]
        fitting = [value for value in candidates if samples.fits(spec, value)]
        if spec.hint is int:
            fitting = [value for value in fitting if not isinstance(value, bool)]
        unique = {(type(value), repr(value)): value for value in fitting if value is not None}
        if not unique:
            raise samples.NoSample(argument.name, spec)
        return list(unique.values())

    def landmarks(self, name: str) -> list[int]:
        """Sizes at and beside the constants that a variable is compared with or divided by, and
        at their sums and differences: the next multiple past a limit."""
        found = set().union(
            *(
                constants(node)
                for node in self.nodes
                if name in self.variables(expressions.value_names(node))
            )
        )
        near = {c + step for c in found for step in (-1, 0, 1)}
        near |= {a + b for a in found for b in found} | {a - b for a in found for b in found}
        return sorted(value for value in near if value >= 0)

    def _parameter(self, argument: Argument) -> inspect.Parameter:
        return self.declaration.signature.parameters[argument.name]

    def _sample(self, argument: Argument, spec: ValueSpec) -> Any:
        default = self._default(argument)
        if default is not None and samples.fits(spec, default):
            return default
        return samples.sample(spec, argument.name)

    def _default(self, argument: Argument) -> Any:
        default = self._parameter(argument).default
        return None if default is inspect.Parameter.empty or argument.factory else default

    # -- conditions

    def conditions(self, broken: Rule | None = None) -> list[Condition]:
        """What a solution has to obey; `broken` is the one rule that it has to break."""
        spared = frozenset(getattr(broken, "names", ()))
        found = [
            self._computable(axis)
            for name in self.declaration.names.tensors
            if name not in self.form.absent
            for tensor, _ in self.form.tensors(self.declaration.argument(name).inner, name)
            for axis in tensor.shape.axes
            if isinstance(axis, Computed)
            and spared.isdisjoint(expressions.value_names(axis.expression))
        ]
        for rule in self.declaration.rules:
            condition = self._of_rule(rule, negated=rule is broken)
            if condition is not None:
                found.append(condition)
        return found

    def _computable(self, axis: Computed) -> Condition:
        def holds(env: Mapping[str, Any]) -> bool:
            try:
                size = expressions.evaluate(axis.expression, env)
            except Incomputable:
                return False
            except Unbound:
                return True
            return isinstance(size, int) and size >= 0

        return Condition(expressions.value_names(axis.expression), holds)

    def _of_rule(self, rule: Rule, *, negated: bool) -> Condition | None:
        match rule:
            case Expression(node=node):
                return self.condition(node, rule.optional, negated=negated)
            case When(
                condition=Expression(node=when, optional=of_condition),
                rule=Expression(node=then, optional=of_rule),
            ):
                node = (
                    Logical("and", (when, Unary("not", then)))
                    if negated
                    else Logical("or", (Unary("not", when), then))
                )
                return self.condition(node, of_condition | of_rule)
            case Custom(function=function, arguments=names):

                def holds(env: Mapping[str, Any]) -> bool:
                    env = self._with_tensors(frozenset(names), env)
                    try:
                        return bool(function(*(env.get(name) for name in names))) is not negated
                    except Exception:
                        return negated

                return Condition(self.variables(frozenset(names)), holds)
        return None

    def condition(
        self, node: Node, optional: frozenset[str] = frozenset(), *, negated: bool = False
    ) -> Condition | None:
        """An expression as a condition of this form; None where the form does not decide it."""
        available = self.domains.keys() | self.fixed.keys()
        names = expressions.value_names(node)
        if expressions.reads_pointers(node) or not (optional & names) <= available:
            return None
        tensors = expressions.tensor_names(node)
        plain = expression(node, negated=negated)
        if not tensors:
            return plain
        return Condition(
            self.variables(names),
            lambda env: plain.holds(self._with_tensors(tensors, env)),
            node,
        )

    def variables(self, names: frozenset[str]) -> frozenset[str]:
        """The variables that these names depend on; a tensor depends on all that shape it."""
        found: set[str] = set()
        for name in names:
            if name in self.form.absent:
                continue
            if name in self.declaration.names.tensors and name not in self.domains:
                for tensor, label in self.form.tensors(self.declaration.argument(name).inner, name):
                    for index, axis in enumerate(tensor.shape.axes):
                        found |= _axis_names(axis, f"{label}:{index}")
            else:
                found.add(name)
        return frozenset(found)

    def _with_tensors(self, names: frozenset[str], env: Mapping[str, Any]) -> dict[str, Any]:
        """`env` with tensors of no memory in place of those names."""
        single = names & self.declaration.names.single - self.form.absent
        shadows = {name: replace(self.maker.tensor(name, env), device="meta") for name in single}
        return {**env, **{name: shadow.build(None) for name, shadow in shadows.items()}}

    # -- solutions

    def solve(
        self,
        fixed: Mapping[str, Any] | None = None,
        *,
        prefer: Mapping[str, Sequence[Any]] | None = None,
        broken: Rule | None = None,
        also: Sequence[Node] = (),
    ) -> Plan | None:
        """A call in which `fixed` and `also` hold and every rule but `broken` does.

        Only what sizes decide is looked at: whoever calls this judges the result.
        """
        fixed = dict(fixed or {})
        domains = {
            name: list(dict.fromkeys([*(prefer or {}).get(name, ()), *domain]))
            for name, domain in self.domains.items()
            if name not in fixed
        }
        extra = [condition for node in also if (condition := self.condition(node)) is not None]
        found = solve(domains, [*self.conditions(broken), *extra], {**self.fixed, **fixed})
        if found is None:
            return None
        return self.maker.plan(found, {name: found[name] for name in self.domains})


def rule_nodes(rule: Rule) -> Iterator[Node]:
    """The expressions of a rule, that of its condition included."""
    match rule:
        case Expression(node=node):
            yield node
        case When(condition=condition, rule=inner):
            yield condition.node
            yield from rule_nodes(inner)


def _axis_names(axis: Axis, hidden: str) -> frozenset[str]:
    match axis:
        case Named(name=name):
            return frozenset({name})
        case Variadic(name=name):
            return frozenset({name or hidden})
        case Computed(expression=node):
            return expressions.value_names(node)
        case Anonymous():
            return frozenset({hidden})
    return frozenset()
