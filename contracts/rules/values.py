"""Rules on what tensors contain, judged only in the modes that read contents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import Violation
from .base import Call, Code, Names, Rule


@dataclass(frozen=True)
class Values(Rule):
    """A condition on the contents of tensors, judged in the modes that read contents."""

    source: str

    values = True

    @property
    def text(self) -> str:
        return " ".join(self.source.split())

    def resolve(self, names: Names) -> Rule:
        return self

    def emit(self, code: Code) -> None:
        """Metadata modes never read contents."""

    def judge(self, call: Call) -> Iterator[Violation]:
        return iter(())


def values(condition: str, *, id: str = "", hint: str | None = None, **more: Any) -> Values:
    """A condition on contents: `values("0 <= topk_length <= topk")`."""
    return Values(condition, id=id, hint=hint, **more)
