"""The values of a condition's nodes, for all elements at once, in torch."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..expressions import Binary, Call, Compare, Const, Logical, Name, Node, Tuple, Unary
from .condition import Unjudgeable
from .numbers import Uncomputed
from .promotion import WHOLE, Kind, divided, joined, rounded
from .rows import is_sorted, is_unique

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


def _negated(truth: Value) -> Value:
    return ~truth if isinstance(truth, torch.Tensor) else not truth


@dataclass
class Elements:
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
            held = (operator.and_ if is_and else operator.or_)(held, self.truth(operand, asked))
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
                test = functools.reduce(operator.or_, choices, False)
                test = test if name == "in" else _negated(test)
            else:
                right = self.of(operand, asked)
                test, left = self.meeting(name, left, right), right
            held = held & test
        return held
