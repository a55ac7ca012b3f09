"""One entry of the catalogue: everything that is known about one way to break one contract."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Source:
    """Where a demand is written."""

    file: str
    line: int
    text: str
    end: int


@dataclass(frozen=True)
class Fix:
    """A broken call mended: code before and after, over the names of the arguments.

    `setup` makes the other arguments; `setup` and `before` together are the broken call's,
    `message` is what it is told, and `after` runs behind them.
    """

    setup: str
    before: str
    after: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A rule or an annotation fact of one contract, as documentation and as data."""

    op: str
    rule: str
    kind: str
    demand: str
    """What must hold, in its shortest form."""
    messages: tuple[str, ...]
    """The forms of the message, `{name}` where it varies."""
    meaning: str
    trigger: str
    situations: str | None
    """From the author's note."""
    solutions: tuple[str, ...]
    validation: str
    """Assertions over the arguments that fail when the demand does."""
    guard: str
    handler: str
    """How to catch exactly this violation."""
    prevention: tuple[str, ...]
    arguments: tuple[str, ...]
    axes: tuple[str, ...]
    upstream: tuple[str, ...] = ()
    source: Source | None = None
    fix: Fix | None = None
    related: tuple[str, ...] = field(default=())

    error_class = "ContractError"
    error_type = "validation"
    severity = "error"

    @property
    def id(self) -> str:
        return f"{self.op}/{self.rule}"

    @property
    def slug(self) -> str:
        """The rule's id as a file name."""
        return re.sub(r"[^\w.-]+", "-", self.rule).strip("-")

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.kind, *self.arguments[:3], *self.axes)

    @property
    def pattern(self) -> str:
        """A regular expression that finds the message."""
        return "|".join(map(self.pattern_of, self.messages))

    def pattern_of(self, message: str) -> str:
        """One form of the message as a regular expression; `{argument}` is one of ours."""
        names = "|".join(map(re.escape, self.arguments))
        argument = rf"(?<!\w)(?:{names})(?:\[.+?\])?(?!\w)"
        return argument.join(map(message_pattern, message.split("{argument}")))

    def to_dict(self) -> dict[str, Any]:
        """The entry as plain data, ready for JSON."""
        source, fix = self.source, self.fix
        return {
            "id": self.id,
            "op": self.op,
            "slug": f"{self.op}-{self.slug}",
            "errorCode": self.rule,
            "errorMessage": self.messages[0],
            "messagePattern": self.pattern,
            "errorType": self.error_type,
            "errorClass": self.error_class,
            "severity": self.severity,
            "kind": self.kind,
            "demand": self.demand,
            "filePath": source.file if source else None,
            "lineNumber": source.line if source else None,
            "sourceCode": source.text if source else None,
            "sourceCodeStart": source.line if source else None,
            "sourceCodeEnd": source.end if source else None,
            "documentation": self.meaning,
            "triggerScenarios": self.trigger,
            "commonSituations": self.situations,
            "solutions": list(self.solutions),
            "exampleFix": f"# before\n{fix.before}\n# after\n{fix.after}" if fix else None,
            "exampleMessage": fix.message if fix else None,
            "exampleSetup": fix.setup if fix else None,
            "handlingStrategy": self.error_type,
            "validationCode": self.validation,
            "typeGuard": self.guard,
            "tryCatchPattern": self.handler,
            "preventionTips": list(self.prevention),
            "tags": list(self.tags),
            "related": list(self.related),
            "upstreamPatterns": list(self.upstream),
            "schemaVersion": SCHEMA_VERSION,
        }


_HOLE = re.compile(r"\{\w+\}")


def message_pattern(message: str) -> str:
    """A message form as a regular expression: what varies is matched as briefly as possible."""
    return _holes_to_groups(_HOLE.split(message))


def upstream_pattern(message: str) -> str:
    """Another library's message, literal but for `(.+?)`, as a regular expression."""
    return _holes_to_groups(message.split("(.+?)"))


def _holes_to_groups(parts: list[str]) -> str:
    """Literal parts with groups between them; any white space may have been wrapped."""
    text = "(.+?)".join(re.sub(r"(?:\\\s)+", r"\\s+", re.escape(part)) for part in parts)
    return text if not text.endswith("(.+?)") else text[:-5] + r"(.+)"
