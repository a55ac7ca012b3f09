"""Rules written as expressions: conditions over axes, scalar arguments and tensor metadata."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import expressions
from ..errors import ContractDefinitionError, Violation
from ..expressions import Incomputable, Node, Unbound
from ..tensors import address, misread
from ..transforms import beneath
from .base import Call, Code, Names, Rule, check_fix, format_fix


@dataclass(frozen=True)
class Expression(Rule):
    """A condition over axes, scalar arguments and tensor metadata; see `rule`."""

    source: str
    node: Node = field(init=False)
    optional: frozenset[str] = frozenset()
    """The names in it without which it is skipped."""

    opaque = False

    def __post_init__(self) -> None:
        node = expressions.parse(self.source)
        if not (expressions.is_condition(node) or isinstance(node, expressions.Name)):
            raise ContractDefinitionError(f"the rule {self.source!r} is not a condition")
        object.__setattr__(self, "node", node)

    @property
    def text(self) -> str:
        return " ".join(self.source.split())

    @functools.cached_property
    def pointers(self) -> bool:  # type: ignore[override]
        return expressions.reads_pointers(self.node)

    @functools.cached_property
    def names(self) -> frozenset[str]:
        return expressions.value_names(self.node) | expressions.none_names(self.node)

    def resolve(self, names: Names) -> Expression:
        tensors, lengths = expressions.tensor_names(self.node), expressions.len_names(self.node)
        values = expressions.value_names(self.node)
        asked = expressions.none_names(self.node)
        what = f"in the rule {self.text!r}"
        if isinstance(self.node, expressions.Name) and self.node.id not in names.flags:
            raise ContractDefinitionError(
                f"the rule {self.text!r} is neither a condition nor a bool argument"
            )
        if not values | asked:
            raise ContractDefinitionError(f"no call can decide the rule {self.text!r}")
        for name in sorted(tensors - names.single):
            raise ContractDefinitionError(f"{name!r} is not a tensor argument, {what}")
        for name in sorted(lengths & names.axes):
            raise ContractDefinitionError(f"the axis {name!r} is a number, not a sequence, {what}")
        for name in sorted(values - tensors):
            sequence = name in lengths and name not in names.single
            if name in names.tensors and not sequence and name not in names.axes:
                raise ContractDefinitionError(
                    f"the tensor {name!r} may only stand inside a tensor function, {what}"
                )
            if name in names.variadic and name not in lengths:
                raise ContractDefinitionError(f"*{name} may only stand inside len(), {what}")
            if name not in names.axes | names.arguments | names.variadic:
                raise ContractDefinitionError(
                    f"{name!r} is neither an axis nor an argument, {what}"
                )
        for name in sorted(asked - names.arguments):
            raise ContractDefinitionError(f"{name!r} is not an argument, {what}")
        unsure = (names.optional | names.unsure) & values
        for name in sorted(expressions.unguarded(self.node, asked & unsure)):
            raise ContractDefinitionError(f"{name!r} may be None where it is used, {what}")
        return replace(self, optional=frozenset(unsure - asked))

    def check_fix(self, names: Names) -> None:
        if self.fix is not None:
            check_fix(self.fix, names.numbers | {"nearest", "extra"}, self.text)

    def emit(self, code: Code) -> None:
        with code.present(*sorted(self.optional)):
            code.require(expressions.emit(self.node, code.name, code.constant))

    def judge(self, call: Call) -> Iterator[Violation]:
        env = call.env
        if any(env.get(name) is None for name in self.optional) or mistyped(call, self.names):
            return
        if self.pointers:
            for name in expressions.tensor_names(self.node):
                x = env.get(name)
                if not isinstance(x, torch.Tensor):
                    return
                if misread(x) is None:
                    memory = beneath(x)
                    if memory is None or address(x) is None:
                        return
                    env = {**env, name: memory}
        try:
            if expressions.evaluate(self.node, env):
                return
            reason = ""
        except Unbound:
            return
        except Incomputable as error:
            if call.refused(self.names):
                return
            reason = f" ({error})"
        yield self._explain(call, reason)

    def _explain(self, call: Call, reason: str) -> Violation:
        tensors = expressions.tensor_names(self.node)
        known = [name for name in sorted(self.names, key=self.source.find) if name not in tensors]
        facts = [call.origin(name) for name in known]
        parts = [fact for fact in facts if fact] + self._tensor_facts(call)
        details: dict[str, Any] = {"expected": self.text}
        message = f"{self.text} does not hold{reason}"
        if len(known) == 1 and not tensors and _is_size(call.env.get(known[0])):
            name = known[0]
            value = call.env[name]
            below, above = expressions.nearest(call.conditions(name), name, call.env)
            allowed = " or ".join(str(v) for v in (below, above) if v is not None)
            if allowed:
                message += f"; nearest {'sizes' if ' or ' in allowed else 'size'}: {allowed}"
            details["actual"] = f"{name}={value}"
            if above is not None and self.fix is not None:
                env = {**call.env, "nearest": above, "extra": above - value}
                details["fix"] = format_fix(self.fix, env)
                return Violation(
                    rule=self.id,
                    message=message,
                    hint=self.hint,
                    origin="; ".join(parts) or None,
                    **details,
                )
        return self.violation(call, message, origin="; ".join(parts) or None, **details)

    def _tensor_facts(self, call: Call) -> list[str]:
        facts = []
        for node in expressions.walk(self.node):
            if isinstance(node, expressions.Call) and node.function in expressions.TENSOR_FUNCTIONS:
                try:
                    value = expressions.evaluate(node, call.env)
                except (Unbound, Incomputable):
                    continue
                facts.append(f"{expressions.to_text(node)} is {value}")
        return list(dict.fromkeys(facts))


def mistyped(call: Call, names: frozenset[str]) -> bool:
    """Whether one of these arguments is not what its annotation says: nothing is to be asked of
    it then, least of all a tensor that came in place of a number."""
    return call.refused(frozenset(f"{name}:type" for name in names))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def rule(
    expression: str,
    *,
    id: str = "",
    hint: str | None = None,
    fix: str | None = None,
    note: str | None = None,
    upstream: tuple[str, ...] = (),
) -> Expression:
    """An expression rule with a name, a hint or a fix; a bare string is the same without them.

    rule("h_q % 64 == 0", hint="pad the heads", fix="q = pad(q, (0, 0, 0, {extra}))")
    """
    return Expression(expression, id=id, hint=hint, fix=fix, note=note, upstream=upstream)


@dataclass(frozen=True)
class When(Rule):
    condition: Expression
    rule: Rule

    @property
    def text(self) -> str:
        return f"when {self.condition.text}: {self.rule.text}"

    @property
    def names(self) -> frozenset[str]:
        return self.condition.names | frozenset(getattr(self.rule, "names", ()))

    @property
    def pointers(self) -> bool:  # type: ignore[override]
        return self.condition.pointers or self.rule.pointers

    @property
    def opaque(self) -> bool:  # type: ignore[override]
        return self.rule.opaque

    @property
    def values(self) -> bool:  # type: ignore[override]
        return self.rule.values

    def resolve(self, names: Names) -> Rule:
        return replace(self, condition=self.condition.resolve(names), rule=self.rule.resolve(names))

    def check_fix(self, names: Names) -> None:
        self.rule.check_fix(names)

    def identified(self) -> Rule:
        identified = super().identified()
        assert isinstance(identified, When)
        return replace(identified, rule=replace(self.rule, id=identified.id))

    def emit(self, code: Code) -> None:
        if self.condition.pointers:
            self.emit_under(code, self.rule.emit_layout, self.rule.emit)
        else:
            self.emit_under(code, self.rule.emit)

    def emit_layout(self, code: Code) -> None:
        if not self.condition.pointers:
            self.emit_under(code, self.rule.emit_layout)

    @property
    def tangents(self) -> bool:  # type: ignore[override]
        return self.rule.tangents

    def emit_tangents(self, code: Code) -> None:
        self.emit_under(code, self.rule.emit_tangents)

    def emit_under(self, code: Code, *tests: Callable[[Code], None]) -> None:
        """Write tests that run where the condition holds."""
        with code.present(*sorted(self.condition.optional)):
            condition = expressions.emit(self.condition.node, code.name, code.constant)
            with code.block(f"if {condition}:"):
                for emit in tests:
                    emit(code)

    def applies(self, env: Mapping[str, Any]) -> bool:
        """Whether the condition holds; where it cannot be judged, the rule is skipped."""
        if any(env.get(name) is None for name in self.condition.optional):
            return False
        try:
            return bool(expressions.evaluate(self.condition.node, env))
        except (Unbound, Incomputable):
            return False

    def judge(self, call: Call) -> Iterator[Violation]:
        if not mistyped(call, self.condition.names) and self.applies(call.env):
            for fault in self.rule.judge(call):
                yield self.qualified(fault)

    def qualified(self, fault: Violation) -> Violation:
        return replace(fault, message=f"{fault.message} (when {self.condition.text})")


def when(condition: str, then: Rule | str, *, id: str = "", hint: str | None = None) -> When:
    """`then` must hold in the calls in which `condition` does. The id is that of `then`, where it
    has one and none is given."""
    inner = Expression(then) if isinstance(then, str) else then
    if isinstance(inner, When):  # one condition, of both
        condition = f"({condition}) and ({inner.condition.source})"
        inner, id, hint = inner.rule, id or inner.id, hint or inner.hint
    inner = replace(inner, hint=inner.hint or hint)
    return When(Expression(condition), inner, id=id or inner.id, hint=hint)
