"""The rule language: text -> a small AST -> evaluated, emitted as Python, or searched for a
nearest value that would satisfy it.

Python's own parser reads the text; every node is then copied into the AST below, which is the
whole grammar. Nothing is ever passed to `eval`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import ContractDefinitionError


@dataclass(frozen=True, slots=True)
class Const:
    value: int | float | bool | None


@dataclass(frozen=True, slots=True)
class Name:
    """An axis, or a scalar argument; `path` reads attributes of an argument (`self.dim`)."""

    id: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Compare:
    """A chain `a < b <= c`; the right side of `in` is a Tuple."""

    operators: tuple[str, ...]
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Tuple:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Logical:
    operator: str  # "and" | "or"
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class IsNone:
    name: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A numeric function, or a tensor function whose first operand is a tensor's name."""

    function: str
    operands: tuple[Node, ...]


Node = Const | Name | Unary | Binary | Compare | Tuple | Logical | IsNone | Call


class Unbound(Exception):
    """A name has no value in this call."""


class Incomputable(Exception):
    """The expression has no value: an inexact or zero division, say. `str()` says which."""


def exact_div(a: Any, b: Any) -> Any:
    """`a / b` for sizes: the division must leave nothing over."""
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    if b == 0:
        raise Incomputable(f"{a}/{b} divides by zero")
    if a % b != 0:
        raise Incomputable(f"{a} is not divisible by {b}")
    return a // b


