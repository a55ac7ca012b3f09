"""Text -> a condition on the elements of tensors.

The rule language, with tensors' names standing for their elements, and more functions: `isfinite`
and `isnan` of an element; `sorted` and `unique` of a tensor, along its last axis. Parts in which no
tensor stands are plain numbers, the same for all elements: they are split off, so that whatever
judges the elements is handed numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import expressions
from ..errors import ContractDefinitionError
from ..expressions import Binary, Call, Const, Logical, Name, Node, Unary
from .numbers import number_of
from .splitting import ALONG_LAST_AXIS, ANSWERS, ELEMENTWISE, Splitter, names_in_order


class Unjudgeable(Exception):
    """The condition cannot be applied to these tensors; `str()` says why."""


@dataclass(frozen=True)
class Condition:
    """`elements` over `tensors`, and over `Name("#i")` for each of `numbers`."""

    text: str
    elements: Node
    tensors: tuple[str, ...]
    """The tensors whose elements it reads, in the order in which they are written."""
    numbers: tuple[Node, ...]
    """Parts that are one number for the whole call."""
    names: frozenset[str]
    """Every name that needs a value; without one of them there is nothing to judge."""
    asked: frozenset[str]
    """Names that are only asked whether they are None."""

    @functools.cached_property
    def divides(self) -> bool:
        """Whether a divisor might be zero."""
        found = divisors(self.elements)
        return any(not (isinstance(divisor, Const) and divisor.value) for divisor in found)

    @functools.cached_property
    def branches(self) -> bool:
        """Whether it has an `and` or `or`, which numbers may decide."""
        return any(isinstance(node, Logical) for node in expressions.walk(self.elements))

    def numbers_of(self, env: Mapping[str, Any]) -> tuple[Any, ...]:
        """Their values in one call, Uncomputed where there is none; raises Unbound."""
        return tuple(number_of(node, env) for node in self.numbers)


def divisors(node: Node) -> list[Node]:
    """Whatever it divides by."""
    found = []
    for each in expressions.walk(node):
        match each:
            case Binary(operator="/" | "//" | "%", right=right):
                found.append(right)
            case Call(function="cdiv", operands=(_, right)):
                found.append(right)
    return found


def shared_out(
    conditions: Sequence[Condition], numbers: Sequence[Any]
) -> Iterator[tuple[Condition, Sequence[Any]]]:
    """Each condition with its own of the numbers of all, which stand in the same order."""
    start = 0
    for condition in conditions:
        stop = start + len(condition.numbers)
        yield condition, numbers[start:stop]
        start = stop


def parse(text: str) -> Node:
    """The text's nodes, tensors' names still unknown."""
    node = expressions.parse(text, more_functions={**ELEMENTWISE, **ALONG_LAST_AXIS})
    if not _is_condition(node):
        raise ContractDefinitionError(f"the rule {text!r} is not a condition")
    return node


def condition(text: str, node: Node, tensors: Collection[str]) -> Condition:
    """Split a parsed condition; `tensors` are the names that stand for elements."""
    read = tuple(dict.fromkeys(name for name in names_in_order(node) if name in tensors))
    if not read:
        raise ContractDefinitionError(f"values({text!r}) reads the contents of no tensor argument")
    splitter = Splitter(text, frozenset(read))
    elements = splitter.split(node)
    names, asked = expressions.value_names(node), expressions.none_names(node)
    return Condition(text, elements, read, tuple(splitter.numbers), names, asked)


def _is_condition(node: Node) -> bool:
    match node:
        case Call(function=function) if function in ANSWERS:
            return True
        case Logical(operands=operands):
            return all(_is_condition(item) or isinstance(item, Name) for item in operands)
        case Unary(operator="not", operand=operand):
            return _is_condition(operand) or isinstance(operand, Name)
    return isinstance(node, Name) or expressions.is_condition(node)
