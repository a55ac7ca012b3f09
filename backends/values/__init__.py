"""Contents of CUDA tensors, watched by one Triton kernel a call, generated from the conditions.

`source` writes the kernel, `layout` says how elements lie, `kernel` compiles it, `mailbox` is the
pinned memory that kernels report into, `observer` puts them together. Nothing here imports Triton
before a call is watched.
"""

from .observer import KernelObserver, register

__all__ = ["KernelObserver", "register"]
