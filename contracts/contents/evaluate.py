"""A condition on elements, judged in torch. This is its definition: others agree with it.

Everything is computed in int64, float32 or float64, as `promotion` says, never in what torch would
choose. `//` and `%` round down, as in Python; `/` is true division. An integer divisor of zero
breaks the rule for the elements that come to it: not for those for which an operand of `and` or
`or` before it, or a part of a chain of comparisons, has decided.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..expressions import Binary, Call, Compare, Const, Logical, Name, Node, Tuple, Unary, walk
from ..tensors import dtype_name, misread
from .condition import Condition, Unjudgeable
from .numbers import Uncomputed
from .promotion import JUDGEABLE, WHOLE, Kind, divided, joined, raised_dtype, rounded
from .settle import settled, uncomputed
from .splitting import number_name


def raised(x: torch.Tensor) -> torch.Tensor:
    """The tensor in the dtype that conditions are computed in."""
    return x.to(raised_dtype(x.dtype))


def check_readable(name: str, x: torch.Tensor) -> None:
    """Raise Unjudgeable where a tensor's elements cannot be had, or are no real numbers."""
    reason = misread(x)
    if reason is not None and "lazy" not in reason:
        raise Unjudgeable(f"{name} is {reason}")
    kind = type(x)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Unjudgeable(f"{name} is a {kind.__name__}, which alone knows its elements")
    if x.dtype.is_complex:
        raise Unjudgeable(f"{name} is complex, and its elements have no order")
    if x.dtype not in JUDGEABLE:
        raise Unjudgeable(f"{name} is {dtype_name(x.dtype)}, which nothing here computes with")


def holds(
    condition: Condition, tensors: Mapping[str, torch.Tensor], numbers: Sequence[Any]
) -> torch.Tensor:
    """For every element, whether the condition holds: bool, of the shape that the tensors
    broadcast to. Raises Unjudgeable."""
    condition = settled(condition, numbers)
    mine = {name: tensors[name] for name in condition.tensors}
    for name, x in mine.items():
        check_readable(name, x)
    if len({x.device for x in mine.values()}) > 1:
        raise Unjudgeable("its tensors lie on different devices")
    try:
        shape = torch.broadcast_shapes(*(x.shape for x in mine.values()))
        env: dict[str, Any] = {name: raised(x.detach()) for name, x in mine.items()}
        env |= {number_name(index): number for index, number in enumerate(numbers)}
        may_fault = divides(condition.elements) or uncomputed(condition, numbers)
        elements = _Elements(env, mine[condition.tensors[0]].device, may_fault)
        result = elements.truth(condition.elements, None)
        if elements.faults is not None:
            result = result & (elements.faults == 0)
        return torch.as_tensor(result, device=elements.device).expand(shape)
    except RuntimeError as error:
        raise Unjudgeable(str(error).partition("\n")[0]) from None


def divides(node: Node) -> bool:
    """Whether a divisor might be zero."""
    return any(not (isinstance(divisor, Const) and divisor.value) for divisor in divisors(node))


def divisors(node: Node) -> list[Node]:
    found = []
    for each in walk(node):
        match each:
            case Binary(operator="/" | "//" | "%", right=right):
                found.append(right)
            case Call(function="cdiv", operands=(_, right)):
                found.append(right)
    return found


def is_sorted(x: torch.Tensor) -> torch.Tensor:
    """Whether each element is at least the one before it along the last axis; a NaN is not."""
    held = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    if x.ndim:
        held[..., 1:] = x[..., :-1] <= x[..., 1:]
    return held


def is_unique(x: torch.Tensor) -> torch.Tensor:
    """Whether each element differs from all before it along the last axis. The answer is dense,
    however x lies: kernels rely on it."""
    held = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    if x.ndim:
        values, order = torch.sort(x, dim=-1, stable=True)
        repeated = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
        repeated[..., 1:] = values[..., :-1] == values[..., 1:]
        held.scatter_(-1, order, ~repeated)
    return held


_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "/": torch.true_divide,
    "//": torch.floor_divide,
    "%": torch.remainder,
    "cdiv": lambda a, b: -torch.floor_divide(-a, b),
}
_FOLDS = {"min": torch.minimum, "max": torch.maximum}

Value = Any
"""A tensor of bool, int64, float32 or float64, or a number."""


def _kind(value: Value) -> Kind:
    if isinstance(value, torch.Tensor):
        return value.dtype
    return float if isinstance(value, float) else int


def _number(value: Value) -> Value:
    """Truths as 0 and 1."""
    if isinstance(value, torch.Tensor):
        return value.to(torch.int64) if value.dtype is torch.bool else value
    return int(value) if isinstance(value, bool) else value


def _both(left: Value, right: Value) -> Value:
    return left & right


def _either(left: Value, right: Value) -> Value:
    return left | right


