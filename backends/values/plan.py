"""What can be prepared once for all calls whose tensors are of the same shapes and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import torch

from contracts.contents.condition import Condition, Unjudgeable
from contracts.contents.plainly import plainly
from contracts.contents.promotion import raised
from contracts.contents.rows import is_unique

from . import kernel, source
from .expressible import check
from .layout import lay_out
from .mailbox import WORDS
from .shaped import (
    UNIQUE,
    Shaped,
    compares_only,
    fits_int32,
    operands,
    reads_neighbours,
    record_words,
)
from .source import BLOCK

PROGRAMS_PER_PROCESSOR = 8
"""Programs of 256 threads that fill a multiprocessor of 2048."""

_FIT_INT32 = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32)


@dataclass(frozen=True)
class Group:
    """Conditions that one kernel judges, and where among all of a call's they and theirs stand."""

    conditions: tuple[Condition, ...]
    positions: tuple[int, ...]
    tensors: tuple[tuple[int, ...], ...]
    """For each condition, the positions of its tensors."""
    sought: tuple[tuple[int, ...], ...]
    """For each condition, the positions of those tensors whose unique elements it asks for."""
    numbers: tuple[tuple[int, ...], ...]
    """For each condition, the positions of its numbers."""


@dataclass
class Arguments:
    """A kernel's arguments behind those that every kernel has. What a call brings is left open, and
    filled in by pairs: where among the arguments, and which of the call's."""

    fixed: list[Any] = field(default_factory=list)
    tensors: list[tuple[int, int]] = field(default_factory=list)
    sought: list[tuple[int, int]] = field(default_factory=list)
    """Tensors whose unique elements are asked for."""
    numbers: list[tuple[int, int]] = field(default_factory=list)

    def leave_open(self, pairs: list[tuple[int, int]], positions: Sequence[int]) -> None:
        for position in positions:
            pairs.append((len(self.fixed), position))
            self.fixed.append(None)

    def of(self, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> list[Any]:
        """Those of one call. What is made for it stands there itself, so that it lives until the
        launch."""
        arguments = self.fixed.copy()
        for place, position in self.tensors:
            arguments[place] = kernel.argument_of(tensors[position])
        if self.sought:
            with plainly():
                for place, position in self.sought:
                    arguments[place] = is_unique(raised(tensors[position]))
        for place, position in self.numbers:
            arguments[place] = numbers[position]
        return arguments


@dataclass
class Plan:
    """How one group judges tensors of certain shapes, strides and dtypes."""

    group: Group
    structure: kernel.Structure
    programs: int
    """0 where there is no element."""
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    """For each condition, of its tensors."""
    arguments: Arguments
    run: kernel.Compiled | kernel.Interpreted | None = None
    """The kernel, once it is loaded."""
    sender: Any = None
    """Who sent the last call: the next is mostly the same."""


def groups_of(conditions: Sequence[Condition]) -> list[Group]:
    """All conditions, in as few groups as their records allow."""
    names = list(dict.fromkeys(name for each in conditions for name in each.tensors))
    stops = [*accumulate(len(each.numbers) for each in conditions)]
    own = [tuple(range(start, stop)) for start, stop in pairwise([0, *stops])]
    groups = []
    for positions in parted(conditions):
        mine = tuple(conditions[position] for position in positions)
        tensors = tuple(tuple(map(names.index, each.tensors)) for each in mine)
        sought = tuple(
            tuple(
                names.index(name)
                for derived in operands(each)[len(each.tensors) :]
                for name in each.tensors
                if UNIQUE.format(name) == derived
            )
            for each in mine
        )
        numbers = tuple(own[position] for position in positions)
        groups.append(Group(mine, positions, tensors, sought, numbers))
    return groups


def parted(conditions: Sequence[Condition]) -> list[tuple[int, ...]]:
    """Positions of the conditions, in runs whose records fit a slot of the mailbox."""
    runs: list[list[int]] = [[]]
    for position in range(len(conditions)):
        if record_words([conditions[p] for p in (*runs[-1], position)]) > WORDS:
            runs.append([])
        runs[-1].append(position)
    return [tuple(run) for run in runs if run]


def plan(group: Group, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Plan:
    """Plan for a call's tensors and numbers. Raises Unjudgeable, and Inexpressible where no kernel
    can judge as torch does."""
    shaped, shapes, numels = [], [], []
    arguments = Arguments()
    aligned = True
    for condition, mine, sought, numbered in zip(
        group.conditions, group.tensors, group.sought, group.numbers, strict=True
    ):
        given = [tensors[i] for i in mine]
        own = [numbers[i] for i in numbered]
        if any(x.device != tensors[0].device for x in given):
            raise Unjudgeable("its tensors lie on different devices")
        masks = [torch.empty(tensors[i].shape, dtype=torch.bool, device="meta") for i in sought]
        loaded = [*given, *masks]
        try:
            layout = lay_out(
                [x.shape for x in loaded],
                [x.stride() for x in loaded],
                keep_last=reads_neighbours(condition),
            )
        except RuntimeError as error:
            raise Unjudgeable(str(error).partition("\n")[0]) from None
        check(condition, given, own)
        aligned &= all(x.data_ptr() % kernel.ALIGNMENT == 0 for x in given)
        narrow = all(x.dtype in _FIT_INT32 for x in loaded) and all(map(fits_int32, own))
        shaped.append(
            Shaped(
                condition,
                tuple(x.dtype for x in loaded),
                tuple(tuple(map(_step, steps)) for steps in layout.strides),
                tuple(isinstance(number, float) for number in own),
                even=layout.numel % BLOCK == 0,
                narrow=narrow and compares_only(condition),
            )
        )
        steps = [step for strides in layout.strides for step in strides if step not in (0, 1)]
        shapes.append(tuple(tuple(x.shape) for x in given))
        numels.append(layout.numel)
        arguments.leave_open(arguments.tensors, mine)
        arguments.leave_open(arguments.sought, sought)
        arguments.fixed += (*layout.sizes[1:], *steps)
        arguments.leave_open(arguments.numbers, numbered)
        arguments.fixed.append(layout.numel)
    source.check(shaped)
    return Plan(
        group,
        kernel.Structure(tuple(shaped), aligned),
        programs=min(
            sum(-(-numel // BLOCK) for numel in numels),
            PROGRAMS_PER_PROCESSOR * _processors(tensors[0].device),
        ),
        shapes=tuple(shapes),
        arguments=arguments,
    )


def _step(stride: int) -> str:
    return str(stride) if stride in (0, 1) else "n"


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
