"""A condition with all that its kernel's text depends on, and what may be asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from contracts.contents.condition import Condition
from contracts.expressions import Binary, Call, Const, Name, Unary, walk

UNIQUE = "unique of {}"
"""The operand that says which elements of a tensor are unique: torch finds that out by sorting."""


@dataclass(frozen=True)
class Shaped:
    """One condition, specialised: what the kernel's text depends on beside the expression."""

    condition: Condition
    dtypes: tuple[torch.dtype, ...]
    """Of each operand."""
    steps: tuple[tuple[str, ...], ...]
    """For each operand and axis: "0" and "1" for those strides, "n" for any other."""
    floats: tuple[bool, ...]
    """Which numbers are floats."""
    even: bool
    """Whether the elements fill whole blocks."""
    narrow: bool
    """Whether int32 holds everything that is computed."""

    @property
    def operands(self) -> tuple[str, ...]:
        return operands(self.condition)

    @property
    def axes(self) -> int:
        return len(self.steps[0])

    @property
    def stepped(self) -> list[tuple[int, int]]:
        """The operands and axes whose strides the kernel is given."""
        return [
            (t, axis)
            for t, steps in enumerate(self.steps)
            for axis, step in enumerate(steps)
            if step == "n"
        ]


def operands(condition: Condition) -> tuple[str, ...]:
    """What the kernel loads for a condition: its tensors, and what torch derives from them."""
    derived = [
        UNIQUE.format(node.operands[0].id)
        for node in walk(condition.elements)
        if isinstance(node, Call)
        and node.function == "unique"
        and isinstance(node.operands[0], Name)
    ]
    return (*condition.tensors, *dict.fromkeys(derived))


def fits_int32(number: Any) -> bool:
    """Whether int32 holds the number, or it is a float, which no integer dtype concerns."""
    return isinstance(number, float) or -(2**31) <= number < 2**31


def compares_only(condition: Condition) -> bool:
    """Whether int32 elements and numbers need nothing wider: nothing is computed from them."""
    return not any(
        isinstance(node, Binary)
        or (isinstance(node, Const) and not fits_int32(node.value))
        or (isinstance(node, Unary) and node.operator == "-")
        or (isinstance(node, Call) and node.function in ("abs", "cdiv"))
        for node in walk(condition.elements)
    )


def reads_neighbours(condition: Condition) -> bool:
    return any(isinstance(n, Call) and n.function == "sorted" for n in walk(condition.elements))


def record_words(conditions: Sequence[Condition]) -> int:
    """The length of a record."""
    return 1 + sum(2 + len(condition.tensors) for condition in conditions)
