"""A condition on elements, judged in torch. This is its definition: others agree with it.

Integers and bools are raised to int64 and floats narrower than float32 to float32 before anything
is computed, so that nothing overflows that need not, and FP8 can be computed with at all. `//` and
`%` round down, as in Python; `/` is true division; a number meets float32 elements as float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_gradtrackingtensor,
    peek_interpreter_stack,
)
from torch._subclasses.fake_tensor import FakeTensor

from ..expressions import Binary, Call, Compare, Const, Logical, Name, Node, Tuple, Unary
from ..tensors import misread
from .condition import Condition, number_name


class Unjudgeable(Exception):
    """The condition cannot be applied to these tensors; `str()` says why."""


def has_contents(x: torch.Tensor) -> bool:
    """Whether there are elements to read: fake and meta tensors have none, and inside vmap each
    stands for many."""
    return not (isinstance(x, FakeTensor) or x.is_meta or is_batchedtensor(x))


def in_transform() -> bool:
    """Whether a transform of torch.func is at work: vmap, grad, jvp."""
    return peek_interpreter_stack() is not None


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    """The tensor that a grad or jvp transform has wrapped."""
    while is_gradtrackingtensor(x):
        x = get_unwrapped(x)
    return x


def raised(x: torch.Tensor) -> torch.Tensor:
    """The tensor in the dtype that conditions are computed in."""
    if x.dtype.is_complex:
        raise Unjudgeable("complex elements have no order")
    if not x.dtype.is_floating_point:
        return x.to(torch.int64)
    return x if x.dtype is torch.float64 else x.to(torch.float32)


def holds(
    condition: Condition, tensors: Mapping[str, torch.Tensor], numbers: Sequence[Any]
) -> torch.Tensor:
    """For every element, whether the condition holds: bool, of the shape that the tensors
    broadcast to."""
    for name in condition.tensors:
        reason = misread(tensors[name])
        if reason is not None and "lazy" not in reason:
            raise Unjudgeable(f"{name} is {reason}")
    env: dict[str, Any] = {name: raised(tensors[name].detach()) for name in condition.tensors}
    env |= {number_name(index): number for index, number in enumerate(numbers)}
    try:
        result = _truth(_evaluate(condition.elements, env))
        shape = torch.broadcast_shapes(*(env[name].shape for name in condition.tensors))
        return torch.as_tensor(result, device=env[condition.tensors[0]].device).expand(shape)
    except RuntimeError as error:
        raise Unjudgeable(str(error).partition("\n")[0]) from None


def is_sorted(x: torch.Tensor) -> torch.Tensor:
    """Whether each element is at least the one before it along the last axis; a NaN is not."""
    held = torch.ones_like(x, dtype=torch.bool)
    if x.ndim:
        held[..., 1:] = x[..., :-1] <= x[..., 1:]
    return held


def is_unique(x: torch.Tensor) -> torch.Tensor:
    """Whether each element differs from all before it along the last axis."""
    held = torch.ones_like(x, dtype=torch.bool)
    if x.ndim:
        values, order = torch.sort(x, dim=-1, stable=True)
        repeated = torch.zeros_like(held)
        repeated[..., 1:] = values[..., :-1] == values[..., 1:]
        held.scatter_(-1, order, ~repeated)
    return held


def _truth(value: Any) -> Any:
    return value != 0 if isinstance(value, torch.Tensor) else bool(value)


def _both(left: Any, right: Any) -> Any:
    return left & right


def _either(left: Any, right: Any) -> Any:
    return left | right


def _least(left: Any, right: Any) -> Any:
    return torch.minimum(*_as_tensors(left, right))


def _greatest(left: Any, right: Any) -> Any:
    return torch.maximum(*_as_tensors(left, right))


def _as_tensors(left: Any, right: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A number takes the dtype that it would have in `tensor + number`."""
    for x, number in ((left, right), (right, left)):
        if not isinstance(number, torch.Tensor):
            dtype = torch.result_type(x, number)
            pair = [torch.as_tensor(side, dtype=dtype, device=x.device) for side in (left, right)]
            return pair[0], pair[1]
    return left, right


_BINARY = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "isfinite": lambda x: torch.isfinite(x) if isinstance(x, torch.Tensor) else math.isfinite(x),
    "isnan": lambda x: torch.isnan(x) if isinstance(x, torch.Tensor) else math.isnan(x),
    "abs": abs,
    "cdiv": lambda a, b: -(-a // b),
    "sorted": is_sorted,
    "unique": is_unique,
}
_FOLDS = {"min": _least, "max": _greatest}


def _evaluate(node: Node, env: Mapping[str, Any]) -> Any:
    match node:
        case Const(value=value):
            return value
        case Name(id=name):
            return env[name]
        case Unary(operator="not", operand=operand):
            truth = _truth(_evaluate(operand, env))
            return ~truth if isinstance(truth, torch.Tensor) else not truth
        case Unary(operand=operand):
            return -_evaluate(operand, env)
        case Binary(operator="**", left=left, right=Const(value=int(power))):
            return functools.reduce(lambda a, b: a * b, [_evaluate(left, env)] * power)
        case Binary(operator=operator, left=left, right=right):
            return _BINARY[operator](_evaluate(left, env), _evaluate(right, env))
        case Logical(operator=operator, operands=operands):
            join = _both if operator == "and" else _either
            return functools.reduce(join, (_truth(_evaluate(item, env)) for item in operands))
        case Compare():
            return _chain(node, env)
        case Call(function=function, operands=operands) if function in _FOLDS:
            return functools.reduce(_FOLDS[function], (_evaluate(item, env) for item in operands))
        case Call(function=function, operands=operands):
            return _FUNCTIONS[function](*(_evaluate(item, env) for item in operands))
    raise AssertionError(node)


def _chain(node: Compare, env: Mapping[str, Any]) -> Any:
    held: Any = True
    left = _evaluate(node.operands[0], env)
    for operator, operand in zip(node.operators, node.operands[1:], strict=True):
        if isinstance(operand, Tuple):
            choices = [left == _evaluate(item, env) for item in operand.items]
            among = functools.reduce(_either, choices, False)
            test = among if operator == "in" else among == False  # noqa: E712, elementwise
            right = None
        else:
            right = _evaluate(operand, env)
            test = _BINARY[operator](left, right)
        held = held & test
        left = right
    return held
