"""Text -> nodes. Python's own parser reads the text; what it finds is copied into our nodes, which
are the whole grammar. Nothing is ever passed to `eval`."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ContractDefinitionError
from .functions import NUMERIC_FUNCTIONS, TENSOR_FUNCTIONS
from .nodes import Binary, Call, Compare, Const, IsNone, Logical, Name, Node, Tuple, Unary

DEPTH = 100
"""Operations within one another: reading and judging them recurses, on top of the user's calls."""

_BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARE = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
}


def parse(
    text: str,
    placeholders: Mapping[str, Name] | None = None,
    more_functions: Mapping[str, int] | None = None,
) -> Node:
    """Read one expression; `placeholders` maps identifiers to names that Python cannot spell.

    `more_functions` gives the names and operand counts of functions that only some expressions
    may call.
    """
    shown = text if len(text) <= 60 else text[:57] + "..."
    too_deep = ContractDefinitionError(
        f"the expression {shown!r} is nested too deeply: at most {DEPTH} operations stand within "
        "one another, and in a sum each term within all that follow"
    )
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (RecursionError, MemoryError):
        raise too_deep from None
    except (SyntaxError, ValueError) as error:
        raise ContractDefinitionError(f"cannot read the expression {text!r}: {error}") from None
    if _depth(tree) > DEPTH:
        raise too_deep
    return _Reader(text, placeholders or {}, more_functions or {}).read(tree.body)


def _depth(tree: ast.AST) -> int:
    """How many nodes stand within one another, found without recursion."""
    depth, level = 0, [tree]
    while level:
        depth += 1
        level = [
            child
            for node in level
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
        ]
    return depth


def is_condition(node: Node) -> bool:
    """Whether the expression answers yes or no, as a rule must."""
    match node:
        case Compare() | IsNone():
            return True
        case Logical(operands=operands):
            return all(is_condition(item) or isinstance(item, Name) for item in operands)
        case Unary(operator="not"):
            return True
        case Call(function=function):
            return function in ("is_power_of_2", "is_contiguous")
    return False


@dataclass(frozen=True)
class _Reader:
    text: str
    placeholders: Mapping[str, Name]
    more_functions: Mapping[str, int]

    def fail(self, what: str) -> ContractDefinitionError:
        return ContractDefinitionError(f"{what} in the expression {self.text!r}")

    def read(self, node: ast.expr) -> Node:
        match node:
            case ast.Constant(value=float() as value) if not math.isfinite(value):
                raise self.fail("a number is too large")
            case ast.Constant(value=bool() | int() | float() | None as value):
                return Const(value)
            case ast.Name(id=name):
                return self.placeholders.get(name, Name(name))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Unary("-", self.read(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Unary("not", self.read(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return Binary(_BINARY[type(op)], self.read(left), self.read(right))
            case ast.BoolOp(op=op, values=values):
                operator = "and" if isinstance(op, ast.And) else "or"
                return Logical(operator, tuple(self.read(value) for value in values))
            case ast.Compare():
                return self.compare(node)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(name, args)
        raise self.fail(f"{ast.unparse(node)!r} is outside the rule language")

    def compare(self, node: ast.Compare) -> Node:
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            match node:
                case ast.Compare(left=ast.Name(id=name), comparators=[ast.Constant(value=None)]):
                    return IsNone(name, isinstance(node.ops[0], ast.IsNot))
            raise self.fail("`is` takes an argument's name and None")
        operands = [self.read(node.left)]
        operators = []
        for op, right in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _COMPARE:
                raise self.fail(f"{ast.unparse(node)!r} is outside the rule language")
            if isinstance(op, ast.In | ast.NotIn):
                if not isinstance(right, ast.Tuple | ast.List):
                    raise self.fail("`in` takes a tuple of values")
                operands.append(Tuple(tuple(self.read(item) for item in right.elts)))
            else:
                operands.append(self.read(right))
            operators.append(_COMPARE[type(op)])
        if any(isinstance(operand, Tuple) for operand in operands[:-1]):
            raise self.fail("nothing may follow the tuple of `in`")
        return Compare(tuple(operators), tuple(operands))

    def call(self, name: str, args: list[ast.expr]) -> Node:
        if name in TENSOR_FUNCTIONS:
            takes_dim = TENSOR_FUNCTIONS[name][2]
            if len(args) != 1 + takes_dim or not isinstance(args[0], ast.Name):
                what = "a tensor's name and an axis" if takes_dim else "a tensor's name"
                raise self.fail(f"{name} takes {what}")
            operands = tuple(self.read(arg) for arg in args)
            if takes_dim and not isinstance(_constant(operands[1]), int):
                raise self.fail(f"{name} takes a constant axis")
            return Call(name, operands)
        if name not in NUMERIC_FUNCTIONS and name not in self.more_functions:
            raise self.fail(f"unknown function {name!r}")
        if name == "len" and not (len(args) == 1 and isinstance(args[0], ast.Name)):
            raise self.fail("len takes the name of an argument or of a variadic axis")
        arity = self.more_functions.get(name) or NUMERIC_FUNCTIONS[name][1]
        if len(args) != arity if arity is not None else len(args) < 2:
            raise self.fail(f"{name} takes {arity or 'two or more'} operands, not {len(args)}")
        return Call(name, tuple(self.read(arg) for arg in args))


def _constant(node: Node) -> Any:
    match node:
        case Const(value=value):
            return value
        case Unary(operator="-", operand=Const(value=value)) if value is not None:
            return -value
    return None
