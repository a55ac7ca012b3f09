"""Elements that break a condition, as data, and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .condition import Condition
from .evaluate import holds


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

    def message(self, condition: Condition) -> str:
        """`topk_length[3] is 300, breaks 0 <= topk_length <= topk`"""
        facts = " and ".join(f"{place} is {value}" for place, value in self.places(condition))
        return f"{facts}, breaks {condition.text}"

    def places(self, condition: Condition) -> list[tuple[str, str]]:
        """Each element with its value, as a caller would write them."""
        position = unravel(self.index, torch.broadcast_shapes(*self.shapes))
        found = []
        for name, shape, value in zip(condition.tensors, self.shapes, self.values, strict=True):
            own = position[len(position) - len(shape) :]
            index = [i if size > 1 else 0 for i, size in zip(own, shape, strict=True)]
            place = f"{name}[{', '.join(map(str, index))}]" if shape else name
            found.append((place, f"{value:.6g}" if isinstance(value, float) else str(value)))
        return found

    def extent(self) -> str:
        """`2 of 8 elements break it`"""
        total = math.prod(torch.broadcast_shapes(*self.shapes))
        return f"{self.count} of {total} element{'s break' if total > 1 else ' breaks'} it"


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
    broken = ~holds(condition, tensors, numbers)
    places = broken.flatten().nonzero()
    if not len(places):
        return None
    index = int(places[0])
    position = unravel(index, broken.shape)
    values = [
        tensors[name].detach().expand(broken.shape)[position].item() for name in condition.tensors
    ]
    shapes = tuple(tuple(tensors[name].shape) for name in condition.tensors)
    return Offence(len(places), index, tuple(values), shapes)
