"""What is asked of tensors along their last axis, element by element."""

from __future__ import annotations

import torch


def is_sorted(x: torch.Tensor) -> torch.Tensor:
    """Whether each element is at least the one before it along the last axis; a NaN is not."""
    held = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    if x.ndim:
        held[..., 1:] = x[..., :-1] <= x[..., 1:]
    return held


def is_unique(x: torch.Tensor) -> torch.Tensor:
    """Whether each element differs from all before it along the last axis. The answer is dense,
    however x lies: kernels rely on it."""
    held = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    if x.ndim:
        values, order = torch.sort(x, dim=-1, stable=True)
        repeated = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
        repeated[..., 1:] = values[..., :-1] == values[..., 1:]
        held.scatter_(-1, order, ~repeated)
    return held
