"""Nodes -> a value, and the nearest size with which a condition would hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .functions import (
    NUMERIC_FUNCTIONS,
    TENSOR_FUNCTIONS,
    DividesByZero,
    Incomputable,
    Unbound,
    exact_div,
)
from .nodes import Binary, Call, Compare, Const, IsNone, Logical, Name, Node, Tuple, Unary, walk

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": exact_div,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


_Operators = Mapping[str, Callable[[Any, Any], Any]]


def evaluate(node: Node, env: Mapping[str, Any], operators: _Operators = OPERATORS) -> Any:
    """The expression's value; `env` holds axes and arguments, and `operators` says what those with
    two operands mean. Raises Unbound or Incomputable."""
    return _EVALUATE[type(node)](node, env, operators)


def _name(node: Name, env: Mapping[str, Any], operators: _Operators) -> Any:
    try:
        value = env[node.id]
    except KeyError:
        raise Unbound(node.id) from None
    for attribute in node.path:
        value = _guarded(getattr, value, attribute)
    return value


def _unary(node: Unary, env: Mapping[str, Any], operators: _Operators) -> Any:
    value = evaluate(node.operand, env, operators)
    return not value if node.operator == "not" else -value


def _binary(node: Binary, env: Mapping[str, Any], operators: _Operators) -> Any:
    left, right = evaluate(node.left, env, operators), evaluate(node.right, env, operators)
    return _guarded(operators[node.operator], left, right)


def _compare(node: Compare, env: Mapping[str, Any], operators: _Operators) -> bool:
    left = evaluate(node.operands[0], env, operators)
    for operator, operand in zip(node.operators, node.operands[1:], strict=True):
        right = evaluate(operand, env, operators)
        if not _guarded(operators[operator], left, right):
            return False
        left = right
    return True


def _logical(node: Logical, env: Mapping[str, Any], operators: _Operators) -> Any:
    stop = node.operator == "or"
    value = not stop
    for operand in node.operands:
        value = evaluate(operand, env, operators)
        if bool(value) is stop:
            break
    return value


def _tuple(node: Tuple, env: Mapping[str, Any], operators: _Operators) -> Any:
    return tuple(evaluate(item, env, operators) for item in node.items)


def _call(node: Call, env: Mapping[str, Any], operators: _Operators) -> Any:
    values = [evaluate(operand, env, operators) for operand in node.operands]
    functions = TENSOR_FUNCTIONS if node.function in TENSOR_FUNCTIONS else NUMERIC_FUNCTIONS
    return _guarded(functions[node.function][0], *values)


_EVALUATE: dict[type[Any], Callable[[Any, Mapping[str, Any], _Operators], Any]] = {
    Const: lambda node, env, operators: node.value,
    Name: _name,
    Unary: _unary,
    Binary: _binary,
    Tuple: _tuple,
    Compare: _compare,
    Logical: _logical,
    IsNone: lambda node, env, operators: (env.get(node.name) is None) is not node.negated,
    Call: _call,
}


def _guarded(function: Callable[..., Any], *values: Any) -> Any:
    try:
        return function(*values)
    except ZeroDivisionError:
        raise DividesByZero("it divides by zero") from None
    except Exception as error:
        raise Incomputable(str(error).partition("\n")[0] or type(error).__name__) from None


SCAN = 64  # sizes tried one by one where no likely one is legal


def nearest(
    conditions: Sequence[Node], name: str, env: Mapping[str, Any]
) -> tuple[int | None, int | None]:
    """The closest sizes below and above `env[name]` with which all conditions hold."""
    value = env[name]

    def holds(candidate: int) -> bool:
        trial = {**env, name: candidate}
        try:
            return candidate >= 0 and all(evaluate(node, trial) for node in conditions)
        except (Unbound, Incomputable):
            return False

    likely = sorted(_likely(conditions, value))
    below = [size for size in reversed(likely) if size < value]
    above = [size for size in likely if size > value]
    return (
        next(filter(holds, [*below, *range(value - 1, value - SCAN, -1)]), None),
        next(filter(holds, [*above, *range(value + 1, value + SCAN)]), None),
    )


def _likely(conditions: Sequence[Node], value: int) -> set[int]:
    """Sizes at which such conditions begin to hold: beside the size itself and the constants, and
    at multiples of what sizes are divided by."""
    nodes = [node for condition in conditions for node in walk(condition)]
    constants = [node.value for node in nodes if isinstance(node, Const)]
    numbers = {n for n in constants if isinstance(n, int) and not isinstance(n, bool)}
    steps = {1, *(number for number in numbers if number > 0)}
    steps.add(math.lcm(*steps))
    powers = {1 << max(value, 1).bit_length() + shift for shift in (-1, 0)}
    return powers | {
        place // step * step + shift * step
        for place in {value, *numbers}
        for step in steps
        for shift in (-1, 0, 1)
    }
