"""The abstract syntax of an expression, and questions about its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .functions import TENSOR_FUNCTIONS


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
