"""Sections, tables and marks for a terminal: plain text, in colour where somebody looks at it."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from .catalog.page import Code, Items, Links, Section, Table, Text

_BOLD, _DIM, _RED, _GREEN, _CYAN = "1", "2", "31", "32", "36"


@dataclass(frozen=True)
class Terminal:
    """How to write for one stream."""

    colour: bool = False
    width: int = 100

    @classmethod
    def of(cls, stream: TextIO) -> Terminal:
        """Colour on a terminal only, unless NO_COLOR forbids it or FORCE_COLOR asks for it."""
        forced = bool(os.environ.get("FORCE_COLOR"))
        wanted = forced or (stream.isatty() and not os.environ.get("NO_COLOR"))
        width = shutil.get_terminal_size((100, 24)).columns if stream.isatty() else 100
        return cls(wanted, max(40, min(width, 120)))

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def bold(self, text: str) -> str:
        return self._paint(text, _BOLD)

    def dim(self, text: str) -> str:
        return self._paint(text, _DIM)

    def bad(self, text: str) -> str:
        return self._paint(text, _RED)

    def good(self, text: str) -> str:
        return self._paint(text, _GREEN)

    def prose(self, text: str, indent: str = "  ", first: str | None = None) -> str:
        """Wrapped; `code` keeps its place and, in colour, loses its backticks."""
        text = textwrap.fill(
            text,
            self.width,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return self.inline(text)

    def inline(self, text: str) -> str:
        if not self.colour:
            return text
        return re.sub(r"`([^`]+)`", lambda found: self._paint(found[1], _CYAN), text)

    def section(self, section: Section) -> str:
        match section:
            case Text(text=text):
                body = self.prose(text)
            case Code(text=text):
                body = textwrap.indent(text, "  ")
            case Items(items=items):
                body = "\n".join(self.prose(item, "    ", "  - ") for item in items)
            case Links(ids=ids):
                body = textwrap.indent("\n".join(ids), "  ")
            case Table(head=head, rows=rows):
                body = self.table(head, rows)
        return f"{self.bold(section.title)}\n{body}"

    def page(self, title: str, sections: Iterable[Section]) -> str:
        return "\n\n".join([self.bold(title), *map(self.section, sections)])

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
        """Columns as wide as their cells; the last one is wrapped into what is left."""
        rows = list(rows)
        columns = list(zip(head, *rows, strict=True))
        widths = [max(len(cell) for cell in column) for column in columns]
        left = sum(widths[:-1]) + 2 * len(widths)
        room = max(24, self.width - left)
        if left > self.width - 24:  # too wide to stand side by side
            return "\n".join(self._stacked(head, row) for row in rows)
        lines = [self.dim("  " + "  ".join(f"{c:<{w}}" for c, w in zip(head, widths, strict=True)))]
        for row in rows:
            parts = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
            start = "  ".join(f"{c:<{w}}" for c, w in zip(row[:-1], widths[:-1], strict=True))
            begin = f"  {start}  " if start else "  "
            lines.append(self.inline((begin + parts[0]).rstrip()))
            lines += [self.inline(" " * len(begin) + part) for part in parts[1:]]
        return "\n".join(line.rstrip() for line in lines)

    def _stacked(self, head: Sequence[str], row: Sequence[str]) -> str:
        lines = [f"  {self.inline(row[0])}"]
        lines += [
            self.prose(f"{title}: {cell}", "        ", "      ")
            for title, cell in zip(head[1:], row[1:], strict=True)
            if cell
        ]
        return "\n".join(lines)
