"""An inline cache of whole layouts: the verdict on sizes and strides that were judged before.

The layers of a model call one function with tensors of the same sizes over and over. Where a call
brings the kinds, sizes and strides of a call that passed, and equal scalars in its rules, every
test that depends on nothing else would answer as it did, and need not run. Tests on addresses, and
rules that are Python functions, run every time.

Like `kinds`, it asks the guard that torch.compile puts in front of a compiled graph, here with
exact sizes and strides. What one thread learns serves all: each layout is one tuple, put there
whole and never changed, so that a reader sees one call's knowledge and no mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _get_tracing_state
from torch._C._functorch import peek_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from . import kinds


class Absent(torch.Tensor):
    """Stands in a guard for an optional tensor that is not given; no call can bring one."""


_absent: list[torch.Tensor] = []


def absent(index: int) -> torch.Tensor:
    """One stand-in for each place: a guard refuses two that are the same object."""
    while len(_absent) <= index:
        with _disable_current_modes():  # which would make it a fake tensor, say
            stand_in = torch.Tensor._make_subclass(Absent, torch.empty(0, device="cpu"))
        _absent.append(stand_in)
    return _absent[index]


def _is_transformed() -> bool:
    """Whether tensors are not what they seem: within a functorch transform, or traced by jit."""
    return peek_interpreter_stack() is not None or _get_tracing_state() is not None


KNOWN = 64  # layouts of one function, and sizes that wait for a second call
LEARNT = 4  # layouts of the same sizes: where strides vary all the time, learning does not pay


class Layouts:
    """The layouts that one generated function has passed, by the shape of one tensor, its anchor.

    What the function unpacks is the guard, scalars that the rules read, sizes that the tests after
    it need, and notes for whoever decides on more than the check.

    A guard costs as much to make as two or three calls to check. So a layout is learnt from the
    second call of its sizes: the first one leaves them in `met`, each in the place that its hash
    gives, where others may drive them out.
    """

    __slots__ = ("_gradless", "_learnt", "known", "met", "unknown")

    def __init__(self, gradless: bool, carried: int) -> None:
        self._gradless = gradless
        self._learnt: dict[tuple[Any, ...], int] = {}
        self.known: dict[torch.Size, tuple[Any, ...]] = {}
        self.unknown: tuple[Any, ...] = (kinds.never, *[None] * carried)
        self.met: list[tuple[Any, ...] | None] = [None] * KNOWN

    def learn(
        self, tensors: tuple[torch.Tensor, ...], sizes: tuple[Any, ...], *carried: Any
    ) -> None:
        """A call that has just passed, of sizes that were met before; the anchor comes first."""
        count = self._learnt.get(sizes, 0)
        if count == LEARNT or kinds.TensorGuards is None:
            return
        if not all(map(self._is_known_kind, tensors)) or _is_transformed():
            return
        shapes: list[Any] = [list(x.shape) for x in tensors]
        strides: list[Any] = [list(x.stride()) for x in tensors]
        same: Callable[..., bool] = kinds.TensorGuards(
            *tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides
        ).check
        if len(self._learnt) >= KNOWN:
            self._learnt = {}
        self._learnt[sizes] = count + 1
        if len(self.known) >= KNOWN:
            self.known = {}
        self.known[tensors[0].shape] = (same, *carried, {})

    def _is_known_kind(self, x: torch.Tensor) -> bool:
        if type(x) is Absent:
            return True
        strided = kinds.can_be_guarded(x) and x.layout is torch.strided
        return strided and not (self._gradless and x.requires_grad)
