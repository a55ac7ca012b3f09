"""`hunyuan_qkv_rope_pack`, assembled: contract, backends and gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backends.dispatch import Gradient, Op

from . import contract
from .reference import pack_reference


def unpack(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, as views of `packed[3, B, S + T, H, D]`."""
    q, k, v = packed.unbind(0)
    return q, k, v


def save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """The tables, and what they rotate if they need a gradient themselves."""
    img_q, img_k, _, _, _, _, cos, sin = inputs
    ctx.img_len = img_q.shape[1]
    ctx.trains_tables = cos.requires_grad or sin.requires_grad
    ctx.save_for_backward(cos, sin, *((img_q, img_k) if ctx.trains_tables else ()))


def backward(
    ctx: Any, run: Callable[..., Tensor], grad_packed: Tensor
) -> tuple[Tensor | None, ...]:
    """A rotation's transpose is the rotation by the negated angle, and a copy's is a copy: the
    op itself, on slices of the gradient, with -sin."""
    cos, sin, *rotated = ctx.saved_tensors
    if grad_packed.stride(-1) != 1:  # an expanded gradient, as a sum's
        grad_packed = grad_packed.contiguous()
    image, text = grad_packed[:, :, : ctx.img_len], grad_packed[:, :, ctx.img_len :]
    grads = run(*image.unbind(0), *text.unbind(0), cos, -sin)
    tables = table_gradients(rotated, image[:2].unbind(0), cos) if ctx.trains_tables else ()
    return (
        *grads[:, :, : ctx.img_len].unbind(0),
        *grads[:, :, ctx.img_len :].unbind(0),
        *(tables or (None, None)),
    )


def table_gradients(
    rotated: list[Tensor], grads: tuple[Tensor, ...], cos: Tensor
) -> tuple[Tensor, Tensor]:
    """With y[2j] = x[2j] cos - x[2j+1] sin and y[2j+1] = x[2j+1] cos + x[2j] sin, summed over
    q and k, batch and heads; rows of the tables past the image have no gradient."""
    grad_cos, grad_sin = torch.zeros_like(cos), torch.zeros_like(cos)
    for x, grad in zip(rotated, grads, strict=True):
        x_even, x_odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        g_even, g_odd = grad.float().unflatten(-1, (-1, 2)).unbind(-1)
        rows = x.shape[1]
        grad_cos[:rows] += (x_even * g_even + x_odd * g_odd).sum((0, 2))
        grad_sin[:rows] += (x_even * g_odd - x_odd * g_even).sum((0, 2))
    return grad_cos, grad_sin


hunyuan_qkv_rope_pack = Op(
    contract.hunyuan_qkv_rope_pack,
    reference=pack_reference,
    unpack=unpack,
    pack=torch.stack,
    gradient=Gradient(save, backward),
)

hunyuan_qkv_rope_pack.backend(
    "triton",
    "backends.ops.hunyuan_qkv_rope_pack.triton_launch:launch",
    needs="sm >= 80 or interpreter",
    packages=["triton"],
    priority=10,
)
