"""What torch.func and forward-mode AD put around a tensor, and what lies beneath."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functionaltensor,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
    maybe_get_level,
    peek_interpreter_stack,
)
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.autograd import forward_ad

_sync: Callable[[torch.Tensor], None] = torch._sync  # type: ignore[attr-defined]


def beneath(x: torch.Tensor, *, written: bool = False) -> torch.Tensor | None:
    """The tensor that grad, jvp and functionalize have wrapped, with the same sizes and strides;
    None inside vmap, where one tensor stands for many.

    With `written`, writes that functionalize has put off are done first.
    """
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return None
        if written and is_functionaltensor(x):
            _sync(x)
        x = get_unwrapped(x)
    return x


def has_tangent(x: torch.Tensor) -> bool:
    """Whether forward-mode AD carries a tangent along with this tensor.

    An operation sees the innermost transform alone, so that each is looked at with those inside it
    taken away. A graph that Dynamo traces is not asked: it would not hold the answer.
    """
    if torch.compiler.is_dynamo_compiling() or not _is_forward_mode():
        return False
    try:
        with ExitStack() as inner:
            while (transform := peek_interpreter_stack()) is not None:
                if is_functorch_wrapped_tensor(x) and maybe_get_level(x) == transform.level():
                    if is_gradtrackingtensor(x) and _has_own_tangent(x):
                        return True
                    x = get_unwrapped(x)
                inner.enter_context(temporarily_pop_interpreter_stack())
            return _has_own_tangent(x)
    except (RuntimeError, ValueError):  # sparse, nested or uninitialised: no dual can be made
        return False


def _is_forward_mode() -> bool:
    return forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


def _has_own_tangent(x: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(x).tangent is not None
