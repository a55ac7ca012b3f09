"""Which rules a test session saw broken: counted while it runs, told at its end.

Imports nothing heavy: the pytest plugin holds one of these from start-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """What one contract declares, and what was seen."""

    rules: frozenset[str] = frozenset()
    facts: frozenset[str] = frozenset()
    fired: set[str] = field(default_factory=set)
    calls: int = 0

    @property
    def declared(self) -> frozenset[str]:
        return self.rules | self.facts

    @property
    def silent(self) -> list[str]:
        """What no call broke, though some call could have."""
        return sorted(self.declared - self.fired)

    def __str__(self) -> str:
        parts = [f"{self.calls} calls"]
        for word, ids in (("rules", self.rules), ("facts", self.facts)):
            parts.append(f"{len(ids & self.fired)} of {len(ids)} {word} seen to fire")
        return ", ".join(parts)


@dataclass
class Coverage:
    """The tallies of a session, by the name of the contract."""

    tallies: dict[str, Tally] = field(default_factory=dict)

    def tally(self, name: str) -> Tally:
        return self.tallies.setdefault(name, Tally())

    def declare(self, name: str, rules: Iterable[str], facts: Iterable[str]) -> None:
        tally = self.tally(name)
        tally.rules |= frozenset(rules)
        tally.facts |= frozenset(facts)

    def saw(self, name: str, fired: Iterable[str]) -> None:
        """Count one call that was judged as it should be, and the rules it broke."""
        tally = self.tally(name)
        tally.calls += 1
        tally.fired |= set(fired)

    @property
    def percent(self) -> float:
        """Share of what the contracts declare that was seen to fire."""
        declared = sum(len(tally.declared) for tally in self.tallies.values())
        silent = sum(len(tally.silent) for tally in self.tallies.values())
        return 100.0 * (declared - silent) / declared if declared else 100.0

    def lines(self, *, idle: bool = True) -> Iterator[str]:
        """The report, a line or two a function; those without a call only where `idle`."""
        for name, tally in sorted(self.tallies.items()):
            if not tally.calls and not idle:
                continue
            yield f"{name}: {tally}"
            if tally.silent:
                yield f"  never exercised: {', '.join(tally.silent)}"

    def to_data(self) -> dict[str, Any]:
        """Plain data, to cross from a worker process to the one that reports."""
        return {
            name: [sorted(t.rules), sorted(t.facts), sorted(t.fired), t.calls]
            for name, t in self.tallies.items()
        }

    def merge(self, data: dict[str, Any]) -> None:
        for name, (rules, facts, fired, calls) in data.items():
            self.declare(name, rules, facts)
            tally = self.tally(name)
            tally.fired |= set(fired)
            tally.calls += calls


current: ContextVar[Coverage | None] = ContextVar("contract coverage", default=None)
"""Where assertions report to while pytest runs; None outside of it."""
