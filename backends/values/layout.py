"""How the elements of a condition lie in its tensors, with as few axes as say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Layout:
    """The shape that a condition's tensors broadcast to, and each tensor's strides along it."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    """In elements; 0 along an axis that a tensor is repeated along."""

    @property
    def numel(self) -> int:
        count = 1
        for size in self.sizes:
            count *= size
        return count


def lay_out(
    shapes: Sequence[Sequence[int]], strides: Sequence[Sequence[int]], *, keep_last: bool
) -> Layout:
    """Broadcast, drop axes of one element, and merge neighbours that every tensor steps through
    evenly. The last axis stays an axis of its own where its ends matter.

    Raises RuntimeError where the shapes do not broadcast.
    """
    whole = torch.broadcast_shapes(*shapes)
    expanded = []
    for shape, stride in zip(shapes, strides, strict=True):
        missing = len(whole) - len(shape)
        own = [0 if size == 1 else step for size, step in zip(shape, stride, strict=True)]
        expanded.append([0] * missing + own)
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in shapes]
    for axis, size in enumerate(whole):
        is_last = keep_last and axis == len(whole) - 1
        if size == 1 and not is_last:
            continue
        mine = [own[axis] for own in expanded]
        if (
            sizes
            and not is_last
            and all(outer[-1] == inner * size for outer, inner in zip(steps, mine, strict=True))
        ):
            sizes[-1] *= size
            for outer, inner in zip(steps, mine, strict=True):
                outer[-1] = inner
            continue
        sizes.append(size)
        for outer, inner in zip(steps, mine, strict=True):
            outer.append(inner)
    if not sizes:
        sizes, steps = [1], [[0] for _ in shapes]
    return Layout(tuple(sizes), tuple(map(tuple, steps)))
