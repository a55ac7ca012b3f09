"""What is left of a condition once the numbers of a call are known.

A number among the operands of `and` and `or` decides as in Python: what stands behind it may not be
asked at all, and then need not have a value.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..expressions import Binary, Call, Compare, Const, Logical, Name, Node, Tuple, Unary, walk
from .condition import Condition, Unjudgeable
from .numbers import Uncomputed
from .splitting import number_index


def settled(condition: Condition, numbers: Sequence[Any]) -> Condition:
    """The condition without what its numbers decide; itself where they decide nothing. Raises
    Unjudgeable where it needs a number that has no value."""
    if not condition.branches and not _lack(numbers):
        return condition  # there is nothing to decide, and nothing missing
    elements = _settle(condition.elements, numbers)
    return condition if elements is condition.elements else replace(condition, elements=elements)


def uncomputed(condition: Condition, numbers: Sequence[Any]) -> bool:
    """Whether a settled condition still has a number without a value, for elements to come to."""
    if not _lack(numbers):
        return False
    names = [node.id for node in walk(condition.elements) if isinstance(node, Name)]
    return any(isinstance(_number(name, numbers), Uncomputed) for name in names)


def _lack(numbers: Sequence[Any]) -> bool:
    """Whether one of them has no value."""
    return any(isinstance(number, Uncomputed) for number in numbers)


def _number(name: str, numbers: Sequence[Any]) -> Any:
    """The number that a name stands for; None, if it is a tensor's."""
    index = number_index(name)
    return None if index is None else numbers[index]


def _settle(node: Node, numbers: Sequence[Any]) -> Node:
    def within(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        found = tuple(_settle(each, numbers) for each in nodes)
        return nodes if all(a is b for a, b in zip(nodes, found, strict=True)) else found

    match node:
        case Name(id=name):
            number = _number(name, numbers)
            if isinstance(number, Uncomputed) and not number.divides:
                raise Unjudgeable(number.reason)
        case Logical():
            return _settle_logical(node, numbers)
        case Unary(operator="not", operand=operand):
            (found,) = within((operand,))
            if isinstance(found, Const):
                return Const(not found.value)
            return node if found is operand else replace(node, operand=found)
        case Unary(operand=operand):
            (found,) = within((operand,))
            return node if found is operand else replace(node, operand=found)
        case Binary(left=left, right=right):
            found_left, found_right = within((left, right))
            if found_left is not left or found_right is not right:
                return replace(node, left=found_left, right=found_right)
        case Compare(operands=operands) | Call(operands=operands):
            found_operands = within(operands)
            if found_operands is not operands:
                return replace(node, operands=found_operands)
        case Tuple(items=items):
            found_items = within(items)
            return node if found_items is items else replace(node, items=found_items)
    return node


def _settle_logical(node: Logical, numbers: Sequence[Any]) -> Node:
    stop = node.operator == "or"
    left: list[Node] = []
    for operand in node.operands:
        found = _settle(operand, numbers)
        number = _number(found.id, numbers) if isinstance(found, Name) else None
        if number is not None and not isinstance(number, Uncomputed):
            found = Const(bool(number))
        if isinstance(found, Const):
            if bool(found.value) is not stop:
                continue
            left.append(Const(stop))
            break
        left.append(found)
    if not left:
        return Const(not stop)
    if len(left) == 1 and isinstance(left[0], Const):
        return left[0]
    unchanged = len(left) == len(node.operands) and all(map(operator.is_, left, node.operands))
    return node if unchanged else replace(node, operands=tuple(left))
