"""Watches the contents of CUDA tensors: one launch a call, and no waiting."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from contracts import ContractError, Violation
from contracts.contents.condition import Condition
from contracts.contents.offence import Offence, as_element
from contracts.contents.plainly import plainly
from contracts.contents.torch_observer import TorchObserver
from contracts.contents.watch import Found, this_thread, watch

from . import kernel
from .judge import KernelJudge
from .mailbox import WORDS, Mailbox
from .plan import Plan


@dataclass(slots=True)
class Sender:
    """What makes sense of a record."""

    call: Any
    plan: Plan

    def read(self, words: Sequence[int]) -> Found:
        """What a kernel wrote behind its mark."""
        found = []
        start = 0
        conditions = self.plan.structure.conditions
        for position, shaped, shapes in zip(
            self.plan.group.positions, conditions, self.plan.shapes, strict=True
        ):
            stop = start + 2 + len(shapes)
            count, index, *values = words[start:stop]
            if count:
                dtypes = shaped.dtypes[: len(shapes)]
                kept = tuple(map(as_element, values, dtypes))
                found.append((position, Offence(count, index, kept, shapes, dtypes)))
            start = stop
        return found


@dataclass(frozen=True)
class LostCall:
    """A call whose slot was given to another before the device had judged it."""

    thread: object

    def error(self, found: Found) -> ContractError:
        message = "contents broke a rule, so long ago that the call is no longer known"
        return ContractError("a watched function", [Violation("values", message)])


class KernelObserver:
    """Watches tensors of CUDA devices; in Triton's interpreter, of the CPU. What no kernel can say
    exactly it leaves to torch."""

    def __init__(self) -> None:
        self.torch = TorchObserver()
        self._states: dict[tuple[int, int], torch.Tensor] = {}
        """Each stream's own: its kernels run one after another."""
        self._kernels: dict[tuple[kernel.Structure, int], kernel.Compiled | kernel.Interpreted] = {}
        self._mailbox: Mailbox | None = None
        self._lock = threading.Lock()

    def judge_of(self, conditions: tuple[Condition, ...]) -> KernelJudge:
        return KernelJudge(conditions, self.launch, self.torch.judge_of(conditions))

    def collect(self) -> Iterator[tuple[Any, Found]]:
        yield from self.torch.collect()
        if self._mailbox is None:
            return
        for letter in self._mailbox.collect():
            if letter.sender is None:
                yield LostCall(this_thread()), []
            else:
                yield letter.sender.call, letter.sender.read(letter.words)

    def wait(self) -> None:
        self.torch.wait()
        for device_index in {index for index, _ in self._states if index >= 0}:
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("contracts.synchronize() cannot wait inside a graph's capture")
            torch.cuda.synchronize(device_index)

    def launch(
        self,
        plan: Plan,
        index: int,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[Any],
        call: Any,
    ) -> None:
        """Put the kernel on the current stream of the tensors' device, which is current and has
        this index, -1 for a CPU."""
        captured = index >= 0 and torch.cuda.is_current_stream_capturing()
        if plan.run is None:
            plan.run = self._loaded(plan.structure, index, captured)
        stream = kernel.current_stream(index)
        if captured:  # the graph's own, and zero at the beginning of each replay
            state = new_state(tensors[0].device)
        else:
            known = self._states.get((index, stream))
            if known is None:
                known = self._new_state(index, stream, tensors[0].device)
            state = known
        assert self._mailbox is not None
        sender = plan.sender
        if sender is None or sender.call is not call:
            sender = plan.sender = Sender(call, plan)
        mark, record, attention = self._mailbox.address(sender, captured)
        head = mark, kernel.argument_of(state), record, attention
        plan.run.launch(plan.programs, stream, [*head, *plan.arguments.of(tensors, numbers)])

    def _loaded(
        self, structure: kernel.Structure, index: int, captured: bool
    ) -> kernel.Compiled | kernel.Interpreted:
        with self._lock:
            run = self._kernels.get((structure, index))
            if run is not None:
                return run
            if captured:
                raise RuntimeError(
                    "contents are watched here for the first time, inside a CUDA graph capture, "
                    "where no kernel can be compiled: make the call once before capturing it"
                )
            if self._mailbox is None:
                self._mailbox = Mailbox(pinned=not kernel.interpreted())
            run = self._kernels[structure, index] = kernel.load(structure)
            return run

    def _new_state(self, index: int, stream: int, device: torch.device) -> torch.Tensor:
        with self._lock:
            return self._states.setdefault((index, stream), new_state(device))


def new_state(device: torch.device) -> torch.Tensor:
    with plainly():  # it serves all later calls on its stream, not this one alone
        return torch.zeros(WORDS, dtype=torch.int64, device=device)


def register() -> None:
    """Watch CUDA tensors with kernels from now on, where there is a Triton to compile them."""
    if importlib.util.find_spec("triton") is not None:
        watch.register("cuda", KernelObserver())
