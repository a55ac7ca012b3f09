"""Work on memory itself, whatever the caller has switched on around the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functionaltensor,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes

_sync: Callable[[torch.Tensor], None] = torch._sync  # type: ignore[attr-defined]


@contextmanager
def plainly() -> Iterator[None]:
    """Tensors made inside are ordinary ones, which every later call can use and write to: no
    inference tensors, no wrappers of torch.func, no fakes, nothing that a mode makes of them. A
    default device is a mode, too: who allocates names the device."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._DisableFuncTorch(),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
    ):
        yield


def with_contents(x: torch.Tensor) -> torch.Tensor | None:
    """The tensor whose elements there are to read, taken out of what torch.func wrapped it in.
    None where there are none: fake and meta tensors have no memory, and inside vmap each stands
    for many."""
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return None
        if is_functionaltensor(x):
            _sync(x)  # writes that functionalize has put off
        x = get_unwrapped(x)
    if isinstance(x, FakeTensor | FunctionalTensor) or is_legacy_batchedtensor(x) or x.is_meta:
        return None
    return x
