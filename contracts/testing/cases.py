"""Generated tests as data: calls with the rule that each breaks, and defects of the contract."""

from __future__ import annotations

from dataclasses import dataclass

from ..facts import facts
from ..model import Declaration
from .plans import Plan


@dataclass(frozen=True)
class Case:
    """One generated call, and the one rule it breaks; None for a legal call."""

    text: str
    plan: Plan
    breaks: str | None = None
    besides: frozenset[str] = frozenset()
    """Device rules that it breaks as well, because this machine lacks the device."""
    contents: bool = False
    """The rule is one on contents: only modes that read them refuse the call."""

    @property
    def id(self) -> str:
        return (
            f"legal: {self.text}" if self.breaks is None else f"{self.breaks} broken: {self.text}"
        )


@dataclass(frozen=True)
class Defect:
    """What is wrong with a contract itself; `rule` is None where it is about the whole."""

    rule: str | None
    reason: str

    @property
    def text(self) -> str:
        return self.reason

    @property
    def id(self) -> str:
        return f"defect: {self.rule or 'no legal call'}"


@dataclass(frozen=True)
class Suite:
    """What a contract says about itself, as tests."""

    declaration: Declaration
    cases: tuple[Case, ...]
    defects: tuple[Defect, ...]

    @property
    def legal(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.breaks is None)

    @property
    def broken(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.breaks is not None)


def declared(declaration: Declaration) -> tuple[str, ...]:
    """The ids of every rule and every fact of an annotation, as violations carry them."""
    return (
        *(fact.id for fact in facts(declaration)),
        *(rule.id for rule in declaration.rules),
    )