def cdiv(a: int, b: int) -> int:
    """Ceiling division."""
    return -(-a // b)


def is_power_of_2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


NUMERIC_FUNCTIONS: dict[str, tuple[Callable[..., Any], int | None]] = {
    "min": (min, None),
    "max": (max, None),
    "abs": (abs, 1),
    "cdiv": (cdiv, 2),
    "is_power_of_2": (is_power_of_2, 1),
    "len": (len, 1),
}
"""Name -> (implementation, number of operands or None for two and more)."""

TENSOR_FUNCTIONS: dict[str, tuple[Callable[..., Any], str, bool]] = {
    "size": (lambda x, dim: x.shape[dim], "{0}.shape[{1}]", True),
    "stride": (lambda x, dim: x.stride()[dim], "{0}.stride()[{1}]", True),
    "numel": (lambda x: x.numel(), "{0}.numel()", False),
    "ndim": (lambda x: x.ndim, "{0}.ndim", False),
    "itemsize": (lambda x: x.itemsize, "{0}.itemsize", False),
    "nbytes": (lambda x: x.nbytes, "{0}.nbytes", False),
    "data_ptr": (lambda x: x.data_ptr(), "{0}.data_ptr()", False),
    "dtype": (lambda x: x.dtype, "{0}.dtype", False),
    "is_contiguous": (lambda x: x.is_contiguous(), "{0}.is_contiguous()", False),
}
"""Name -> (implementation, emitted form, whether it takes a dim)."""

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


def parse(text: str, placeholders: Mapping[str, Name] | None = None) -> Node:
    """Read one expression; `placeholders` maps identifiers to names that Python cannot spell."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ContractDefinitionError(f"cannot read the expression {text!r}: {error}") from None
    return _Reader(text, placeholders or {}).read(tree.body)


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

    def fail(self, what: str) -> ContractDefinitionError:
        return ContractDefinitionError(f"{what} in the expression {self.text!r}")

    def read(self, node: ast.expr) -> Node:
        match node:
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
        if name not in NUMERIC_FUNCTIONS:
            raise self.fail(f"unknown function {name!r}")
        if name == "len" and not (len(args) == 1 and isinstance(args[0], ast.Name)):
            raise self.fail("len takes the name of an argument or of a variadic axis")
        arity = NUMERIC_FUNCTIONS[name][1]
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


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Unary(operand=operand):
            return (operand,)
        case Binary(left=left, right=right):
            return (left, right)
        case Compare(operands=operands) | Logical(operands=operands) | Call(operands=operands):
            return operands
        case Tuple(items=items):
            return items
    return ()


def walk(node: Node) -> Iterator[Node]:
    """Every node, outermost first."""
    yield node
    for child in children(node):
        yield from walk(child)


def tensor_names(node: Node) -> frozenset[str]:
    """The names that stand inside tensor functions."""
    return frozenset(
        call.operands[0].id
        for call in walk(node)
        if isinstance(call, Call)
        and call.function in TENSOR_FUNCTIONS
        and isinstance(call.operands[0], Name)
    )


def len_names(node: Node) -> frozenset[str]:
    """The names whose length is asked for: containers and variadic axes."""
    return frozenset(
        call.operands[0].id
        for call in walk(node)
        if isinstance(call, Call) and call.function == "len" and isinstance(call.operands[0], Name)
    )


def value_names(node: Node) -> frozenset[str]:
    """Every name that needs a value: all but those that are only asked whether they are None."""
    return frozenset(item.id for item in walk(node) if isinstance(item, Name))


def none_names(node: Node) -> frozenset[str]:
    """The names that are asked whether they are None."""
    return frozenset(item.name for item in walk(node) if isinstance(item, IsNone))


def reads_pointers(node: Node) -> bool:
    return any(isinstance(item, Call) and item.function == "data_ptr" for item in walk(node))


def unguarded(node: Node, maybe: frozenset[str], known: frozenset[str] = frozenset()) -> set[str]:
    """Names of `maybe` that are used as values where they may still be None.

    `x is None or x > 3` and `x is not None and x > 3` guard x from left to right.
    """
    match node:
        case Name(id=name):
            return {name} & maybe - known
        case Logical(operator=operator, operands=operands):
            found: set[str] = set()
            for operand in operands:
                found |= unguarded(operand, maybe, known)
                known = known | _implied(operand, truth=operator == "and")
            return found
    return set().union(*(unguarded(child, maybe, known) for child in children(node)))


def _implied(node: Node, truth: bool) -> frozenset[str]:
    """Names that are not None whenever `node` evaluates to `truth`."""
    match node:
        case IsNone(name=name, negated=negated) if negated == truth:
            return frozenset({name})
        case Unary(operator="not", operand=operand):
            return _implied(operand, not truth)
        case Logical(operator=operator, operands=operands) if (operator == "and") == truth:
            return frozenset().union(*(_implied(operand, truth) for operand in operands))
    return frozenset()


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


_PRECEDENCE = {"or": 1, "and": 2, "not": 3, "compare": 4, "+": 5, "-": 5, "unary": 7, "**": 8}


def emit(node: Node, name: Callable[[str], str], constant: Callable[[Any, str], str]) -> str:
    """The expression as Python source.

    `name` gives the generated code's spelling of an axis or argument; `constant` binds an object
    into the generated module and gives its name there.
    """

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
            case Binary(operator="/", left=left, right=right):
                return f"{constant(exact_div, 'exact_div')}({source(left)}, {source(right)})"
            case Binary(operator="**", left=left, right=right):
                text, level = f"{source(left, 9)} ** {source(right, 8)}", 8
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
            case Call(function=function, operands=operands) if function in TENSOR_FUNCTIONS:
                return TENSOR_FUNCTIONS[function][1].format(*(source(item, 9) for item in operands))
            case Call(function=function, operands=operands):
                implementation = constant(NUMERIC_FUNCTIONS[function][0], function)
                return f"{implementation}({', '.join(source(item) for item in operands)})"
            case _:
                raise AssertionError(node)
        return f"({text})" if level < outer else text

    return source(node)


def to_text(node: Node) -> str:
    """The expression in one canonical spelling, exact division as `/`."""
    return emit(_divisions_as_text(node), lambda name: name, lambda _, hint: hint)


def _divisions_as_text(node: Node) -> Node:
    match node:
        case Binary(left=left, right=right):
            left, right = _divisions_as_text(left), _divisions_as_text(right)
            if node.operator == "/":
                return Name(f"{_operand(left)}/{_operand(right)}")
            return replace(node, left=left, right=right)
        case Unary():
            return replace(node, operand=_divisions_as_text(node.operand))
        case Compare() | Logical() | Call():
            if isinstance(node, Call) and node.function in TENSOR_FUNCTIONS:
                return Name(
                    f"{node.function}({', '.join(to_text(item) for item in node.operands)})"
                )
            return replace(node, operands=tuple(_divisions_as_text(item) for item in node.operands))
        case Tuple():
            return replace(node, items=tuple(_divisions_as_text(item) for item in node.items))
    return node


def _operand(node: Node) -> str:
    text = to_text(node)
    return f"({text})" if isinstance(node, Binary) else text


def nearest(
    node: Node, name: str, env: Mapping[str, Any], minimum: int = 0, reach: int = 1024
) -> tuple[int | None, int | None]:
    """The closest values below and above `env[name]` with which the condition holds."""
    value = env[name]

    def holds(candidate: int) -> bool:
        try:
            return bool(evaluate(node, {**env, name: candidate}))
        except (Unbound, Incomputable):
            return False

    below = next(
        (v for v in range(value - 1, max(minimum, value - reach) - 1, -1) if holds(v)), None
    )
    above = next((v for v in range(value + 1, value + reach + 1) if holds(v)), None)
    return below, above
