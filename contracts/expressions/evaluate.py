"""Nodes -> a value, and the nearest size with which a condition would hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .functions import NUMERIC_FUNCTIONS, TENSOR_FUNCTIONS, Incomputable, Unbound, exact_div
from .nodes import Binary, Call, Compare, Const, IsNone, Logical, Name, Node, Tuple, Unary, walk

_APPLY: dict[str, Callable[[Any, Any], Any]] = {
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


def evaluate(node: Node, env: Mapping[str, Any]) -> Any:
    """The expression's value; `env` holds axes and arguments. Raises Unbound or Incomputable."""
    match node:
        case Const(value=value):
            return value
        case Name(id=name, path=path):
            try:
                value = env[name]
            except KeyError:
                raise Unbound(name) from None
            for attribute in path:
                value = _guarded(getattr, value, attribute)
            return value
        case Unary(operator=operator, operand=operand):
            value = evaluate(operand, env)
            return not value if operator == "not" else -value
        case Binary(operator=operator, left=left, right=right):
            return _apply(operator, evaluate(left, env), evaluate(right, env))
        case Tuple(items=items):
            return tuple(evaluate(item, env) for item in items)
        case Compare(operators=operators, operands=operands):
            left = evaluate(operands[0], env)
            for operator, operand in zip(operators, operands[1:], strict=True):
                right = evaluate(operand, env)
                if not _apply(operator, left, right):
                    return False
                left = right
            return True
        case Logical(operator=operator, operands=operands):
            stop = operator == "or"
            value = not stop
            for operand in operands:
                value = evaluate(operand, env)
                if bool(value) is stop:
                    break
            return value
        case IsNone(name=name, negated=negated):
            return (env.get(name) is None) is not negated
        case Call(function=function, operands=operands):
            values = [evaluate(operand, env) for operand in operands]
            implementation = (
                TENSOR_FUNCTIONS[function][0]
                if function in TENSOR_FUNCTIONS
                else NUMERIC_FUNCTIONS[function][0]
            )
            return _guarded(implementation, *values)
    raise AssertionError(node)


def _apply(operator: str, left: Any, right: Any) -> Any:
    return _guarded(_APPLY[operator], left, right)


def _guarded(function: Callable[..., Any], *values: Any) -> Any:
    try:
        return function(*values)
    except ZeroDivisionError:
        raise Incomputable("it divides by zero") from None
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
