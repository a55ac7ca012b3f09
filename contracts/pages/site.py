"""Writes the site: an index with search, a page for each contract, a page for each entry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..catalog import Entry, Subject
from ..catalog.entry import upstream_pattern
from ..catalog.page import of_entry, of_subject
from . import html
from .picture import picture

TITLE = "Contracts"


def write(subjects: Sequence[Subject], entries: Sequence[Entry], folder: Path) -> int:
    """Write every page below `folder`; returns how many there are."""
    addresses = _addresses(entries)
    pages = {"index.html": _index(subjects, entries, addresses)}
    for subject in subjects:
        own = tuple(entry for entry in entries if entry.op == subject.name)
        pages[f"{subject.name}/index.html"] = _subject(subject, own, addresses)
        for entry in own:
            pages[addresses[entry.id]] = _entry(entry, addresses)
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "style.css").write_text(_asset("style.css"), encoding="utf-8")
    return len(pages)


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _addresses(entries: Sequence[Entry]) -> dict[str, str]:
    """Where each entry's page is, from the folder of the site; no two are the same."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for entry in entries:
        slug, number = entry.slug or "rule", 1
        address = f"{entry.op}/{slug}.html"
        while address.lower() in taken or slug == "index":
            number += 1
            slug = f"{entry.slug}-{number}"
            address = f"{entry.op}/{slug}.html"
        taken.add(address.lower())
        found[entry.id] = address
    return found


def _index(subjects: Sequence[Subject], entries: Sequence[Entry], addresses: dict[str, str]) -> str:
    search = (
        '<form id="search" role="search" hidden><label for="query">Paste an error message, or '
        'search</label><textarea id="query" rows="3" autocomplete="off" spellcheck="false" '
        'placeholder="kv d_qk must match q d_qk=576, got 512"></textarea>'
        '<p id="found" role="status"></p><ol id="results"></ol></form>'
    )
    parts = [
        f"<header><h1>{TITLE}</h1><p>What operations demand of a call, and what their errors "
        f"mean.</p></header>{search}"
    ]
    for subject in subjects:
        own = [entry for entry in entries if entry.op == subject.name]
        rules = {rule.id for rule in subject.contract.rules}
        for_rules = [entry for entry in own if entry.rule in rules]
        for_facts = [entry for entry in own if entry.rule not in rules]
        parts.append(
            f'<section class="card"><h2><a href="{escape(subject.name)}/index.html">'
            f"{escape(subject.name)}</a></h2><p>{html.inline(subject.summary)}</p>"
            f"{_entry_list(for_rules, addresses)}"
            f"<details><summary>{len(for_facts)} demands of its annotations</summary>"
            f"{_entry_list(for_facts, addresses)}</details></section>"
        )
    data = json.dumps([_record(entry, addresses[entry.id]) for entry in entries])
    data = data.replace("<", "\\u003c")  # nothing in it may look like markup
    script = f"const ENTRIES = {data};\n{_asset('search.js')}"
    return html.frame(TITLE, "".join(parts), root="", script=script)


def _entry_list(entries: Sequence[Entry], addresses: dict[str, str]) -> str:
    rows = "".join(
        f'<li><a href="{escape(addresses[entry.id])}"><code>{escape(entry.rule)}</code></a> '
        f"<span>{html.inline(entry.meaning)}</span></li>"
        for entry in entries
    )
    return f'<ul class="entries">{rows}</ul>' if rows else ""


def _record(entry: Entry, address: str) -> dict[str, Any]:
    """What the search needs to know of an entry."""
    return {
        "id": entry.id,
        "op": entry.op,
        "rule": entry.rule,
        "href": address,
        "demand": entry.demand,
        "meaning": entry.meaning.replace("`", ""),
        "messages": [entry.pattern_of(message) for message in entry.messages],
        "likely": entry.situations is not None,
        "upstream": [upstream_pattern(message) for message in entry.upstream],
    }


def _subject(subject: Subject, entries: Sequence[Entry], addresses: dict[str, str]) -> str:
    signature, *rest = of_subject(subject, tuple(entries))
    summary = f"<p>{html.inline(subject.summary)}</p>" if subject.summary else ""
    path = f"<p><code>{escape(subject.path)}</code></p>" if subject.path else ""

    def link(entry: str) -> str | None:
        return f"../{addresses[entry]}" if entry in addresses else None

    body = (
        html.crumbs((TITLE, "../index.html"), (subject.name, None))
        + f"<h1>{escape(subject.name)}</h1>{summary}{path}"
        + html.sections([signature], link)
        + picture(subject.contract.declaration)
        + html.sections(rest, link)
    )
    return html.frame(f"{subject.name} · {TITLE}", body, root="../")


def _entry(entry: Entry, addresses: dict[str, str]) -> str:
    def link(other: str) -> str | None:
        return f"../{addresses[other]}" if other in addresses else None

    chips = "".join(
        f"<li>{escape(tag)}</li>" for tag in (entry.severity, entry.error_class, *entry.tags)
    )
    body = (
        html.crumbs((TITLE, "../index.html"), (entry.op, "index.html"), (entry.rule, None))
        + f"<h1><code>{escape(entry.rule)}</code></h1><p><code>{escape(entry.demand)}</code></p>"
        + f'<ul class="chips">{chips}</ul>'
        + html.sections(of_entry(entry), link)
    )
    return html.frame(f"{entry.id} · {TITLE}", body, root="../")
