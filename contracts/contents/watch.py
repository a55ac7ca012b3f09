"""Judging contents without waiting: who does it, and where what was found comes out.

A call hands its elements to the observer of its device and goes on. What an observer finds is
raised later, at a call of the thread that made the broken one, or at `synchronize()`. `contracts`
has an observer in torch; a package that can do better on a device registers its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..errors import ContractError
from .condition import Condition
from .offence import Offence
from .torch_observer import TorchObserver

Found = Sequence[tuple[int, Offence]]
"""Offences, each with the position of its condition among those that were judged."""


class Call(Protocol):
    """A call that was judged, as the observer hands it back."""

    thread: object
    """`this_thread()` where it was made."""

    def error(self, found: Found) -> ContractError: ...


Judge = Callable[[Sequence[torch.Tensor], Sequence[Any], Any, dict[Any, Any] | None], None]
"""Judges one call's tensors and numbers: those of all conditions, in their order, each tensor
once. The dict, where there is one, is kept with the layout of the call: all its calls bring tensors
of the same kinds, sizes and strides, and the same numbers. Raises Unjudgeable where metadata says
that it cannot."""


class Observer(Protocol):
    """Judges elements on one kind of device. May be called by several threads at once."""

    def judge_of(self, conditions: tuple[Condition, ...]) -> Judge:
        """What judges these conditions together; kept, and called many times."""

    def collect(self) -> Iterable[tuple[Call, Found]]:
        """What was found since the last time, without waiting. Called by one thread at a time."""

    def wait(self) -> None:
        """Wait until everything that was handed in is judged."""


class _Thread(threading.local):
    """Something of each thread's own. Its number would not do: the system gives it to another
    thread once this one has ended, which would then raise the errors of the dead."""

    def __init__(self) -> None:
        self.key = object()


_thread = _Thread()


def this_thread() -> object:
    """Stands for the thread that asks, and for no other one ever."""
    return _thread.key


@dataclass
class Watch:
    """The observers of one process, and the errors that are still to be raised."""

    observers: dict[str, Observer] = field(default_factory=dict)
    errors: dict[object, deque[tuple[Call, Found]]] = field(default_factory=dict)
    """What was found of each thread's calls; that of threads which have ended waits for
    `synchronize`."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def register(self, device_type: str, observer: Observer) -> None:
        """Let `observer` judge what lies on devices of this type, instead of torch. Contracts
        that have been watched there already keep to the observer that they found."""
        with self.lock:
            self.observers[device_type] = observer

    def observer(self, device_type: str) -> Observer:
        with self.lock:
            return self.observers.setdefault(device_type, TorchObserver())

    def collect(self) -> None:
        with self.lock:
            for observer in self.observers.values():
                for call, found in observer.collect():
                    self.errors.setdefault(call.thread, deque()).append((call, found))

    def raise_found(self) -> None:
        """Raise the oldest error of a call that this thread has made."""
        self.collect()
        if self.errors:
            self._raise(this_thread())

    def synchronize(self) -> None:
        for observer in list(self.observers.values()):
            observer.wait()
        self.collect()
        self._raise(this_thread())
        for thread in list(self.errors):
            self._raise(thread)

    def _raise(self, thread: object) -> None:
        with self.lock:
            errors = self.errors.get(thread)
            if not errors:
                return
            call, found = errors.popleft()
            if not errors:
                del self.errors[thread]
        raise call.error(found)  # under no name: its traceback holds this frame, and all above it

    def renew_lock(self) -> None:
        """In a forked child, where nobody may be left to release the lock."""
        self.lock = threading.Lock()


watch = Watch()
if hasattr(os, "register_at_fork"):  # where there is fork
    os.register_at_fork(after_in_child=watch.renew_lock)


def synchronize() -> None:
    """Wait until every call made in `async` mode is judged, and raise what was found.

    Raises the error of one broken call: this thread's oldest, else another's; what else was found
    stays for the next time. Without `async` calls it does nothing, and waits for nothing.

    Raises:
        ContractError: names the call, the rule, and the first element that breaks it.

    Example:
        >>> import torch, contracts
        >>> from contracts import contract, values
        >>> from jaxtyping import Int32
        >>> @contract(values("0 <= slots < 8"))
        ... def write(slots: Int32[torch.Tensor, "n"]): ...
        >>> with contracts.mode("async"):
        ...     write(torch.tensor([1, 9], dtype=torch.int32))
        >>> try:
        ...     contracts.synchronize()
        ... except contracts.ContractError as error:
        ...     print(error.violations[0].message)
        slots[1] is 9, breaks 0 <= slots < 8
    """
    watch.synchronize()
