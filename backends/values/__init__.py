"""Contents of CUDA tensors, watched by one Triton kernel a call, generated from the conditions.

`layout` says how elements lie and `plan` what follows from it; `source` writes the kernel, over
`shaped`, `access` and `text`, where it is `expressible`, and `kernel` compiles it; `judge` has one
launched for each call, or leaves it to torch. `mailbox` is the pinned memory that kernels report
into; `observer` puts them together. Nothing imports Triton before a call is watched.
"""

from .observer import KernelObserver, register

__all__ = ["KernelObserver", "register"]
