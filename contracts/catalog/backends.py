"""What an operation says of its backends, as data.

The language knows no dispatcher. An operation may offer `backends`, the names by falling priority;
`registered`, objects with `name`, `priority`, `needs`, `packages` and a `narrowed` declaration; and
`availability(device)`, what speaks against each backend there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class BackendFacts:
    """One backend: what it needs of a device, and which rules it adds to the contract."""

    name: str
    priority: float | None = None
    needs: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON, which has no infinity."""
        priority = self.priority if self.priority not in (float("inf"), float("-inf")) else None
        return {**asdict(self), "priority": priority}


def backends_of(target: Any) -> tuple[BackendFacts, ...]:
    """The backends of an operation, best first; none for a plain function."""
    registered = getattr(target, "registered", None)
    if registered is None:
        return tuple(BackendFacts(str(name)) for name in getattr(target, "backends", ()))
    return tuple(map(_facts, registered))


def _facts(backend: Any) -> BackendFacts:
    needs = (*getattr(backend, "needs", ()), *getattr(backend, "packages", ()))
    narrowed = getattr(backend, "narrowed", None)
    return BackendFacts(
        str(backend.name),
        getattr(backend, "priority", None),
        tuple(map(str, needs)),
        tuple(rule.text for rule in getattr(narrowed, "rules", ())),
    )


def availability(target: Any, device: torch.device) -> dict[str, tuple[str, ...]]:
    """For each backend, what speaks against it on a device whatever the call."""
    ask = getattr(target, "availability", None)
    if ask is None:
        return {backend.name: () for backend in backends_of(target)}
    answers: Mapping[str, Any] = ask(device)
    return {name: tuple(map(str, reasons)) for name, reasons in answers.items()}
