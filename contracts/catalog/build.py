"""A contract -> its entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..describe import sentence
from ..facts import Fact, facts
from ..model import Declaration
from ..rules.about import About
from ..rules.base import Rule
from ..rules.expression import Expression
from . import checks, fact_words, rule_words
from .discovery import Subject
from .entry import Entry, Source
from .fixes import fixes
from .source import Lines, locate
from .words import Words


def catalogue(subjects: Iterable[Subject]) -> tuple[Entry, ...]:
    """Every entry of these subjects, facts in the order of the signature, then rules.

    Without examples of fixes: `mended` adds them, and takes a second or two for each contract.
    """
    entries = [entry for subject in subjects for entry in entries_of(subject)]
    return tuple(replace(entry, related=_related(entry, entries)) for entry in entries)


def mended(subject: Subject, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Entries of one contract, each with an example of a broken call and its fix."""
    entries = tuple(entries)
    found = fixes(subject.contract.declaration, [entry.rule for entry in entries])
    return tuple(replace(entry, fix=found.get(entry.rule)) for entry in entries)


def entries_of(subject: Subject) -> tuple[Entry, ...]:
    """The entries of one contract, not yet related to one another."""
    declaration = subject.contract.declaration
    lines = locate(declaration)
    return (
        *(_of_fact(subject, fact, lines) for fact in facts(declaration)),
        *(_of_rule(subject, rule, lines) for rule in declaration.rules),
    )


def _of_fact(subject: Subject, fact: Fact, lines: Lines | None) -> Entry:
    declaration = subject.contract.declaration
    words = fact_words.of_fact(declaration, fact)
    span = lines.parameters.get(fact.argument) if lines else None
    return _entry(
        subject,
        fact.id,
        words,
        declaration.note(fact.id),
        checks.of_fact(declaration, fact),
        lines.at(span) if lines and span else None,
    )


def _of_rule(subject: Subject, rule: Rule, lines: Lines | None) -> Entry:
    declaration = subject.contract.declaration
    return _entry(
        subject,
        rule.id,
        rule_words.of_rule(declaration, rule),
        rule,
        checks.of_rule(declaration, rule),
        _rule_source(declaration, rule, lines),
    )


def _rule_source(declaration: Declaration, rule: Rule, lines: Lines | None) -> Source | None:
    """Rules and notes are the arguments of `contract(...)`, and stand there in order."""
    if lines is None:
        return None
    spans = lines.rules
    if len(spans) != len(declaration.rules) + len(declaration.notes):
        return lines.at((lines.first, lines.first))
    notes = [span for span in spans if lines.at(span).text.startswith("about(")]
    return lines.at([span for span in spans if span not in notes][declaration.rules.index(rule)])


def _entry(
    subject: Subject,
    rule: str,
    words: Words,
    advice: Rule | About | None,
    validation: str,
    source: Source | None,
) -> Entry:
    declaration = subject.contract.declaration
    hint = sentence(advice.hint) if advice and advice.hint else None
    return Entry(
        op=subject.name,
        rule=rule,
        kind=words.kind,
        demand=words.demand,
        messages=words.messages,
        meaning=f"{words.meaning} {hint}" if hint else words.meaning,
        trigger=words.trigger,
        situations=sentence(advice.note) if advice and advice.note else None,
        solutions=(words.solution,),
        validation=validation,
        guard=checks.guard(declaration),
        handler=checks.handler(declaration, rule),
        prevention=_prevention(declaration, rule, words),
        arguments=words.arguments,
        axes=words.axes,
        upstream=tuple(advice.upstream) if advice else (),
        source=source,
    )


def _prevention(declaration: Declaration, rule: str, words: Words) -> tuple[str, ...]:
    function = declaration.name.rpartition(".")[2]
    tips = []
    found = next((item for item in declaration.rules if item.id == rule), None)
    if isinstance(found, Expression) and found.names <= declaration.names.axes | {
        name for name in declaration.names.arguments if name not in declaration.names.tensors
    }:
        sizes = ", ".join(f"{name}=..." for name in sorted(found.names, key=found.source.find))
        tips.append(
            f"At start-up, from the configuration and without tensors: "
            f"`{function}.contract.check_axes({sizes})`."
        )
    if words.kind == "shape" and len(words.arguments) > 1 and words.axes:
        first, second = words.arguments[:2]
        tips.append(
            f"Take {words.axes[0]} of `{first}` and of `{second}` from one value of the "
            "configuration."
        )
    tips.append(
        f"Test the code that makes the arguments: `assert {function}.contract.accepts(...)` on "
        "fake or meta tensors needs no GPU."
    )
    return tuple(tips)


def _related(entry: Entry, entries: Iterable[Entry]) -> tuple[str, ...]:
    """The nearest others: same upstream message, same axis, same argument, same kind elsewhere."""

    def nearness(other: Entry) -> int:
        same_op = other.op == entry.op
        score = 8 * bool(set(entry.upstream) & set(other.upstream))
        score += 4 * (same_op and bool(set(entry.axes) & set(other.axes)))
        score += 2 * (same_op and bool(set(entry.arguments[:1]) & set(other.arguments[:1])))
        score += 3 * (not same_op and entry.kind == other.kind and _tail(entry) == _tail(other))
        score += same_op and entry.kind == other.kind
        return score

    others = [other for other in entries if other.id != entry.id]
    ranked = sorted(others, key=nearness, reverse=True)
    here = [other for other in ranked if other.op == entry.op and nearness(other) >= 2][:4]
    there = [other for other in ranked if other.op != entry.op and nearness(other) >= 3][:2]
    return tuple(other.id for other in (*here, *there))


def _tail(entry: Entry) -> str:
    """What an entry is about, whatever the names: `dtype` of `kv-dtype`, or the whole demand."""
    return entry.rule.rpartition("-")[2] if entry.kind in ("dtype", "rank", "type") else entry.kind
