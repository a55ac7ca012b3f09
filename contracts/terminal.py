"""Sections, tables and marks for a terminal: plain text, in colour where somebody looks at it."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TextIO

from .catalog.page import Code, Items, Links, Section, Table, Text

NARROWEST = 16
"""Characters below which no column of a table is squeezed."""

_CODE = re.compile(r"`[^`]+`")
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
        """Wrapped below one indentation; the first line may have another."""
        begin = indent if first is None else first
        lines = _wrap(begin + text, self.width, indent)
        return self.inline("\n".join(lines))

    def inline(self, text: str) -> str:
        """With its `code` coloured; backticks stay, so that columns keep their width."""
        return _CODE.sub(lambda found: self._paint(found[0], _CYAN), text)

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
        """Columns side by side; where they are too wide, the widest but the first are wrapped."""
        rows = list(rows)
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        room = self.width - 2 * len(widths)
        while sum(widths) > room and max(widths[1:], default=0) > NARROWEST:
            widest = max(range(1, len(widths)), key=lambda index: widths[index])
            widths[widest] -= 1
        lines = [self.dim(line) for line in _row(head, widths)]
        lines += [self.inline(line) for row in rows for line in _row(row, widths)]
        return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The lines of one row of a table."""
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return [
        "  " + "  ".join(f"{part:<{w}}" for part, w in zip(parts, widths, strict=True)).rstrip()
        for parts in zip_longest(*wrapped, fillvalue="")
    ]


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Lines no longer than `width` where that is possible; no line breaks inside `code`."""
    whole = _CODE.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines] or [""]
