"""What racecheck says of the Hopper kernel, without what it says of a kernel that has no race.

`racecheck_control.py` is that kernel. It shows both kinds of hazard that are explained here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

PLACE = re.compile(r"(between|and) (?:Read|Write) access at \S+ in (\S+):(\d+)")

ACCESS = re.compile(r"=+ +(?:Error|Warning): |=+ +and ")
"""The beginning of a line that reports an access, with a place or without."""

SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazard")

HANDED_ON = ("shared.alpha", "handed_on")
"""In a line that stores or loads what one thread's arrival publishes for its whole partition."""

PARTITION_TABLE = ("gluon_kernel.py", "racecheck_control.py")
"""Files of the functions that call `warp_specialize`: Triton puts code there that tells partitions
what to run."""

Line: TypeAlias = tuple[str, str]
"""A file's name and a line's text."""


def hazards(log: str, folder: Path) -> Iterator[tuple[Line, Line]]:
    """The pairs of lines between which a log of `--racecheck-report analysis` sees a race."""
    lines: dict[str, list[str]] = {}
    first: Line = ("", "")
    for kind, name, number in PLACE.findall(log):
        if name not in lines:
            path = next(folder.rglob(name), None)
            lines[name] = [] if path is None else path.read_text().splitlines()
        known = lines[name]
        text = known[int(number) - 1] if 0 < int(number) <= len(known) else ""
        if kind == "between":
            first = name, text
        else:
            yield first, (name, text)


def is_table(pair: tuple[Line, Line]) -> bool:
    return all(
        name in PARTITION_TABLE and not any(word in text for word in HANDED_ON)
        for name, text in pair
    )


def is_handed_on(pair: tuple[Line, Line]) -> bool:
    return any(all(word in text for _, text in pair) for word in HANDED_ON)


def kinds(log: str, folder: Path) -> Mapping[str, int]:
    """How many pairs there are of each kind; an access without a place is unexplained, as is a
    report that the log's last line counts and the log does not hold."""
    counts = {"table": 0, "handed on": 0, "unexplained": 0}
    for pair in hazards(log, folder):
        kind = "table" if is_table(pair) else "handed on" if is_handed_on(pair) else "unexplained"
        counts[kind] += 1
    counts["unexplained"] += len(ACCESS.findall(log)) - len(PLACE.findall(log))
    if summary := SUMMARY.search(log):
        counts["unexplained"] += abs(int(summary[1]) - log.count("Race reported"))
    return counts
