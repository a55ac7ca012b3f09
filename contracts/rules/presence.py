"""Rules on which optional arguments are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ContractDefinitionError, Violation
from .base import Call, Code, Names, Rule


@dataclass(frozen=True)
class Requires(Rule):
    needed: str
    when: str = ""

    opaque = False

    @property
    def text(self) -> str:
        return f"{self.when} requires {self.needed}" if self.when else f"requires {self.needed}"

    def identified(self) -> Rule:
        return self if self.id else replace(self, id=self.text.replace(" ", "-"))

    def resolve(self, names: Names) -> Rule:
        for name in filter(None, (self.needed, self.when)):
            if name not in names.optional:
                known = "never None" if name in names.arguments else "not an argument"
                raise ContractDefinitionError(f"requires: {name!r} is {known}")
        return self

    def emit(self, code: Code) -> None:
        needed = f"{code.name(self.needed)} is not None"
        code.require(f"{code.name(self.when)} is None or {needed}" if self.when else needed)

    def judge(self, call: Call) -> Iterator[Violation]:
        present = call.env.get(self.when) is not None if self.when else True
        if present and call.env.get(self.needed) is None:
            because = f", because {self.when} is given" if self.when else ""
            yield self.violation(
                call,
                f"{self.needed} is None, expected a value{because}",
                argument=self.needed,
                expected="a value",
                actual="None",
            )


def requires(
    needed: str, *, when: str = "", id: str = "", hint: str | None = None, **more: Any
) -> Requires:
    """The optional argument `needed` is given (whenever the optional argument `when` is)."""
    return Requires(needed, when, id=id, hint=hint, **more)
