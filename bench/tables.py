"""Tables for people: Markdown that also reads well in a terminal."""

from __future__ import annotations

from collections.abc import Iterable


def print_table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """First column to the left, the others to the right."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    print(f"\n{title}\n")
    for line in (lines[0], rule, *lines[1:]):
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print(f"| {' | '.join(cells)} |", flush=True)
