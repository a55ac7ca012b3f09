"""A condition on elements, judged in torch. This is its definition: others agree with it.

Everything is computed in int64, float32 or float64, as `promotion` says, never in what torch would
choose. `//` and `%` round down, as in Python; `/` is true division. An integer divisor of zero
breaks the rule for the elements that come to it: not for those for which an operand of `and` or
`or` before it, or a part of a chain of comparisons, has decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..tensors import dtype_name, misread
from .condition import Condition, Unjudgeable
from .elements import Elements
from .promotion import JUDGEABLE, raised
from .settle import settled, uncomputed
from .splitting import number_name


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
        may_fault = condition.divides or uncomputed(condition, numbers)
        elements = Elements(env, mine[condition.tensors[0]].device, may_fault)
        result = elements.truth(condition.elements, None)
        if elements.faults is not None:
            result = result & (elements.faults == 0)
        return torch.as_tensor(result, device=elements.device).expand(shape)
    except RuntimeError as error:
        raise Unjudgeable(str(error).partition("\n")[0]) from None
