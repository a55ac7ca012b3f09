"""Work on memory itself, whatever the caller has switched on around the call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C._functorch import is_legacy_batchedtensor
from torch.utils._python_dispatch import _disable_current_modes

from ..tensors import IMAGINED
from ..transforms import beneath


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
    memory = beneath(x, written=True)
    if memory is None or isinstance(memory, IMAGINED):
        return None
    return None if is_legacy_batchedtensor(memory) or memory.is_meta else memory
