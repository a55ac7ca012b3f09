"""Text -> a condition on the elements of tensors.

The rule language, with tensors' names standing for their elements, and more functions: `isfinite`
and `isnan` of an element; `sorted` and `unique` of a tensor, along its last axis. Parts in which no
tensor stands are plain numbers, the same for all elements: they are split off, so that whatever
judges the elements is handed numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import expressions
from ..errors import ContractDefinitionError
from ..expressions import (
    TENSOR_FUNCTIONS,
    Binary,
    Call,
    Compare,
    Const,
    IsNone,
    Logical,
    Name,
    Node,
    Tuple,
    Unary,
)

ELEMENTWISE = {"isfinite": 1, "isnan": 1}
ALONG_LAST_AXIS = {"sorted": 1, "unique": 1}
"""`sorted`: no element is less than the one before it. `unique`: none equals an earlier one. Both
hold or fail element by element."""

_OF_ELEMENTS = ("min", "max", "abs", "cdiv", *ELEMENTWISE)
_ANSWERS = (*ELEMENTWISE, *ALONG_LAST_AXIS)
_GREATEST_POWER = 8


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

    def numbers_of(self, env: Mapping[str, Any]) -> tuple[Any, ...]:
        """Their values in one call; raises Unbound or Incomputable."""
        return tuple(expressions.evaluate(node, env) for node in self.numbers)


def number_name(index: int) -> str:
    """How `Condition.elements` names one of the numbers."""
    return f"#{index}"


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
    read = tuple(dict.fromkeys(name for name in _names_in_order(node) if name in tensors))
    if not read:
        raise ContractDefinitionError(f"values({text!r}) reads the contents of no tensor argument")
    numbers: list[Node] = []
    elements = _split(text, node, frozenset(read), numbers)
    names, asked = expressions.value_names(node), expressions.none_names(node)
    return Condition(text, elements, read, tuple(numbers), names, asked)


def _is_condition(node: Node) -> bool:
    match node:
        case Call(function=function) if function in _ANSWERS:
            return True
        case Logical(operands=operands):
            return all(_is_condition(item) or isinstance(item, Name) for item in operands)
        case Unary(operator="not", operand=operand):
            return _is_condition(operand) or isinstance(operand, Name)
    return isinstance(node, Name) or expressions.is_condition(node)


def _names_in_order(node: Node) -> list[str]:
    """Names whose elements are read: those in tensor functions and in len() are not."""
    match node:
        case Name(id=name):
            return [name]
        case Call(function=function) if function in TENSOR_FUNCTIONS or function == "len":
            return []
    return [name for child in expressions.children(node) for name in _names_in_order(child)]


def _split(text: str, node: Node, tensors: frozenset[str], numbers: list[Node]) -> Node:
    """The node with a name in place of every part that reads no element."""

    def fail(what: str) -> ContractDefinitionError:
        return ContractDefinitionError(f"{what}, in values({text!r})")

    def split(node: Node) -> Node:
        if isinstance(node, Const) and not isinstance(node.value, bool | int | float):
            raise fail(f"{node.value} is no number")
        if isinstance(node, Const):
            if isinstance(node.value, int) and not -(2**63) <= node.value < 2**63:
                raise fail(f"{node.value} is out of range")
            return node
        if isinstance(node, Tuple):
            return replace(node, items=tuple(split(item) for item in node.items))
        if not tensors.intersection(_names_in_order(node)):
            if any(
                isinstance(item, Call) and item.function in _ANSWERS
                for item in expressions.walk(node)
            ):
                raise fail(f"{expressions.to_text(node)} is not about elements")
            if not expressions.value_names(node) | expressions.none_names(node):
                return split(Const(expressions.evaluate(node, {})))
            if node not in numbers:
                numbers.append(node)
            return Name(number_name(numbers.index(node)))
        match node:
            case Name():
                return node
            case Unary():
                return replace(node, operand=split(node.operand))
            case Binary(operator="**", right=power):
                if not (
                    isinstance(power, Const)
                    and type(power.value) is int
                    and 0 < power.value <= _GREATEST_POWER
                ):
                    raise fail(f"a power of elements is a constant from 1 to {_GREATEST_POWER}")
                return replace(node, left=split(node.left))
            case Binary():
                return replace(node, left=split(node.left), right=split(node.right))
            case Call(function=function, operands=operands):
                if function in ALONG_LAST_AXIS:
                    if not isinstance(operands[0], Name):
                        raise fail(f"{function} takes a tensor's name")
                elif function not in _OF_ELEMENTS:
                    raise fail(f"{function} does not take elements")
                return replace(node, operands=tuple(split(operand) for operand in operands))
            case Compare() | Logical():
                return replace(node, operands=tuple(split(operand) for operand in node.operands))
            case IsNone():
                raise AssertionError("reads no element")
        raise AssertionError(node)

    return split(node)
