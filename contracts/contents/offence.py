"""Elements that break a condition, as data, and in words."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .condition import Condition
from .evaluate import holds
from .plainly import plainly
from .promotion import raised_dtype, rounded


@dataclass(frozen=True)
class Offence:
    """How many elements break a condition, and the first of them in row-major order."""

    count: int
    index: int
    """Within all elements of the shape that the tensors broadcast to."""
    values: tuple[int | float | bool, ...]
    """What each tensor of the condition holds there."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of each tensor of the condition."""
    dtypes: tuple[torch.dtype, ...]
    """And its dtype."""

    def message(self, condition: Condition) -> str:
        """`topk_length[3] is 300, breaks 0 <= topk_length <= topk`"""
        facts = " and ".join(f"{place} is {value}" for place, value in self.places(condition))
        return f"{facts}, breaks {condition.text}"

    def places(self, condition: Condition) -> list[tuple[str, str]]:
        """Each element with its value, as a caller would write them."""
        position = unravel(self.index, torch.broadcast_shapes(*self.shapes))
        found = []
        for name, shape, value, dtype in zip(
            condition.tensors, self.shapes, self.values, self.dtypes, strict=True
        ):
            own = position[len(position) - len(shape) :]
            index = [i if size > 1 else 0 for i, size in zip(own, shape, strict=True)]
            place = f"{name}[{', '.join(map(str, index))}]" if shape else name
            found.append((place, shortest(value, dtype)))
        return found

    def extent(self) -> str:
        """`2 of 8 elements break it`"""
        total = math.prod(torch.broadcast_shapes(*self.shapes))
        return f"{self.count} of {total} element{'s break' if total > 1 else ' breaks'} it"


def shortest(value: int | float | bool, dtype: torch.dtype) -> str:
    """The fewest digits that tell the element from all others of the dtype it is computed in: of
    FP8's own, 110 would stand for 112."""
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    wide = raised_dtype(dtype)
    texts = (f"{value:.{digits}g}" for digits in range(1, 17))
    close = (text for text in texts if rounded(float(text), wide) == value)
    return repr(float(next(close, value))).removesuffix(".0")


def as_word(x: torch.Tensor) -> torch.Tensor:
    """Elements as int64, floats as the bits of a float64: how observers bring them to the host."""
    return x.to(torch.float64).view(torch.int64) if x.is_floating_point() else x.to(torch.int64)


def as_element(word: int, dtype: torch.dtype) -> int | float | bool:
    """The element that such a word stands for."""
    if dtype.is_floating_point:
        return float(struct.unpack("<d", struct.pack("<q", word))[0])
    return bool(word) if dtype is torch.bool else word


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index along each axis, from the row-major index."""
    position = []
    for size in reversed(shape):
        position.append(index % size)
        index //= size
    return tuple(reversed(position))


def find(
    condition: Condition, tensors: Mapping[str, torch.Tensor], numbers: Sequence[Any]
) -> Offence | None:
    """Judge the condition in torch, and wait for the answer. Raises Unjudgeable."""
    mine = [tensors[name] for name in condition.tensors]
    with plainly():
        broken = ~holds(condition, tensors, numbers)
        places = broken.flatten().nonzero()
        if not len(places):
            return None
        index = int(places[0])
        position = unravel(index, broken.shape)
        values = [x.detach().expand(broken.shape)[position].item() for x in mine]
    shapes = tuple(tuple(x.shape) for x in mine)
    return Offence(len(places), index, tuple(values), shapes, tuple(x.dtype for x in mine))
