"""Rules on what tensors contain, judged only in the modes that read contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..contents import condition as language
from ..contents.condition import Condition, Unjudgeable
from ..contents.offence import Offence, find
from ..contents.plainly import with_contents
from ..errors import ContractDefinitionError, Violation
from ..expressions import Unbound
from .base import Call, Code, Names, Rule, format_fix


@dataclass(frozen=True)
class Values(Rule):
    """A condition on the contents of tensors, judged in the modes that read contents."""

    source: str
    condition: Condition | None = None
    """Known once the rule is resolved."""

    values = True
    opaque = False

    @property
    def text(self) -> str:
        return " ".join(self.source.split())

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.condition.names) if self.condition else frozenset()

    def resolve(self, names: Names) -> Values:
        what = f"in values({self.text!r})"
        condition = language.condition(self.text, language.parse(self.source), names.tensors)
        for name in condition.tensors:
            if name not in names.single:
                raise ContractDefinitionError(f"{name!r} holds several tensors, {what}")
        for name in sorted((condition.names | condition.asked) - set(condition.tensors)):
            if name not in names.axes | names.arguments | names.variadic:
                raise ContractDefinitionError(
                    f"{name!r} is neither an axis nor an argument, {what}"
                )
        return replace(self, condition=condition)

    def emit(self, code: Code) -> None:
        """Metadata modes never read contents."""

    def judge(self, call: Call) -> Iterator[Violation]:
        """Metadata cannot break it."""
        return iter(())

    def judge_contents(self, call: Call) -> Iterator[Violation]:
        """Judge the elements, and wait for the answer."""
        condition, env = self.resolved, call.env
        if any(env.get(name) is None for name in condition.names):
            return
        tensors = {}
        for name in condition.tensors:
            x = with_contents(env[name])
            if x is None:
                return
            tensors[name] = x
        try:
            offence = find(condition, tensors, condition.numbers_of(env))
        except Unbound:
            return
        except Unjudgeable as error:
            yield self.violation(call, f"{self.text} cannot be judged: {error}")
            return
        if offence is not None:
            facts = [call.origin(name) for name in self.plain_names]
            yield self.broken(offence, [fact for fact in facts if fact], env)

    def broken(self, offence: Offence, facts: list[str], env: Mapping[str, Any]) -> Violation:
        """What an offence says to the caller."""
        condition = self.resolved
        places = offence.places(condition)
        violation = Violation(
            rule=self.id,
            message=offence.message(condition),
            argument=condition.tensors[0],
            expected=self.text,
            actual=", ".join(f"{place}={value}" for place, value in places),
            origin="; ".join([*facts, offence.extent()]),
            hint=self.hint,
        )
        if self.fix is None:
            return violation
        return replace(violation, fix=format_fix(self.fix, dict(env)))

    @property
    def resolved(self) -> Condition:
        assert self.condition is not None, "the rule belongs to no contract yet"
        return self.condition

    @property
    def plain_names(self) -> list[str]:
        """Axes and scalar arguments, in the order in which they are written."""
        condition = self.resolved
        return sorted(condition.names - set(condition.tensors), key=self.source.find)


def values(condition: str, *, id: str = "", hint: str | None = None, **more: Any) -> Values:
    """A condition on contents, judged in the modes `debug` and `async` alone.

    The rule language with tensors' names standing for their elements: `+ - * / // % **`,
    comparisons, `in`, `and`, `or`, `not`, `min max abs cdiv isfinite isnan`, axes and scalar
    arguments. Tensors broadcast. `sorted(x)` and `unique(x)` judge a tensor along its last axis.
    Every element has to obey. The rule is skipped in calls that leave out a tensor, an axis or an
    argument that it names.

    Integers are computed in int64, float64 elements in float64, and narrower floats in float32,
    as which numbers meet them; where integers meet floats, and where `/` divides them, all is
    computed in float64, exact up to 2**53. What `and` and `or` have decided is asked no further. An
    integer divisor of zero breaks the rule where it is reached; floats divide as IEEE 754 says.

    values("0 <= topk_length <= topk")
    values("isfinite(q_scale) and q_scale > 0")
    values("unique(slots)")
    """
    return Values(condition, id=id, hint=hint, **more)
