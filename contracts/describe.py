"""A contract in words: Markdown for a docstring, a page or a prompt."""

from __future__ import annotations

import inspect

from .model import Declaration
from .rules.base import Rule
from .spec import AnySpec


def describe(declaration: Declaration) -> str:
    """What the contract demands, as Markdown: arguments, and rules with their ids."""
    lines = ["Contract:", ""]
    lines += [
        f"- `{argument.name}`: `{argument.spec.text}`"
        for argument in declaration.arguments
        if not isinstance(argument.spec, AnySpec)
    ]
    if declaration.rules:
        lines += ["", "Rules:", ""]
        lines += [describe_rule(rule) for rule in declaration.rules]
    return "\n".join(lines)


def describe_rule(rule: Rule) -> str:
    """One line: the id, what is demanded, and the author's hint."""
    demand = "" if rule.text == rule.id else f": `{rule.text}`"
    return f"- `{rule.id}`{demand}" + (f". {sentence(rule.hint)}" if rule.hint else "")


def sentence(text: str) -> str:
    """Author's advice with a capital and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def appended(docstring: str | None, declaration: Declaration) -> str:
    """A docstring with the description of the contract at its end."""
    head = inspect.cleandoc(docstring) if docstring else ""
    return f"{head}\n\n{describe(declaration)}\n".lstrip("\n")
