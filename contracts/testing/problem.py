"""One form of a call as a constraint problem: its axes and scalar arguments are the variables, the
expression rules and computed axes the conditions, and a solution becomes a plan.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import expressions
from ..axes import Anonymous, Axis, Computed, Fixed, Named, Variadic
from ..expressions import Binary, Incomputable, Logical, Node, Unary, Unbound
from ..model import Argument, Declaration
from ..rules.base import Rule
from ..rules.custom import Custom
from ..rules.expression import Expression, When
from ..rules.tensor import Device, Dtype, SameDtype
from ..spec import (
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
from . import samples
from .plans import Plan, TensorPlan
from .search import Condition, constants, expression, solve

SMALL = (2, 3, 4, 5)
PREFERRED_DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32),
    *(torch.bool, torch.uint8, torch.complex64, torch.float64),
)
SHAPES: tuple[tuple[int, ...], ...] = (
    *((2,), (), (2, 3), (1,), (0,), (1, 1), (2, 3, 4), (2, 1, 2, 3)),
)
"""What a variadic axis may stand for, in order of preference."""


@dataclass(frozen=True)
class Form:
    """What a call looks like before it has sizes."""

    absent: frozenset[str] = frozenset()
    """Optional arguments that are None."""
    length: int = 2
    """Items in each container."""
    branch: int = 0
    """Which branch of every union; the last one where there are fewer."""
    ones: bool = False
    """Axes that may broadcast have size 1."""
    dtype: torch.dtype | None = None
    """The dtype of every tensor that may have it."""
    device: str | None = None
    """The device of every tensor, where it is not what the rules say."""


class Problem:
    """The sizes of one form of call."""

    def __init__(
        self, declaration: Declaration, form: Form, given: Mapping[str, Any] | None = None
    ) -> None:
        self.declaration = declaration
        self.form = form
        self.given = dict(given or {})
        self.nodes = [node for rule in declaration.rules for node in _nodes(rule)]
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
            for tensor, label in self._present(spec, name):
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

    def _present(self, spec: Spec, label: str) -> Iterator[tuple[TensorSpec, str]]:
        """The tensors of a value in this form; the items of a container are alike."""
        match spec:
            case TensorSpec():
                yield spec, label
            case OptionalSpec(inner=inner):
                yield from self._present(inner, label)
            case UnionSpec(branches=branches):
                branch = branches[min(self.form.branch, len(branches) - 1)]
                yield from self._present(branch, label)
            case ItemsSpec(item=item) if self.form.length:
                yield from self._present(item, f"{label}[]")
            case TupleSpec(items=items):
                for index, item in enumerate(items):
                    yield from self._present(item, f"{label}[{index}]")

    # -- conditions

    def conditions(self, broken: Rule | None = None) -> list[Condition]:
        """What a solution has to obey; `broken` is the one rule that it has to break."""
        spared = frozenset(getattr(broken, "names", ()))
        found = [
            self._computable(axis)
            for name in self.declaration.names.tensors
            if name not in self.form.absent
            for tensor, _ in self._present(self.declaration.argument(name).inner, name)
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
                for tensor, label in self._present(self.declaration.argument(name).inner, name):
                    for index, axis in enumerate(tensor.shape.axes):
                        found |= _axis_names(axis, f"{label}:{index}")
            else:
                found.add(name)
        return frozenset(found)

    def _with_tensors(self, names: frozenset[str], env: Mapping[str, Any]) -> dict[str, Any]:
        """`env` with tensors of no memory in place of those names."""
        shadows = {
            name: self._value(self.declaration.argument(name).inner, name, name, env)
            for name in names & self.declaration.names.single
            if name not in self.form.absent
        }
        return {
            **env,
            **{
                name: torch.empty_strided(
                    shadow.shape, shadow.dense_strides(), dtype=shadow.dtype, device="meta"
                )
                for name, shadow in shadows.items()
            },
        }

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
        return None if found is None else self.plan(found)

    def plan(self, env: Mapping[str, Any]) -> Plan:
        """The call that a solution describes."""
        values = {
            argument.name: self._argument(argument, env) for argument in self.declaration.arguments
        }
        sizes = {name: env[name] for name in self.domains if name in env}
        return Plan(values, sizes)

    def _argument(self, argument: Argument, env: Mapping[str, Any]) -> Any:
        name = argument.name
        if name in self.form.absent:
            return None
        if name in self.given or isinstance(argument.inner, ValueSpec | AnySpec):
            return env.get(name)
        return self._value(argument.inner, name, name, env)

    def _value(self, spec: Spec, argument: str, label: str, env: Mapping[str, Any]) -> Any:
        match spec:
            case TensorSpec():
                return TensorPlan(
                    shape=self._shape(spec, label, env),
                    dtype=self.dtype(argument, spec),
                    device=self.device(argument),
                    kind=spec.array_type,
                )
            case OptionalSpec(inner=inner):
                return self._value(inner, argument, label, env)
            case UnionSpec(branches=branches):
                branch = branches[min(self.form.branch, len(branches) - 1)]
                return self._value(branch, argument, label, env)
            case ItemsSpec(container=container, item=item, key=key):
                items = [
                    self._value(item, argument, f"{label}[]", env) for _ in range(self.form.length)
                ]
                if hasattr(container, "keys"):
                    return dict(zip(_keys(key, len(items)), items, strict=True))
                return tuple(items) if container is tuple else items
            case TupleSpec(items=specs):
                return tuple(
                    self._value(item, argument, f"{label}[{index}]", env)
                    for index, item in enumerate(specs)
                )
            case ValueSpec():
                return samples.sample(spec, argument)
        return None

    def _shape(self, spec: TensorSpec, label: str, env: Mapping[str, Any]) -> tuple[int, ...]:
        shape: list[int] = []
        for index, axis in enumerate(spec.shape.axes):
            ones = self.form.ones and getattr(axis, "broadcast", False)
            match axis:
                case Variadic(name=name):
                    sizes = env[name or f"{label}:{index}"]
                    shape += [1] * len(sizes) if ones else sizes
                case _ if ones:
                    shape.append(1)
                case Fixed(size=size):
                    shape.append(size)
                case Named(name=name):
                    shape.append(max(0, env[name]))
                case Computed(expression=node):
                    shape.append(_loosely(node, env))
                case Anonymous():
                    shape.append(env[f"{label}:{index}"])
        return tuple(shape)

    def dtype(self, argument: str, spec: TensorSpec) -> torch.dtype:
        """What the annotation, `dtype` and `same_dtype` rules leave, in order of preference."""
        allowed = self.allowed_dtypes(argument, spec)
        if self.form.dtype in allowed:
            return self.form.dtype
        return next((dtype for dtype in PREFERRED_DTYPES if dtype in allowed), allowed[0])

    @functools.cache  # noqa: B019 - a problem lives as long as its solutions
    def allowed_dtypes(self, argument: str, spec: TensorSpec) -> tuple[torch.dtype, ...]:
        allowed = self._own_dtypes(argument, spec)
        for rule in self.declaration.rules:
            if isinstance(rule, SameDtype) and argument in rule.names:
                for name in rule.names:
                    for tensor in tensor_specs(self.declaration.argument(name).spec):
                        shared = self._own_dtypes(name, tensor)
                        allowed = tuple(dtype for dtype in allowed if dtype in shared) or allowed
        return allowed

    def _own_dtypes(self, argument: str, spec: TensorSpec) -> tuple[torch.dtype, ...]:
        allowed = PREFERRED_DTYPES if spec.dtypes is None else spec.dtypes
        for rule in self.declaration.rules:
            if isinstance(rule, Dtype) and argument in rule.names:
                both = tuple(dtype for dtype in rule.dtypes if dtype in allowed)
                allowed = both or (rule.dtypes if spec.dtypes is None else allowed)
        return allowed

    def device(self, argument: str) -> str:
        if self.form.device is not None:
            return self.form.device
        for rule in self.declaration.rules:
            if isinstance(rule, Device) and argument in rule.names:
                return str(rule.device)
        return "cpu"


def _nodes(rule: Rule) -> Iterator[Node]:
    match rule:
        case Expression(node=node):
            yield node
        case When(condition=condition, rule=inner):
            yield condition.node
            yield from _nodes(inner)


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


def _keys(spec: Spec, count: int) -> list[Any]:
    names = [f"item{index}" for index in range(count)]
    if not isinstance(spec, ValueSpec) or samples.fits(spec, "item0"):
        return names
    fitting = [value for value in (*range(count), *samples.SAMPLES) if samples.fits(spec, value)]
    hashable = [value for value in fitting if getattr(value, "__hash__", None) is not None]
    return hashable[:count] if len(hashable) >= count else [samples.sample(spec, "key")] * count


def _loosely(node: Node, env: Mapping[str, Any]) -> int:
    """A computed size; where it leaves something over, rounded down, since nobody will judge it."""
    for candidate in (node, _floored(node)):
        try:
            size = expressions.evaluate(candidate, env)
        except (Incomputable, Unbound):
            continue
        if isinstance(size, int | float) and math.isfinite(size):
            return max(0, int(size))
    return 1


def _floored(node: Node) -> Node:
    match node:
        case Binary(operator=operator, left=left, right=right):
            exact = "//" if operator == "/" else operator
            return Binary(exact, _floored(left), _floored(right))
    return node
