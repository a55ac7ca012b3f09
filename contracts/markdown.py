"""The catalogue as one Markdown document."""

from __future__ import annotations

from collections.abc import Sequence

from .catalog import Entry, Subject
from .catalog.page import Code, Items, Links, Section, Table, Text, of_entry, of_subject


def catalogue(subjects: Sequence[Subject], entries: Sequence[Entry]) -> str:
    """Every contract, and under each its entries."""
    parts = ["# Contracts"]
    for subject in subjects:
        own = tuple(entry for entry in entries if entry.op == subject.name)
        parts.append(f"## {subject.name}")
        if subject.summary:
            parts.append(subject.summary)
        parts += [section(item) for item in of_subject(subject, own)]
        for entry in own:
            parts.append(f"### {entry.id}")
            parts += [section(item, level=4) for item in of_entry(entry)]
    return "\n\n".join(parts)


def section(item: Section, level: int = 3) -> str:
    """One section under a heading."""
    match item:
        case Text(text=text):
            body = text
        case Code(text=text):
            language = (
                "python" if item.title not in ("Error message", "Other libraries say") else ""
            )
            body = f"```{language}\n{text}\n```"
        case Items(items=items):
            body = "\n".join(f"- {line}" for line in items)
        case Links(ids=ids):
            body = "\n".join(f"- [{name}](#{anchor(name)})" for name in ids)
        case Table(head=head, rows=rows):
            lines = [head, ["---"] * len(head), *rows]
            body = "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)
    return f"{'#' * level} {item.title}\n\n{body}"


def anchor(heading: str) -> str:
    """The fragment that GitHub gives a heading."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
