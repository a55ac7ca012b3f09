"""An inline cache: one call into C in place of a look at every tensor's type, dtype and device.

Calls of one function mostly bring tensors of the same kinds, with other sizes and addresses. Once
the generated tests have passed a call, its tensors' kinds are remembered, and as long as the next
calls' are the same, those tests need not run. What is compared is exact: the Python type, every
dispatch key (so sparse, quantised, nested, fake, functorch, lazily negative and conjugate tensors
all differ), dtype, device, rank and `requires_grad`; never sizes, strides or addresses.

It is the guard that torch.compile puts in front of every compiled graph. Where a release of torch
lacks it, nothing is remembered and the tests run every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .tensors import PLAIN_TYPES

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:
    TensorGuards = None  # type: ignore[assignment,misc]

__all__ = ["Kinds", "TensorGuards", "can_be_guarded", "never"]

LEARNED = 32  # kinds that one cache learns before it keeps what it has


def never(*tensors: Any) -> bool:
    """The guard that knows nothing."""
    return False


def can_be_guarded(x: Any) -> bool:
    """Of a strided nested tensor, which has no strides, a guard may not even be asked."""
    return type(x) in PLAIN_TYPES and not x.is_nested


class Kinds:
    """The kinds of tensors that last passed the tests of one function.

    `gradless` says that the tests refuse tensors that require grad while grad mode is on: such
    tensors are then not remembered, since the verdict on them depends on the mode.
    """

    __slots__ = ("_gradless", "_left", "same")

    def __init__(self, gradless: bool) -> None:
        self._gradless = gradless
        self._left = LEARNED if TensorGuards is not None else 0
        self.same: Callable[..., bool] = never
        """Whether these tensors are of the remembered kinds."""

    def remember(self, *tensors: Any) -> None:
        """Learn the kinds of tensors that have just passed; absent ones are None."""
        if not self._left or not all(map(can_be_guarded, tensors)):
            return
        self._left -= 1
        if self._gradless and any(x.requires_grad for x in tensors):
            return
        any_size: list[Any] = [[None] * x.ndim for x in tensors]
        self.same = TensorGuards(
            *tensors, dynamic_dims_sizes=any_size, dynamic_dims_strides=any_size
        ).check
