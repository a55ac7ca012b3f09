"""A hand-written validator against a contract, over every call that the contract generates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .cases import Case
from .subjects import subject
from .verdict import Trial, trials


@dataclass(frozen=True)
class Disagreement:
    """A call that one side accepts and the other refuses."""

    trial: Trial
    refusal: str | None
    """How the validator refused it; None where it accepted what the contract refuses."""

    @property
    def rule(self) -> str | None:
        """The rule by which the contract refuses it; None where the contract accepts it."""
        return self.trial.breaks

    def __str__(self) -> str:
        if self.refusal is None:
            return f"{self.rule}: {self.trial.case.text}"
        return f"{self.trial.case.text}: {self.refusal}"


@dataclass(frozen=True)
class Comparison:
    """Where a validator and a contract part. Prints as a report; true where they never do."""

    validator: str
    function: str
    calls: int
    disagreements: tuple[Disagreement, ...]

    def __bool__(self) -> bool:
        return not self.disagreements

    @property
    def too_lax(self) -> tuple[Disagreement, ...]:
        """Calls that the validator lets through and the contract refuses."""
        return tuple(d for d in self.disagreements if d.refusal is None)

    @property
    def too_strict(self) -> tuple[Disagreement, ...]:
        """Calls that the validator refuses and the contract accepts."""
        return tuple(d for d in self.disagreements if d.refusal is not None)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        count = len(self.disagreements)
        yield (
            f"{self.validator} and the contract of {self.function} judge "
            f"{self.calls - count} of {self.calls} calls alike"
        )
        for title, found in (
            (f"{self.validator} accepts what the contract refuses", self.too_lax),
            (f"{self.validator} refuses what the contract accepts", self.too_strict),
        ):
            if found:
                yield f"{title}:"
                for key, alike in _grouped(found).items():
                    more = f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""
                    yield f"  {key}: {alike[0].trial.case.text}{more}"


def _grouped(found: tuple[Disagreement, ...]) -> dict[str, list[Disagreement]]:
    """By the contract's rule, or by what the validator said."""
    groups: dict[str, list[Disagreement]] = {}
    for disagreement in found:
        key = disagreement.refusal or disagreement.rule or ""
        groups.setdefault(key, []).append(disagreement)
    return groups


def compare(
    validator: Callable[..., Any], function: Any, *, given: Mapping[str, Any] | None = None
) -> Comparison:
    """Run every generated call of a contract through a hand-written validator too.

    Args:
        validator: takes arguments of `function` by name, those that it has a parameter for. It
            refuses by raising any exception or by returning False, and accepts otherwise.
        function: anything with a `.contract`.
        given: values for arguments of types that nothing here can make up.

    Returns:
        The calls that one accepts and the other refuses, with the rule. Print it.
    """
    tested = subject(function, given)
    calls = [trial for trial in trials(tested) if isinstance(trial.case, Case)]
    disagreements = []
    for trial in calls:
        refusal = _refusal(validator, trial.arguments)
        if (refusal is None) is not trial.legal:
            disagreements.append(Disagreement(trial, refusal))
    name = getattr(validator, "__name__", repr(validator))
    return Comparison(name, tested.contract.name, len(calls), tuple(disagreements))


def _refusal(validator: Callable[..., Any], arguments: Mapping[str, Any]) -> str | None:
    parameters = inspect.signature(validator).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    try:
        answer = validator(**arguments)
    except Exception as error:
        message = str(error).splitlines()[0] if str(error) else ""
        return f"{type(error).__name__}: {message}" if message else type(error).__name__
    return "returns False" if answer is False else None
