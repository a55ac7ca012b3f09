"""Sections as HTML, and the frame around every page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from html import escape

from ..catalog.page import Code, Items, Links, Section, Table, Text

Link = Callable[[str], str | None]
"""The address of the page of an entry's id, from the page that is being written."""


def frame(title: str, body: str, *, root: str, script: str = "") -> str:
    """A whole page; `root` leads to the folder of the site."""
    tail = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,">'
        f'<link rel="stylesheet" href="{root}style.css"></head>'
        f"<body><main>{body}</main>{tail}</body></html>\n"
    )


def crumbs(*steps: tuple[str, str | None]) -> str:
    """The way back; the last step is this page."""
    parts = [
        f'<a href="{href}">{escape(text)}</a>' if href else escape(text) for text, href in steps
    ]
    return f'<nav class="crumbs" aria-label="Breadcrumb">{" › ".join(parts)}</nav>'


def inline(text: str) -> str:
    """Prose, with `code` in backticks."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(
        f"<code>{escape(part)}</code>" if index % 2 else escape(part)
        for index, part in enumerate(parts)
    )


def code(item: Code) -> str:
    """Code scrolls sideways, messages wrap."""
    kind = ' class="message"' if item.is_message else ' tabindex="0"'
    return f"<pre{kind}><code>{escape(item.text)}</code></pre>"


def sections(items: Iterable[Section], link: Link) -> str:
    return "".join(_section(item, link) for item in items)


def _section(item: Section, link: Link) -> str:
    match item:
        case Text(text=text):
            body = f"<p>{inline(text)}</p>"
        case Code():
            body = code(item)
        case Items(items=items):
            body = f"<ul>{''.join(f'<li>{inline(line)}</li>' for line in items)}</ul>"
        case Links(ids=ids):
            body = f"<ul>{''.join(f'<li>{anchor(name, link)}</li>' for name in ids)}</ul>"
        case Table():
            body = _table(item, link)
    return f"<section><h2>{escape(item.title)}</h2>{body}</section>"


def anchor(entry: str, link: Link, text: str | None = None) -> str:
    """A link to an entry's page, or its bare name where there is no such page."""
    label = f"<code>{escape(text or entry)}</code>"
    href = link(entry)
    return f'<a href="{escape(href)}">{label}</a>' if href else label


def _table(item: Table, link: Link) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in item.head)
    rows = []
    for first, *rest in item.rows:
        name = anchor(f"{item.link}/{first}", link, first) if item.link else inline(first)
        cells = "".join(
            f'<td data-title="{escape(title)}">{inline(cell)}</td>'
            for title, cell in zip(item.head[1:], rest, strict=True)
        )
        rows.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
