"""The op in plain torch: what it means, on any device, differentiable in every input."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of neighbours of `x[B, S, H, D]` by its angle in `cos, sin[S, D/2]`.

    In float32, rounded once:

        y[2j]     = x[2j] cos[s, j] - x[2j + 1] sin[s, j]
        y[2j + 1] = x[2j + 1] cos[s, j] + x[2j] sin[s, j]
    """
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    pairs = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return pairs.flatten(-2).to(x.dtype)


def pack_reference(
    img_q: Tensor,
    img_k: Tensor,
    img_v: Tensor,
    txt_q: Tensor,
    txt_k: Tensor,
    txt_v: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    """Rotate image q and k, and pack all six: `packed[3, B, S + T, H, D]`, image tokens first."""
    img_len = img_q.shape[1]
    cos, sin = cos[:img_len], sin[:img_len]
    q = torch.cat((rotate_pairs(img_q, cos, sin), txt_q), dim=1)
    k = torch.cat((rotate_pairs(img_k, cos, sin), txt_k), dim=1)
    v = torch.cat((img_v, txt_v), dim=1)
    return torch.stack((q, k, v)).contiguous()
