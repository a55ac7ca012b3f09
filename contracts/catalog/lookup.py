"""From what a person pastes to the entries it is about.

An id, a whole error of ours with its log prefixes, one of its lines, a message of another library,
or a few words.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .entry import Entry, upstream_pattern

How = Literal["id", "message", "upstream", "words"]

_TAGGED = re.compile(r"- \[(?P<rule>[^\s]+?)\](?=\s|$)")
_REFUSED = re.compile(r"(?P<function>[\w.<>]+) refused this call")
_COMMAND = re.compile(r"python -m contracts explain (?P<quote>'?)(?P<id>.+?)(?P=quote)\s*$", re.M)


@dataclass(frozen=True)
class Match:
    """An entry, and what in the text led to it."""

    entry: Entry
    how: How


def path_in(text: str) -> str | None:
    """The function that an error's last line, or an id with an import path, names."""
    found = _COMMAND.search(text)
    candidate = found["id"] if found else text.strip()
    place, slash, _ = candidate.rpartition("/")
    # A rule's id may hold a slash of its own, `head_dim/2==32`: the function ends at the first
    # slash behind the colon.
    before, colon, after = candidate.partition(":")
    if colon and "/" in after and " " not in before:
        return f"{before}:{after.partition('/')[0]}"
    return place if found and slash else None


def look_up(text: str, entries: Sequence[Entry]) -> tuple[Match, ...]:
    """The entries that a text is about, surest first; those found by words are only a guess."""
    return (
        _by_id(text, entries)
        or _by_tag(text, entries)
        or _by_message(text, entries)
        or _by_upstream(text, entries)
        or _by_words(text, entries)
    )


def _by_id(text: str, entries: Sequence[Entry]) -> tuple[Match, ...]:
    wanted = text.strip()
    whole = [entry for entry in entries if wanted in (entry.id, f"{entry.op}/{entry.slug}")]
    found = whole or [entry for entry in entries if wanted in (entry.rule, entry.slug)]
    if not found and ":" in wanted:  # module:function/rule
        name = wanted.partition(":")[2]
        found = [entry for entry in entries if name == entry.id]
    return tuple(Match(entry, "id") for entry in found)


def _by_tag(text: str, entries: Sequence[Entry]) -> tuple[Match, ...]:
    """Lines of ours: `- [kv-d_qk] kv axis 2 ...`, under the name of the function."""
    functions = {name["function"].rpartition(".")[2] for name in _REFUSED.finditer(text)}
    tags = list(dict.fromkeys(re.sub(r"\[\d+\]", "[]", m["rule"]) for m in _TAGGED.finditer(text)))
    found = [
        entry
        for tag in tags
        for entry in entries
        if entry.rule == tag and (not functions or entry.op.rpartition(".")[2] in functions)
    ]
    return tuple(Match(entry, "id") for entry in found)


def _by_message(text: str, entries: Sequence[Entry]) -> tuple[Match, ...]:
    """The messages of the longest literal text that occur in it."""
    found = [(entry, size) for entry in entries if (size := _said(entry, text))]
    longest = max((size for _, size in found), default=0)
    return tuple(Match(entry, "message") for entry, size in found if size == longest)


def _said(entry: Entry, text: str) -> int:
    sizes = [
        len(re.sub(r"\{\w+\}", "", form))
        for form in entry.messages
        if _compiled(entry.pattern_of(form)).search(text)
    ]
    return max(sizes, default=0)


def _by_upstream(text: str, entries: Sequence[Entry]) -> tuple[Match, ...]:
    found = [
        (entry, pattern)
        for entry in entries
        for pattern in entry.upstream
        if _compiled(upstream_pattern(pattern)).search(text)
    ]
    longest = max((len(pattern) for _, pattern in found), default=0)
    unique = dict.fromkeys(entry for entry, pattern in found if len(pattern) == longest)
    # What its author describes a situation for comes first.
    likely = sorted(unique, key=lambda entry: entry.situations is None)
    return tuple(Match(entry, "upstream") for entry in likely)


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _by_words(text: str, entries: Sequence[Entry], most: int = 5) -> tuple[Match, ...]:
    """Entries that share rare words with the text."""
    documents = [Counter(_words(_everything(entry))) for entry in entries]
    seen = Counter(word for document in documents for word in document)
    wanted = set(_words(text))

    def score(document: Counter[str]) -> float:
        return sum(math.log(1 + len(entries) / seen[word]) for word in wanted & document.keys())

    ranked = sorted(
        ((score(document), index) for index, document in enumerate(documents)),
        key=lambda pair: (-pair[0], pair[1]),
    )
    least = max(1.0, 0.6 * ranked[0][0]) if ranked else 0
    return tuple(Match(entries[i], "words") for value, i in ranked[:most] if value >= least)


def _everything(entry: Entry) -> str:
    parts: Iterable[str] = (
        *(entry.id, entry.demand, entry.meaning, entry.trigger, entry.situations or ""),
        *entry.messages,
        *entry.upstream,
    )
    return " ".join(parts)


_DULL = frozenset(
    (
        *("a", "an", "and", "are", "be", "expected", "got", "has", "in", "is", "it", "must"),
        *("not", "of", "or", "the", "to", "with"),
    )
)


def _words(text: str) -> list[str]:
    whole = re.findall(r"[a-z_][a-z0-9_]*|\d{2,}", text.lower())
    parts = [part for word in whole for part in (word, *word.split("_")) if part]
    return [word for word in dict.fromkeys(parts) if word not in _DULL]
