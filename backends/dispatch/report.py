"""The answer of `op.explain(...)`: what would serve a call, and what every other backend says."""

from __future__ import annotations

from dataclasses import dataclass

from contracts import ContractError

from .errors import Reason


@dataclass(frozen=True)
class Answer:
    """What one backend says to a call: eligible without reasons, refusing with them."""

    backend: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Report:
    """What an op would do with a call; nothing was run.

    `choice` is the backend that would serve the call, or None: the call breaks the contract
    (`error`), or `demanded` refuses it. `demanded` is the backend that was asked for, and `origin`
    by what: "backend=", "backends.use" or "CONTRACTS_BACKEND". `answers` are those of all
    backends, by falling priority.
    """

    op: str
    target: str
    choice: str | None = None
    demanded: str | None = None
    origin: str | None = None
    answers: tuple[Answer, ...] = ()
    error: ContractError | None = None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Every reason of every backend that refuses."""
        return tuple(reason for answer in self.answers for reason in answer.reasons)

    def __str__(self) -> str:
        if self.error is not None:
            return str(self.error)
        head = f"{self.op} on {self.target}: {self.choice or 'no backend'}"
        if self.demanded is not None:
            head += f", because {self.origin} demands {self.demanded}"
        width = max((len(answer.backend) for answer in self.answers), default=0)
        lines = [head]
        for answer in self.answers:
            first, *rest = self._says(answer)
            lines.append(f"  {answer.backend:<{width}}  {first}")
            lines.extend(f"  {'':<{width}}  {line}" for line in rest)
        if self.demanded not in (None, *(answer.backend for answer in self.answers)):
            lines.append(f"  there is no backend {self.demanded}")
        return "\n".join(lines)

    def _says(self, answer: Answer) -> list[str]:
        if answer.reasons:
            lines = [line for reason in answer.reasons for line in reason.text.splitlines()]
            return [f"no: {lines[0]}", *(f"    {line}" for line in lines[1:])]
        if answer.backend == self.choice:
            return ["yes: chosen"]
        return ["yes, but not demanded" if self.demanded is not None else "yes, by lower priority"]