def _negated(truth: Value) -> Value:
    return ~truth if isinstance(truth, torch.Tensor) else not truth


@dataclass
class _Elements:
    """Computes values of nodes. `reached` says for which elements a node is asked for its value,
    None standing for all; it is kept only where a zero divisor might matter."""

    env: Mapping[str, Value]
    device: torch.device
    may_fault: bool
    faults: Value = None
    """Where a divisor was zero."""

    def truth(self, node: Node, reached: Value) -> Value:
        value = self.of(node, reached)
        return value != 0 if isinstance(value, torch.Tensor) else bool(value)

    def of(self, node: Node, reached: Value) -> Value:
        match node:
            case Const(value=value):
                return value
            case Name(id=name):
                value = self.env[name]
                if not isinstance(value, Uncomputed):
                    return value
                if reached is None:
                    raise Unjudgeable(value.reason)
                self.fault(reached)
                return 0
            case Unary(operator="not", operand=operand):
                return _negated(self.truth(operand, reached))
            case Unary(operand=operand):
                return -_number(self.of(operand, reached))
            case Binary(operator="**", left=left, right=Const(value=int(power))):
                base = _number(self.of(left, reached))
                return functools.reduce(operator.mul, [base] * power)
            case Binary(operator=name, left=left, right=right) if name in _DIVISIONS:
                return self.division(name, self.of(left, reached), self.of(right, reached), reached)
            case Binary(operator=name, left=left, right=right):
                return self.meeting(name, self.of(left, reached), self.of(right, reached))
            case Logical():
                return self.logical(node, reached)
            case Compare():
                return self.chain(node, reached)
            case Call():
                return self.call(node, reached)
        raise AssertionError(node)

    def meeting(self, name: str, left: Value, right: Value) -> Value:
        dtype = joined(_kind(left), _kind(right))
        return _ORDERS[name](self.cast(left, dtype), self.cast(right, dtype))

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        return value.to(dtype) if isinstance(value, torch.Tensor) else rounded(value, dtype)

    def tensor(self, value: Value, dtype: torch.dtype) -> torch.Tensor:
        """On the device: torch multiplies by the reciprocal of a number that is not."""
        value = self.cast(value, dtype)
        if isinstance(value, torch.Tensor):
            return value
        return torch.full((), value, dtype=dtype, device=self.device)

    def division(self, name: str, left: Value, right: Value, reached: Value) -> Value:
        dtype = (divided if name == "/" else joined)(_kind(left), _kind(right))
        is_whole = _kind(right) in WHOLE
        right = self.tensor(right, dtype)
        if is_whole and self.may_fault:
            is_zero = right == 0
            self.fault(is_zero if reached is None else is_zero & reached)
            right = torch.where(is_zero, torch.ones_like(right), right)
        return _DIVISIONS[name](self.tensor(left, dtype), right)

    def fault(self, where: Value) -> None:
        self.faults = where if self.faults is None else self.faults | where

    def fold(self, name: str, left: Value, right: Value) -> Value:
        dtype = joined(_kind(left), _kind(right))
        return _FOLDS[name](self.tensor(left, dtype), self.tensor(right, dtype))

    def call(self, node: Call, reached: Value) -> Value:
        values = [self.of(operand, reached) for operand in node.operands]
        match node.function:
            case "min" | "max" as name:
                return functools.reduce(functools.partial(self.fold, name), values)
            case "cdiv":
                return self.division("cdiv", values[0], values[1], reached)
            case "abs":
                return abs(_number(values[0]))
            case "sorted":
                return is_sorted(values[0])
            case "unique":
                return is_unique(values[0])
        if not isinstance(values[0], torch.Tensor):
            return (math.isfinite if node.function == "isfinite" else math.isnan)(values[0])
        return (torch.isfinite if node.function == "isfinite" else torch.isnan)(values[0])

    def logical(self, node: Logical, reached: Value) -> Value:
        is_and = node.operator == "and"
        held = self.truth(node.operands[0], reached)
        for operand in node.operands[1:]:
            asked = self.asked(reached, held if is_and else _negated(held))
            held = (_both if is_and else _either)(held, self.truth(operand, asked))
        return held

    def asked(self, reached: Value, going_on: Value) -> Value:
        if not self.may_fault:
            return None
        return going_on if reached is None else reached & going_on

    def chain(self, node: Compare, reached: Value) -> Value:
        held: Value = True
        left = self.of(node.operands[0], reached)
        for name, operand in zip(node.operators, node.operands[1:], strict=True):
            asked = self.asked(reached, held) if held is not True else reached
            if isinstance(operand, Tuple):
                choices = [self.meeting("==", left, self.of(item, asked)) for item in operand.items]
                test = functools.reduce(_either, choices, False)
                test = test if name == "in" else _negated(test)
            else:
                right = self.of(operand, asked)
                test, left = self.meeting(name, left, right), right
            held = held & test
        return held
