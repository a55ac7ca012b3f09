"""Sizes worth trying, read off the expressions that will judge them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..expressions import (
    Binary,
    Call,
    Compare,
    Const,
    Incomputable,
    Name,
    Node,
    Tuple,
    Unary,
    Unbound,
    children,
    evaluate,
    value_names,
    walk,
)

Env = Mapping[str, Any]


def suggestions(node: Node, name: str, env: Env) -> Iterator[int]:
    """Sizes of `name` at which a comparison in `node` may change its answer."""
    for part in walk(node):
        if isinstance(part, Compare):
            for left, right in zip(part.operands, part.operands[1:], strict=False):
                for side, other in ((left, right), (right, left)):
                    if name not in value_names(side) or name in value_names(other):
                        continue
                    for target in _targets(other, env):
                        for value in _inverse(side, name, target, env):
                            if isinstance(value, int) and value >= 0:
                                yield value


def _targets(node: Node, env: Env) -> Iterator[int]:
    for item in node.items if isinstance(node, Tuple) else (node,):
        value = _value(item, env)
        if isinstance(value, int):
            yield from (value, value + 1, value - 1)


def _value(node: Node, env: Env) -> Any:
    try:
        return evaluate(node, env)
    except (Unbound, Incomputable):
        return None


def _inverse(node: Node, name: str, target: int, env: Env) -> Iterator[int]:
    """Values of `name` that make `node` equal to `target`, or near it."""
    match node:
        case Name(id=id) if id == name:
            yield target
        case Unary(operator="-", operand=operand):
            yield from _inverse(operand, name, -target, env)
        case Call(function=function, operands=operands):
            for operand in operands:
                yield from _inverse(operand, name, target, env)
                if function == "abs":
                    yield from _inverse(operand, name, -target, env)
        case Binary(operator=operator, left=left, right=right):
            here, there = (left, right) if name in value_names(left) else (right, left)
            other = _value(there, env)
            if not isinstance(other, int):
                return
            for wanted in _undo(operator, target, other, from_left=here is left):
                yield from _inverse(here, name, wanted, env)


def _undo(operator: str, target: int, other: int, *, from_left: bool) -> Iterator[int]:
    if operator == "+":
        yield target - other
    elif operator == "-":
        yield target + other if from_left else other - target
    elif operator == "*" and other:
        yield target // other
    elif operator in ("/", "//") and from_left:
        yield target * other
    elif operator == "%" and from_left and other > 0:
        yield from (target % other, target % other + other)


POWERS_OF_2 = frozenset({16, 32, 64, 128, 256})


def constants(node: Node) -> set[int]:
    """The integers in an expression, parts without names computed: `2 * 64` is 128."""
    if isinstance(node, Call) and node.function == "is_power_of_2":
        return set(POWERS_OF_2)
    if not value_names(node) and not isinstance(node, Tuple):
        value = _value(node, {})
        return {value} if isinstance(value, int) and not isinstance(value, bool) else set()
    return set().union(*(constants(child) for child in children(node)))


def edges(node: Node) -> Iterator[Node]:
    """Conditions that put a call just inside or just outside the comparisons of `node`."""
    for part in walk(node):
        if isinstance(part, Compare):
            for operator, left, right in zip(
                part.operators, part.operands, part.operands[1:], strict=False
            ):
                if not isinstance(right, Tuple) and value_names(left) | value_names(right):
                    for shift in _SHIFTS.get(operator, ()):
                        moved = Binary("+", right, Const(shift)) if shift else right
                        yield Compare(("==",), (left, moved))


_SHIFTS = {
    "<": (-1, 0),
    "<=": (0, 1),
    ">": (1, 0),
    ">=": (0, -1),
    "==": (1, -1),
    "!=": (0,),
}
"""Operator -> what to add to its right side for the last value inside and the first one outside."""
