"""A parsed condition -> what computes with elements, and the numbers that it is handed.

Whatever two numbers make is a number, to be computed once and as Python does. So nothing is left in
which numbers meet, but `and` and `or`, which ask them what to ask next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from .. import expressions
from ..errors import ContractDefinitionError
from ..expressions import (
    TENSOR_FUNCTIONS,
    Binary,
    Call,
    Compare,
    Const,
    Logical,
    Name,
    Node,
    Tuple,
    Unary,
)
from .numbers import Uncomputed, computed

ELEMENTWISE = {"isfinite": 1, "isnan": 1}
ALONG_LAST_AXIS = {"sorted": 1, "unique": 1}
"""`sorted`: no element is less than the one before it. `unique`: none equals an earlier one. Both
hold or fail element by element."""

_OF_ELEMENTS = ("min", "max", "abs", "cdiv", *ELEMENTWISE)
ANSWERS = (*ELEMENTWISE, *ALONG_LAST_AXIS)
_GREATEST_POWER = 8


def number_name(index: int) -> str:
    """How `Condition.elements` names one of the numbers."""
    return f"#{index}"


def number_index(name: str) -> int | None:
    """Which of the numbers such a name stands for, if it is one."""
    return int(name[1:]) if name[0] == "#" else None


def names_in_order(node: Node) -> list[str]:
    """Names whose elements are read: those in tensor functions and in len() are not."""
    match node:
        case Name(id=name):
            return [name]
        case Call(function=function) if function in TENSOR_FUNCTIONS or function == "len":
            return []
    return [name for child in expressions.children(node) for name in names_in_order(child)]


@dataclass(frozen=True)
class Splitter:
    """Splits one condition, in which `tensors` stand for their elements."""

    text: str
    tensors: frozenset[str]
    numbers: list[Node] = field(default_factory=list)
    """What was split off."""

    def split(self, node: Node) -> Node:
        """The node with a name in place of every part that reads no element."""
        if not self.reads(node):
            return self.number(node)
        match node:
            case Name():
                return node
            case Unary():
                return replace(node, operand=self.split(node.operand))
            case Binary(operator="**", right=power):
                if not (
                    isinstance(power, Const)
                    and type(power.value) is int
                    and 0 < power.value <= _GREATEST_POWER
                ):
                    raise self.fail(
                        f"a power of elements is a constant from 1 to {_GREATEST_POWER}"
                    )
                return replace(node, left=self.split(node.left))
            case Binary():
                return replace(node, left=self.split(node.left), right=self.split(node.right))
            case Call(function=function, operands=operands):
                if function in ALONG_LAST_AXIS:
                    if not isinstance(operands[0], Name):
                        raise self.fail(f"{function} takes a tensor's name")
                elif function not in _OF_ELEMENTS:
                    raise self.fail(f"{function} does not take elements")
                elif function in ("min", "max"):
                    operands = self.with_numbers_together(node)
                return replace(node, operands=tuple(map(self.split, operands)))
            case Compare():
                parts = [self.comparison(each) for each in self.comparisons(node)]
                return parts[0] if len(parts) == 1 else Logical("and", tuple(parts))
            case Logical():
                return replace(node, operands=tuple(map(self.split, node.operands)))
        raise AssertionError(node)

    def fail(self, what: str) -> ContractDefinitionError:
        return ContractDefinitionError(f"{what}, in values({self.text!r})")

    def reads(self, node: Node) -> bool:
        return not self.tensors.isdisjoint(names_in_order(node))

    def number(self, node: Node) -> Node:
        """The name of a part that reads no element, or its value, where all calls have the same."""
        if any(
            isinstance(item, Call) and item.function in ANSWERS for item in expressions.walk(node)
        ):
            raise self.fail(f"{expressions.to_text(node)} is not about elements")
        if not expressions.value_names(node) | expressions.none_names(node):
            return self.constant(node)
        text = expressions.to_text(node)  # equal nodes are no proof: 1 and 1.0 are equal
        known = [expressions.to_text(each) for each in self.numbers]
        if text not in known:
            self.numbers.append(node)
            known.append(text)
        return Name(number_name(known.index(text)))

    def constant(self, node: Node) -> Const:
        value = node.value if isinstance(node, Const) else computed(node, {})
        if isinstance(value, Uncomputed):
            raise self.fail(f"{expressions.to_text(node)} has no value: {value.reason}")
        if not isinstance(value, bool | int | float):
            raise self.fail(f"{value} is no number")
        if not -(2**63) <= value < 2**63 if isinstance(value, int) else not math.isfinite(value):
            raise self.fail(f"{expressions.to_text(node)} is out of range")
        return Const(value)

    def with_numbers_together(self, node: Call) -> tuple[Node, ...]:
        """The operands of min or max, all that are numbers as one in the place of the first."""
        plain = tuple(operand for operand in node.operands if not self.reads(operand))
        if len(plain) < 2:
            return node.operands
        found: list[Node] = [operand for operand in node.operands if self.reads(operand)]
        found.insert(node.operands.index(plain[0]), replace(node, operands=plain))
        return tuple(found)

    def comparisons(self, node: Compare) -> list[Compare]:
        """A chain as several, in which a number meets a number, or a tuple, in a pair alone."""
        found: list[Compare] = []
        is_open = False
        for operator, left, right in zip(
            node.operators, node.operands, node.operands[1:], strict=False
        ):
            alone = not self.reads(left) and (isinstance(right, Tuple) or not self.reads(right))
            if is_open and not alone:
                last = found[-1]
                found[-1] = Compare((*last.operators, operator), (*last.operands, right))
            else:
                found.append(Compare((operator,), (left, right)))
            is_open = not alone
        return found

    def comparison(self, node: Compare) -> Node:
        if not self.reads(node):
            return self.number(node)
        *operands, last = node.operands
        if self.reads(operands[-1]) or not isinstance(last, Tuple):
            return self.with_operands(node)
        parts: list[Node] = []  # a number among numbers, and the same among elements
        for wanted in (False, True):
            items = tuple(item for item in last.items if self.reads(item) is wanted)
            part = Compare(node.operators, (*operands, Tuple(items)))
            if items:
                parts.append(self.with_operands(part) if wanted else self.number(part))
        return Logical("or" if node.operators[-1] == "in" else "and", tuple(parts))

    def with_operands(self, node: Compare) -> Compare:
        found = [
            replace(operand, items=tuple(map(self.split, operand.items)))
            if isinstance(operand, Tuple)
            else self.split(operand)
            for operand in node.operands
        ]
        return replace(node, operands=tuple(found))
