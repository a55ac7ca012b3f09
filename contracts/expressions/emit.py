"""Nodes -> Python source, for generated checks and for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .evaluate import evaluate
from .functions import NUMERIC_FUNCTIONS, TENSOR_FUNCTIONS, by_zero, outside, power, whole_div
from .nodes import Binary, Call, Compare, Const, IsNone, Logical, Name, Node, Tuple, Unary


def emit(node: Node, name: Callable[[str], str], constant: Callable[[Any, str], str]) -> str:
    """The expression as Python source.

    `name` gives the generated code's spelling of an axis or argument; `constant` binds an object
    into the generated module and gives its name there.
    """
    return _write(node, name, constant)


def has_axis(x: str, dim: int) -> str:
    """The test of whether a tensor has an axis, as Python source."""
    return f"{x}.ndim {'>' if dim >= 0 else '>='} {abs(dim)}"


def to_text(node: Node) -> str:
    """The expression in one canonical spelling, as `parse` reads it."""
    return _write(node, lambda name: name, None)


def _write(
    node: Node, name: Callable[[str], str], constant: Callable[[Any, str], str] | None
) -> str:
    """Python source; without `constant`, the rule language itself."""

    def source(node: Node, outer: int = 0) -> str:
        match node:
            case Const(value=value):
                return repr(value)
            case Name(id=id, path=path):
                return ".".join((name(id), *path))
            case Unary(operator="not", operand=operand):
                text, level = f"not {source(operand, 4)}", 3
            case Unary(operand=operand):
                text, level = f"-{source(operand, 7)}", 7
            case Binary(operator="/", left=left, right=right) if constant is not None:
                return f"{constant(whole_div, 'whole_div')}({source(left)}, {source(right)})"
            case Binary(operator="/", left=left, right=right):
                text, level = f"{source(left, 6)}/{source(right, 7)}", 6
            case Binary(operator="**", left=left, right=right) if (
                constant is not None and not isinstance(right, Const)
            ):
                return f"{constant(power, 'power')}({source(left)}, {source(right)})"
            case Binary(operator="**", left=left, right=right):
                text, level = f"{source(left, 9)} ** {source(right, 8)}", 8
            case Binary(operator="%" | "//" as operator, left=left, right=right) if (
                constant is not None and not isinstance(right, Const)
            ):
                divisor = f"({source(right, 2)} or {constant(by_zero, 'by_zero')}())"
                text, level = f"{source(left, 6)} {operator} {divisor}", 6
            case Binary(operator=operator, left=left, right=right):
                level = 5 if operator in "+-" else 6
                text = f"{source(left, level)} {operator} {source(right, level + 1)}"
            case Tuple(items=items):
                inner = ", ".join(source(item) for item in items)
                return f"({inner},)" if len(items) == 1 else f"({inner})"
            case Compare(operators=operators, operands=operands):
                parts = [source(operands[0], 5)]
                for operator, operand in zip(operators, operands[1:], strict=True):
                    parts += [operator, source(operand, 5)]
                text, level = " ".join(parts), 4
            case Logical(operator=operator, operands=operands):
                level = 1 if operator == "or" else 2
                text = f" {operator} ".join(source(operand, level + 1) for operand in operands)
            case IsNone(name=id, negated=negated):
                text, level = f"{name(id)} is {'not ' if negated else ''}None", 4
            case Call(function=function, operands=operands) if constant is None:
                return f"{function}({', '.join(source(item) for item in operands)})"
            case Call(function=function, operands=(x, dim)) if function in TENSOR_FUNCTIONS:
                text = TENSOR_FUNCTIONS[function][1].format(source(x, 9), source(dim))
                there = has_axis(source(x, 9), evaluate(dim, {}))
                return f"({text} if {there} else {constant(outside, 'outside')}())"
            case Call(function=function, operands=operands) if function in TENSOR_FUNCTIONS:
                return TENSOR_FUNCTIONS[function][1].format(*(source(item, 9) for item in operands))
            case Call(function=function, operands=operands):
                implementation = constant(NUMERIC_FUNCTIONS[function][0], function)
                return f"{implementation}({', '.join(source(item) for item in operands)})"
            case _:
                raise AssertionError(node)
        return f"({text})" if level < outer else text

    return source(node)
