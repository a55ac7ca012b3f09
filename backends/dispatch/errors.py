"""Why a right call finds no backend, as data first and text second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of one backend against one call.

    `kind` is "rule" (the backend's own contract is narrower), "need" (of the device, or a
    package), "import" (the backend's module is broken), "transform" (a functorch transform is
    active) or "name" (there is no such backend). `rule` is the id of the broken rule.
    """

    backend: str
    kind: str
    text: str
    rule: str | None = None

    def __str__(self) -> str:
        return self.text


class BackendWarning(UserWarning):
    """A call on an accelerator is served by the reference, which is right and slow."""


class NoBackendError(RuntimeError):
    """The call is right, and no eligible backend, or not the one that was demanded, serves it.

    Attributes:
        op: name of the op.
        demanded: the backend that was demanded, or None.
        reasons: every reason of every backend that refuses, the demanded one's first.
        eligible: the backends that would serve the call.
        arguments: one line of metadata per argument.
    """

    def __init__(
        self,
        op: str,
        demanded: str | None,
        reasons: Iterable[Reason],
        eligible: Iterable[str] = (),
        arguments: Iterable[str] = (),
    ) -> None:
        self.op = op
        self.demanded = demanded
        self.reasons = tuple(reasons)
        self.eligible = tuple(eligible)
        self.arguments = tuple(arguments)
        super().__init__(self._text())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args_of()

    def args_of(self) -> tuple[Any, ...]:
        """What another error is made from, to say the same."""
        return self.op, self.demanded, self.reasons, self.eligible, self.arguments

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, ready for JSON."""
        return {
            "error": "NoBackendError",
            "op": self.op,
            "demanded": self.demanded,
            "reasons": [asdict(reason) for reason in self.reasons],
            "eligible": list(self.eligible),
            "arguments": list(self.arguments),
        }

    def _text(self) -> str:
        if self.demanded is None:
            lines = [f"{self.op}: no backend serves this call"]
        else:
            lines = [
                f"{self.op}: backend {self.demanded!r} was demanded and cannot serve this call"
            ]
        for reason in self.reasons:
            first, *rest = reason.text.splitlines()
            lines.append(f"- {reason.backend}: {first}")
            lines.extend(f"  {line}" for line in rest)
        if self.eligible:
            lines.append(f"- not demanded, but would serve it: {', '.join(self.eligible)}")
        if self.arguments:
            lines.append("got:")
            lines.extend(f"  {line}" for line in self.arguments)
        return "\n".join(lines)
