"""Pinned memory that kernels write what they find into, and that the host only ever looks at.

Each watched call gets a slot, in turn; one more word says whether any slot is worth a look, so
that looking costs a read of one number. A slot is used again by the call that comes `SLOTS` later:
should a device lag behind the host by more, the older call's place in the code is forgotten, not
what was found. A call that is captured in a CUDA graph reports each time the graph is replayed, so
these have slots apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from ctypes import c_int64
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from contracts.contents.plainly import plainly

SLOTS = 1024
"""For calls that run at once, and as many for those that are captured."""

WORDS = 64
"""int64 words of a slot: a record's greatest length, twenty rules on a tensor each."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that a kernel has written: the words behind its mark."""

    sender: Any
    """None where its slot has been given to another call since."""
    words: list[int]


class Mailbox:
    """One for all devices and streams of a process: all of them reach pinned memory."""

    def __init__(self, pinned: bool) -> None:
        """Allocates 1 MB; not inside a capture."""
        with plainly():
            self.memory = torch.zeros(
                (1 + 2 * SLOTS, WORDS), dtype=torch.int64, device="cpu", pin_memory=pinned
            )
            """The first row has the word for attention, each other is a slot."""
            self._rows = [] if pinned else list(self.memory)
        self._base = self.memory.data_ptr()
        self._attention = c_int64.from_address(self._base)
        self._words = (c_int64 * self.memory.numel()).from_address(self._base)
        """The same memory, which no mode of torch's stands in front of."""
        self._senders: list[tuple[int, Any]] = [(0, None)] * (1 + 2 * SLOTS)
        self._calls, self._captures, self._marks = count(), count(), count(1)
        self._lock = threading.Lock()

    def address(self, sender: Any, captured: bool) -> tuple[int, Any, Any]:
        """A mark for a call, where its record goes, and the word for attention."""
        mark = next(self._marks)
        place = next(self._captures) % SLOTS + SLOTS if captured else next(self._calls) % SLOTS
        row = 1 + place
        self._senders[row] = (mark, sender)
        if self._rows:
            return mark, self._rows[row], self._rows[0]
        return mark, self._base + row * WORDS * 8, self._base

    def collect(self) -> Iterator[Letter]:
        """What has come since the last time, oldest call first."""
        if not self._attention.value:
            return
        with self._lock:
            self._attention.value = 0  # before the look at the slots: what comes later asks again
            words, done = self._words, False
            try:
                marks = words[WORDS::WORDS]
                for _, row in sorted((mark, 1 + i) for i, mark in enumerate(marks) if mark):
                    start = row * WORDS
                    mark, *record = words[start : start + WORDS]
                    words[start] = 0
                    known, sender = self._senders[row]
                    yield Letter(sender if mark == known else None, record)
                done = True
            finally:
                if not done:  # who reads has failed, or has stopped: there is more to be read
                    self._attention.value = 1
