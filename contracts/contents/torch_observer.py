"""Contents judged in torch, without waiting: the observer of every device that has no better one.

On the CPU a call is judged at once. Elsewhere each condition costs several launches, and each call
one small copy into pinned memory that the host looks at later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .condition import Condition, shared_out
from .evaluate import holds
from .offence import Offence, as_element, as_word, find
from .plainly import plainly


@dataclass(frozen=True)
class _Part:
    """What a record says of one condition: its count, an index, and its tensors' elements there."""

    position: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True)
class _Pending:
    call: Any
    record: torch.Tensor
    """int64 in pinned memory."""
    done: torch.Event
    parts: Sequence[_Part]

    def read(self) -> list[tuple[int, Offence]]:
        with plainly():
            words = iter(self.record.tolist())
        found = []
        for part in self.parts:
            count, index = next(words), next(words)
            values = tuple(as_element(next(words), dtype) for dtype in part.dtypes)
            if count:
                offence = Offence(count, index, values, part.shapes, part.dtypes)
                found.append((part.position, offence))
        return found


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
            pending = self._pending[0]
            found = pending.read()
            self._pending.popleft()
            if found:
                yield pending.call, found

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
                "contents that torch judges cannot be watched inside a CUDA graph capture: import "
                "backends, whose kernel does it, where it can say a rule exactly as torch does"
            )
        words: list[torch.Tensor] = []
        parts: list[_Part] = []
        with plainly():
            for position, (condition, own) in enumerate(shared_out(conditions, numbers)):
                mine = [tensors[name].detach() for name in condition.tensors]
                broken = ~holds(condition, tensors, own)
                if not broken.numel():
                    continue
                places = torch.arange(broken.numel(), device=device)
                index = torch.where(broken.flatten(), places, broken.numel() - 1).min()
                values = [as_word(x.expand(broken.shape)).take(index) for x in mine]
                words += [broken.sum(), index, *values]
                shapes = tuple(tuple(x.shape) for x in mine)
                parts.append(_Part(position, shapes, tuple(x.dtype for x in mine)))
            if not parts:
                return
            record = torch.stack(words)
            pinned = torch.empty(
                record.shape, dtype=torch.int64, device="cpu", pin_memory=device.type != "cpu"
            )
            pinned.copy_(record, non_blocking=True)
            done = torch.Event(device)
            done.record()
        self._pending.append(_Pending(call, pinned, done, parts))
