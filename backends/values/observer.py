"""Watches the contents of CUDA tensors: one launch a call, and no waiting."""

from __future__ import annotations

import importlib.util
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from contracts import ContractError, Violation
from contracts.contents.condition import Condition, shared_out
from contracts.contents.evaluate import Unjudgeable, is_unique, raised
from contracts.contents.offence import Offence
from contracts.contents.watch import Found, watch
from contracts.tensors import PLAIN_TYPES

from . import kernel
from .layout import lay_out
from .mailbox import WORDS, Mailbox
from .source import (
    BLOCK,
    UNIQUE,
    Shaped,
    compares_only,
    fits_int32,
    operands,
    reads_neighbours,
    record_words,
)

PROGRAMS_PER_PROCESSOR = 8
"""Programs of 256 threads that fill a multiprocessor of 2048."""

KEPT_PLANS = 256
FIT_INT32 = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32)


@dataclass(frozen=True)
class Group:
    """Conditions that one kernel judges, and their positions among all of a call's."""

    positions: tuple[int, ...]
    conditions: tuple[Condition, ...]
    tensors: tuple[tuple[int, ...], ...]
    """For each condition, its tensors' positions among all of a call's."""
    derived: tuple[tuple[int, ...], ...]
    """For each condition, the positions of those tensors whose unique elements it asks for."""


@dataclass(frozen=True)
class Plan:
    """How one group judges tensors of certain shapes, strides and dtypes."""

    group: Group
    structure: kernel.Structure
    programs: int
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    """Of the tensors of each condition."""
    sizes: tuple[tuple[int, ...], ...]
    """For each condition the kernel's arguments between addresses and numbers."""
    numels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sender:
    """What makes sense of a record."""

    call: Any
    plan: Plan

    def read(self, words: Sequence[int]) -> Found:
        found = []
        start = 0
        group, structure = self.plan.group, self.plan.structure
        for position, shaped, shapes in zip(
            group.positions, structure.conditions, self.plan.shapes, strict=True
        ):
            count, index, *values = words[start : start + 2 + len(shapes)]
            if count:
                kept = tuple(
                    as_element(word, dtype)
                    for word, dtype in zip(values, shaped.dtypes, strict=False)
                )
                found.append((position, Offence(count, index, kept, shapes)))
            start += 2 + len(shapes)
        return found


@dataclass(frozen=True)
class LostCall:
    """A call whose slot was given to another before the device had judged it."""

    thread: int

    def error(self, found: Found) -> ContractError:
        message = "contents broke a rule, so long ago that the call is no longer known"
        return ContractError("a watched function", [Violation("values", message)])


class KernelObserver:
    """Watches tensors of CUDA devices; of the CPU too, in Triton's interpreter."""

    def __init__(self) -> None:
        self.states: dict[tuple[int, int], torch.Tensor] = {}
        """Each stream's own: its kernels run one after another."""
        self.kernels: dict[tuple[kernel.Structure, int], Any] = {}

    @cached_property
    def mailbox(self) -> Mailbox:
        return Mailbox(pinned=not kernel.interpreted())

    def judge_of(self, conditions: tuple[Condition, ...]) -> KernelJudge:
        return KernelJudge(self, conditions)

    def collect(self) -> Iterator[tuple[Any, Found]]:
        if "mailbox" not in vars(self):
            return
        for letter in self.mailbox.collect():
            if letter.sender is None:
                yield LostCall(threading.get_ident()), []
            else:
                yield letter.sender.call, letter.sender.read(letter.words)

    def wait(self) -> None:
        for device_index in {index for index, _ in self.states if index >= 0}:
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("contracts.synchronize() cannot wait inside a graph's capture")
            torch.cuda.synchronize(device_index)

    def launch(
        self, plan: Plan, operands: Sequence[Sequence[torch.Tensor]], numbers: Any, call: Any
    ) -> None:
        """Put the kernel on the current stream of the tensors' device, which is current."""
        device = operands[0][0].device
        index = -1 if device.index is None else device.index
        captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        run = self.kernels.get((plan.structure, index))
        if run is None:
            if captured:
                raise RuntimeError(
                    "contents are watched here for the first time, inside a CUDA graph capture, "
                    "where no kernel can be compiled: make the call once before capturing it"
                )
            run = self.kernels[plan.structure, index] = kernel.load(plan.structure, index)
        if captured:  # the graph's own, and zero at the beginning of each replay
            state = torch.zeros(WORDS, dtype=torch.int64, device=device)
        else:
            stream = kernel.current_stream(index)
            if (index, stream) not in self.states:
                self.states[index, stream] = torch.zeros(WORDS, dtype=torch.int64, device=device)
            state = self.states[index, stream]
        mark, record, attention = self.mailbox.address(Sender(call, plan), captured)
        arguments: list[Any] = [mark, *kernel.arguments_of((state,)), record, attention]
        for given, sizes, own, numel in zip(
            operands, plan.sizes, numbers, plan.numels, strict=True
        ):
            arguments += kernel.arguments_of(given)
            arguments += sizes
            arguments += own
            arguments.append(numel)
        run[(plan.programs, 1, 1)](*arguments)


