"""What `hunyuan_qkv_rope_pack` accepts."""

from __future__ import annotations

import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor

from contracts import about, contract, rule, same_device, unit_stride

Image = BFloat16[Tensor, "batch img_len num_heads head_dim"]
Text = BFloat16[Tensor, "batch txt_len num_heads head_dim"]
Table = Float32[Tensor, "table_len head_dim/2"]
Packed = BFloat16[Tensor, "batch img_len+txt_len num_heads head_dim"]


def packed_outputs(
    img_q: Tensor, batch: int, img_len: int, txt_len: int, num_heads: int, head_dim: int
) -> tuple[Tensor, ...]:
    """q, k and v: three views of one contiguous buffer."""
    shape = (3, batch, img_len + txt_len, num_heads, head_dim)
    return torch.empty(shape, dtype=img_q.dtype, device=img_q.device).unbind(0)


@contract(
    rule(
        "0 < head_dim <= 128",
        id="head_dim-range",
        hint="a head is rotated whole, in the registers of one program",
        upstream=("head_dim must be positive, even, and <= 128",),
    ),
    rule(
        "head_dim % 2 == 0",
        id="head_dim-even",
        hint="elements 2j and 2j+1 of a head are rotated as a pair",
        upstream=("head_dim must be positive, even, and <= 128",),
    ),
    rule(
        "table_len >= img_len",
        id="table-covers-image",
        hint="cos and sin need a row for every image token; text tokens are not rotated",
        upstream=("cos/sin shape does not cover image tokens and head_dim",),
    ),
    same_device(
        id="same-device",
        upstream=(
            "QKV tensors must be on the same CUDA device",
            "QKV and cos/sin tensors must be on the same CUDA device",
        ),
    ),
    unit_stride(
        id="last-axis-contiguous",
        hint="only the last axis must be dense; slices, transposes and expanded views are fine",
        upstream=(
            "QKV last dimensions must be contiguous",
            "cos and sin must be CUDA and last-dim contiguous",
        ),
    ),
    about(
        "img_k-num_heads",
        "img_v-num_heads",
        hint="repeat the heads of grouped keys and values before the pack",
        note="Grouped-query or multi-query attention, whose keys and values have fewer heads than "
        "the queries.",
        upstream=("image QKV shapes must match",),
    ),
    about(
        *(f"img_{x}-{axis}" for x in "qkv" for axis in ("batch", "head_dim")),
        "img_q-num_heads",
        "img_k-img_len",
        "img_v-img_len",
        hint="image queries, keys and values go into one buffer: cut them from one projection",
        upstream=("image QKV shapes must match",),
    ),
    about(
        *(f"txt_{x}-{axis}" for x in "qkv" for axis in ("batch", "num_heads", "head_dim")),
        "txt_k-txt_len",
        "txt_v-txt_len",
        hint="text queries, keys and values follow the image tokens in one buffer",
        upstream=("text QKV shapes must match",),
    ),
    about(
        *(f"{part}_{x}-rank" for part in ("img", "txt") for x in "qkv"),
        hint="unflatten heads and channels first: [B, S, H * D] becomes [B, S, H, D]",
        upstream=("QKV tensors must have shape [B, S, H, D]",),
    ),
    about(
        *(f"{part}_{x}-dtype" for part in ("img", "txt") for x in "qkv"),
        note="An operand that a normalisation or an earlier rotation left in float32.",
        upstream=("QKV tensors must be CUDA bfloat16 tensors",),
    ),
    about(
        "cos-axis1",
        "sin-axis1",
        hint="one column for each pair of elements: half of head_dim, not repeated to all of it",
        note="Tables in the layout of other models, where each angle stands twice.",
        upstream=("cos/sin shape does not cover image tokens and head_dim",),
    ),
    about(
        "cos-rank",
        "sin-rank",
        "sin-table_len",
        hint="cos and sin are one table each for all batches and heads",
        upstream=("cos and sin must have matching [S, D/2] shapes",),
    ),
    outputs=packed_outputs,
)
def hunyuan_qkv_rope_pack(
    img_q: Image,
    img_k: Image,
    img_v: Image,
    txt_q: Text,
    txt_k: Text,
    txt_v: Text,
    cos: Table,
    sin: Table,
) -> tuple[Packed, Packed, Packed]:
    """Rotate image queries and keys, and pack image and text into one QKV buffer.

    With `S = img_len`, `T = txt_len` and `D = head_dim`, for image token `s` and pair `j`:

        y[2j]   = x[2j]   * cos[s, j] - x[2j+1] * sin[s, j]
        y[2j+1] = x[2j+1] * cos[s, j] + x[2j]   * sin[s, j]

    in float32, rounded once to bfloat16. `img_v` and all text tensors are copied bit for bit.

    Args:
        img_q, img_k, img_v: image tokens `[B, S, H, D]`, bfloat16, any strides but the last.
        txt_q, txt_k, txt_v: text tokens `[B, T, H, D]`, bfloat16.
        cos, sin: rotary tables `[R, D/2]` with `R >= S`, float32.

    Returns:
        `(q, k, v)`, each `[B, S+T, H, D]`, image tokens first: three views of one contiguous
        buffer `[3, B, S+T, H, D]` that aliases no input.

    Raises:
        ContractError: the call breaks a rule; nothing was allocated or launched.
        NoBackendError: the backend that was demanded cannot serve the call.

    Differentiable in every argument.

    Example:
        >>> import torch, backends
        >>> image = torch.randn(3, 1, 6, 2, 8).bfloat16()
        >>> text = torch.randn(3, 1, 2, 2, 8).bfloat16()
        >>> angle = torch.outer(torch.arange(6.0), 0.1 ** torch.arange(4.0))
        >>> q, k, v = backends.hunyuan_qkv_rope_pack(*image, *text, angle.cos(), angle.sin())
        >>> q.shape
        torch.Size([1, 8, 2, 8])
    """
