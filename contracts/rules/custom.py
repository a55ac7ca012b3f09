"""The escape hatch: a rule that is a Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ContractDefinitionError, Violation
from .base import Call, Code, Names, Rule


@dataclass(frozen=True)
class Custom(Rule):
    function: Callable[..., Any]
    demand: str
    arguments: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.demand

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.arguments)

    def identified(self) -> Rule:
        name = getattr(self.function, "__name__", "custom").strip("<>")
        return self if self.id else replace(self, id=f"custom({name})")

    def resolve(self, names: Names) -> Rule:
        arguments = tuple(inspect.signature(self.function).parameters)
        for name in arguments:
            if name not in names.arguments | names.axes:
                raise ContractDefinitionError(
                    f"custom: {name!r} is neither an argument nor an axis"
                )
        return replace(self, arguments=arguments)

    def emit(self, code: Code) -> None:
        function = code.constant(self.function, "custom")
        code.require(f"{function}({', '.join(map(code.name, self.arguments))})")

    def judge(self, call: Call) -> Iterator[Violation]:
        if call.refused(frozenset(self.arguments)):
            return
        try:
            if self.function(*(call.env.get(name) for name in self.arguments)):
                return
            message = f"{self.demand} does not hold"
        except Exception as error:
            message = f"{self.demand} cannot be judged ({type(error).__name__}: {error})"
        facts = [call.origin(name) for name in self.arguments]
        yield self.violation(
            call,
            message,
            expected=self.demand,
            origin="; ".join(fact for fact in facts if fact) or None,
        )


def custom(
    function: Callable[..., Any], demand: str, *, id: str = "", hint: str | None = None, **more: Any
) -> Custom:
    """The escape hatch: `function` takes arguments and axes by their names (None where absent)
    and says whether the call obeys; `demand` says what it demands. It must not read contents."""
    return Custom(function, demand, id=id, hint=hint, **more)
