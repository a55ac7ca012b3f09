"""Whether a kernel can judge a call exactly as torch does; where it cannot, torch does it.

What depends on how operands meet is found where it would be written, by `text`; the rest is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from contracts.contents.condition import Condition, divisors
from contracts.contents.splitting import number_index
from contracts.expressions import Binary, Call, Const, Name, Node, children, walk

from .mailbox import WORDS
from .shaped import record_words
from .text import Inexpressible

GREATEST_COST = 400
"""Operations in the text of one condition, which its compiler has to read."""
GREATEST_DEPTH = 40
"""Operations within one another: Triton's reader of source recurses by several calls for each."""


def check(condition: Condition, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> None:
    """Raise Inexpressible where no kernel should be written for a call's tensors and numbers."""
    if record_words([condition]) > WORDS:
        raise Inexpressible("more tensors than a record holds")
    if cost(condition.elements) > GREATEST_COST or depth(condition.elements) > GREATEST_DEPTH:
        raise Inexpressible("too long a text")
    for node in divisors(condition.elements):
        index = number_index(node.id) if isinstance(node, Name) else None
        if index is not None and numbers[index] == 0 and not isinstance(numbers[index], float):
            raise Inexpressible("a divisor that is zero")
    named = dict(zip(condition.tensors, tensors, strict=True))
    for node in walk(condition.elements):
        if isinstance(node, Call) and node.function == "sorted":
            assert isinstance(node.operands[0], Name)
            x = named[node.operands[0].id]
            if x.is_floating_point() and x.ndim and x.shape[-1] > 1 and x.stride(-1) == 0:
                raise Inexpressible("a NaN is not sorted behind itself")


def cost(node: Node) -> int:
    """How many operations its text has: a power repeats what it is a power of."""
    match node:
        case Binary(operator="**", left=left, right=Const(value=int(power))):
            return power * (1 + cost(left))
    return 1 + sum(map(cost, children(node)))


def depth(node: Node) -> int:
    return 1 + max(map(depth, children(node)), default=0)
