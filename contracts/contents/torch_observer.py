"""Contents judged in torch, without waiting: the observer of every device that has no better one.

On the CPU a call is judged at once. Elsewhere each condition costs several launches, and one small
copy into pinned memory that the host looks at later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .condition import Condition, shared_out
from .evaluate import holds
from .offence import Offence, find


@dataclass(frozen=True)
class _Pending:
    call: Any
    position: int
    record: torch.Tensor
    """float64 in pinned memory: count, index, and the value of each tensor."""
    done: torch.Event
    shapes: tuple[tuple[int, ...], ...]
    whole: tuple[bool, ...]
    """Whether each tensor holds integers."""


class TorchObserver:
    def __init__(self) -> None:
        self._found: deque[tuple[Any, list[tuple[int, Offence]]]] = deque()
        self._pending: deque[_Pending] = deque()

    def judge_of(
        self, conditions: tuple[Condition, ...]
    ) -> Callable[[Sequence[torch.Tensor], Sequence[Any], Any, dict[Any, Any] | None], None]:
        names = tuple(dict.fromkeys(name for each in conditions for name in each.tensors))

        def judge(
            tensors: Sequence[torch.Tensor],
            numbers: Sequence[Any],
            call: Any,
            memory: dict[Any, Any] | None = None,
        ) -> None:
            by_name = dict(zip(names, tensors, strict=True))
            if tensors[0].device.type == "cpu":
                self._judge_now(conditions, by_name, numbers, call)
            else:
                self._judge_later(conditions, by_name, numbers, call)

        return judge

    def collect(self) -> Iterator[tuple[Any, list[tuple[int, Offence]]]]:
        while self._found:
            yield self._found.popleft()
        while self._pending and self._pending[0].done.query():
            pending = self._pending.popleft()
            count, index, *values = pending.record.tolist()
            if count:
                kept = tuple(
                    int(value) if whole else value
                    for value, whole in zip(values, pending.whole, strict=True)
                )
                offence = Offence(int(count), int(index), kept, pending.shapes)
                yield pending.call, [(pending.position, offence)]

    def wait(self) -> None:
        for pending in list(self._pending):
            pending.done.synchronize()

    def _judge_now(
        self,
        conditions: tuple[Condition, ...],
        tensors: dict[str, torch.Tensor],
        numbers: Sequence[Any],
        call: Any,
    ) -> None:
        found = []
        for position, (condition, own) in enumerate(shared_out(conditions, numbers)):
            offence = find(condition, tensors, own)
            if offence is not None:
                found.append((position, offence))
        if found:
            self._found.append((call, found))

    def _judge_later(
        self,
        conditions: tuple[Condition, ...],
        tensors: dict[str, torch.Tensor],
        numbers: Sequence[Any],
        call: Any,
    ) -> None:
        device = next(iter(tensors.values())).device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "contents cannot be watched inside a CUDA graph capture by torch alone: import "
                "backends, which does it in one kernel"
            )
        for position, (condition, own) in enumerate(shared_out(conditions, numbers)):
            broken = ~holds(condition, tensors, own)
            if not broken.numel():
                continue
            places = torch.arange(broken.numel(), device=device)
            index = torch.where(broken.flatten(), places, broken.numel() - 1).min()
            mine = [tensors[name].detach() for name in condition.tensors]
            values = [x.expand(broken.shape).to(torch.float64).take(index) for x in mine]
            record = torch.stack([broken.sum().double(), index.double(), *values])
            pinned = torch.empty(record.shape, dtype=record.dtype, pin_memory=True)
            pinned.copy_(record, non_blocking=True)
            done = torch.Event(device)
            done.record()
            whole = tuple(not x.dtype.is_floating_point for x in mine)
            shapes = tuple(tuple(x.shape) for x in mine)
            self._pending.append(_Pending(call, position, pinned, done, shapes, whole))