class KernelJudge:
    """Judges the conditions of one contract, or those of them that apply to a call."""

    def __init__(self, observer: KernelObserver, conditions: tuple[Condition, ...]) -> None:
        self.observer = observer
        names = list(dict.fromkeys(name for each in conditions for name in each.tensors))
        self.groups = [
            Group(
                positions,
                tuple(conditions[p] for p in positions),
                tuple(tuple(map(names.index, conditions[p].tensors)) for p in positions),
                tuple(
                    tuple(i for i, name in enumerate(names) if UNIQUE.format(name) in loaded)
                    for p in positions
                    for loaded in [operands(conditions[p])]
                ),
            )
            for positions in parted(conditions)
        ]
        self.conditions = conditions
        self.plans: dict[Any, list[Plan]] = {}

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: Sequence[Any], call: Any) -> None:
        device = tensors[0].device
        direct = loadable(device)
        tensors = [
            x
            if x.dtype in direct and type(x) in PLAIN_TYPES and not x.is_neg()
            else plain(x, direct)
            for x in tensors
        ]
        key = (
            tuple(
                [(x.shape, x.stride(), x.dtype, x.data_ptr() % kernel.ALIGNMENT) for x in tensors]
            ),
            tuple(map(fits_int32, numbers)),
            tuple(map(type, numbers)),
            device,
        )
        plans = self.plans.get(key)
        if plans is None:
            if len(self.plans) >= KEPT_PLANS:
                self.plans.clear()
            plans = self.plans[key] = [self.plan(group, tensors, numbers) for group in self.groups]
        own = [mine for _, mine in shared_out(self.conditions, numbers)]
        here = device.type != "cuda" or device.index == torch.cuda.current_device()
        with nullcontext() if here else torch.cuda.device(device):
            for plan in plans:
                if plan.programs:
                    group = plan.group
                    given = [
                        [
                            *(tensors[i] for i in mine),
                            *(is_unique(raised(tensors[i])) for i in more),
                        ]
                        for mine, more in zip(group.tensors, group.derived, strict=True)
                    ]
                    self.observer.launch(plan, given, [own[p] for p in group.positions], call)

    def plan(self, group: Group, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Plan:
        own = [mine for _, mine in shared_out(self.conditions, numbers)]
        shaped, shapes, sizes, numels = [], [], [], []
        aligned = True
        for condition, position, mine, more in zip(
            group.conditions, group.positions, group.tensors, group.derived, strict=True
        ):
            given = [tensors[i] for i in mine]
            masks = [torch.empty(tensors[i].shape, dtype=torch.bool, device="meta") for i in more]
            if any(x.device != tensors[0].device for x in given):
                raise Unjudgeable("its tensors lie on different devices")
            loaded = [*given, *masks]
            try:
                layout = lay_out(
                    [x.shape for x in loaded],
                    [x.stride() for x in loaded],
                    keep_last=reads_neighbours(condition),
                )
            except RuntimeError as error:
                raise Unjudgeable(str(error).partition("\n")[0]) from None
            aligned &= all(x.data_ptr() % kernel.ALIGNMENT == 0 for x in given)
            shaped.append(
                Shaped(
                    condition,
                    tuple(x.dtype for x in loaded),
                    tuple(tuple(map(step_of, steps)) for steps in layout.strides),
                    tuple(isinstance(number, float) for number in own[position]),
                    even=layout.numel % BLOCK == 0,
                    narrow=compares_only(condition)
                    and all(x.dtype in FIT_INT32 for x in loaded)
                    and all(fits_int32(n) for n in own[position]),
                )
            )
            steps = [step for strides in layout.strides for step in strides if step not in (0, 1)]
            shapes.append(tuple(tuple(x.shape) for x in given))
            sizes.append((*layout.sizes[1:], *steps))
            numels.append(layout.numel)
        blocks = sum(-(-numel // BLOCK) for numel in numels)
        return Plan(
            group,
            kernel.Structure(tuple(shaped), aligned),
            min(blocks, PROGRAMS_PER_PROCESSOR * processors(tensors[0].device)),
            tuple(shapes),
            tuple(sizes),
            tuple(numels),
        )


def parted(conditions: Sequence[Condition]) -> list[tuple[int, ...]]:
    """Positions of the conditions, in runs whose records fit a slot of the mailbox."""
    runs: list[list[int]] = [[]]
    for position in range(len(conditions)):
        if record_words([conditions[p] for p in (*runs[-1], position)]) > WORDS:
            runs.append([])
        runs[-1].append(position)
    return [tuple(run) for run in runs if run]


def step_of(stride: int) -> str:
    return str(stride) if stride in (0, 1) else "n"


def as_element(word: int, dtype: torch.dtype) -> int | float | bool:
    """What a kernel has written of an element: floats as the bits of a float64."""
    if dtype.is_floating_point:
        return float(struct.unpack("<d", struct.pack("<q", word))[0])
    return bool(word) if dtype is torch.bool else word


def plain(x: torch.Tensor, direct: frozenset[torch.dtype]) -> torch.Tensor:
    """A tensor that a kernel reads rightly at its address."""
    if type(x) not in PLAIN_TYPES and is_traceable_wrapper_subclass(x):
        raise Unjudgeable(f"the elements of a {type(x).__name__} lie in other tensors")
    x = x.detach().resolve_neg()
    return x if x.dtype in direct else raised(x)


@cache
def loadable(device: torch.device) -> frozenset[torch.dtype]:
    """The dtypes that a kernel loads as they are. FP8 has to be known to the device; to Triton's
    interpreter it is not, which takes its NaN for a number."""
    dtypes = frozenset(kernel.POINTEES)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        return dtypes
    return dtypes - {torch.float8_e4m3fn, torch.float8_e5m2}


@cache
def processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def register() -> None:
    """Watch CUDA tensors with kernels from now on, where there is a Triton to compile them."""
    if importlib.util.find_spec("triton") is not None:
        watch.register("cuda", KernelObserver())
