"""What `sparse_mla_q8kv8_prefill_fwd` accepts."""

from __future__ import annotations

import torch
from jaxtyping import BFloat16, Float8e4m3fn, Float32, Int32
from torch import Tensor

from contracts import (
    about,
    contiguous,
    contract,
    no_grad,
    no_overlap,
    requires,
    rule,
    same_device,
    unit_stride,
    values,
)

Scale = Float32[Tensor, "..."]


def result_buffers(
    q: Tensor,
    out: Tensor | None,
    max_logits: Tensor | None,
    lse: Tensor | None,
    s_q: int,
    h_q: int,
    d_v: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The caller's buffers, and fresh ones for those that were not given."""
    return (
        q.new_empty((s_q, h_q, d_v), dtype=torch.bfloat16) if out is None else out,
        q.new_empty((s_q, h_q), dtype=torch.float32) if max_logits is None else max_logits,
        q.new_empty((s_q, h_q), dtype=torch.float32) if lse is None else lse,
    )


@contract(
    rule(
        "d_qk in (512, 576)",
        id="d_qk-width",
        hint="512 latent columns, with or without 64 rotary ones",
        upstream=("sparse_mla_q8kv8_prefill_fwd supports d_qk=512/576, got (.+?)",),
    ),
    rule(
        "h_q > 0 and h_q % 64 == 0",
        id="h_q-multiple-of-64",
        hint="pad the heads with zeros and drop the same heads of the result",
        fix="q = torch.nn.functional.pad(q.view(torch.uint8), (0, 0, 0, {extra})).view(q.dtype)",
        note="Tensor parallelism leaves 16 or 32 heads a rank; the kernels compute 64 at a time.",
        upstream=(
            "sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, "
            "got (.+?)",
        ),
    ),
    rule(
        "topk > 0 and topk % 128 == 0",
        id="topk-multiple-of-128",
        hint="pad the lanes with index -1: such a lane weighs nothing",
        fix="indices = torch.nn.functional.pad(indices, (0, {extra}), value=-1)",
    ),
    rule("d_v == 512", id="d_v-width", fix="d_v = 512"),
    rule("numel(q_scale) == 1", id="q_scale-one-element", hint="one scale for all of q"),
    rule("numel(kv_scale) == 1", id="kv_scale-one-element", hint="one scale for all of kv"),
    requires(
        "topk_length",
        when="attn_sink",
        id="attn_sink-needs-topk_length",
        fix="topk_length = torch.full(({s_q},), {topk}, dtype=torch.int32, device=q.device)",
        hint="a length of topk keeps every lane",
    ),
    same_device(
        id="same-device",
        upstream=("indices must be on q's device (.+?), got (.+?)",),
    ),
    contiguous(
        "q",
        "indices",
        "q_scale",
        "kv_scale",
        "attn_sink",
        "topk_length",
        "out",
        "max_logits",
        "lse",
        id="contiguous",
        upstream=("q must be contiguous", "indices must be contiguous"),
    ),
    unit_stride(
        "kv",
        id="kv-last-axis-contiguous",
        hint="rows may lie any distance apart",
        upstream=("kv must be contiguous",),
    ),
    no_grad(
        "q",
        "kv",
        "q_scale",
        "kv_scale",
        "attn_sink",
        "out",
        "max_logits",
        "lse",
        id="no-gradient",
        hint="the kernels compute no backward",
    ),
    no_overlap("out", "max_logits", "lse", id="buffers-disjoint"),
    values("0 <= topk_length <= topk", id="topk_length-range"),
    values("-1 <= indices < s_kv", id="indices-range"),
    about(
        "kv-d_qk",
        hint="allocate the cache with the width that the queries have, or the other way round",
        note="Model variants with and without the 64 rotary columns; a cache whose width comes "
        "from another configuration than the attention's; tensor parallelism that halves one of "
        "the two.",
        upstream=("kv d_qk must match q d_qk=(.+?), got (.+?)",),
    ),
    about(
        "kv-h_kv",
        hint="latent attention has one key head for all query heads",
        upstream=("sparse_mla_q8kv8_prefill_fwd requires h_kv=1, got (.+?)",),
    ),
    about("q-dtype", upstream=("q must be torch.float8_e4m3fn, got (.+?)",)),
    about("kv-dtype", upstream=("kv must be torch.float8_e4m3fn, got (.+?)",)),
    about("indices-dtype", note="torch.topk and most index arithmetic give int64."),
    about(
        "attn_sink-h_q",
        hint="one sink for each head of q, padded heads included",
    ),
    outputs=result_buffers,
)
def sparse_mla_q8kv8_prefill_fwd(
    q: Float8e4m3fn[Tensor, "s_q h_q d_qk"],
    kv: Float8e4m3fn[Tensor, "s_kv h_kv=1 d_qk"],
    indices: Int32[Tensor, "s_q h_kv=1 topk"],
    sm_scale: float | int,
    q_scale: Scale,
    kv_scale: Scale,
    d_v: int = 512,
    attn_sink: Float32[Tensor, "h_q"] | None = None,
    topk_length: Int32[Tensor, "s_q"] | None = None,
    *,
    out: BFloat16[Tensor, "s_q h_q d_v"] | None = None,
    max_logits: Float32[Tensor, "s_q h_q"] | None = None,
    lse: Float32[Tensor, "s_q h_q"] | None = None,
) -> tuple[BFloat16[Tensor, "s_q h_q d_v"], Float32[Tensor, "s_q h_q"], Float32[Tensor, "s_q h_q"]]:
    """Attention of each query to its own top-k rows of a latent KV cache, all in FP8.

    For query `i` and head `h`, over the lanes `j < topk_length[i]` (all lanes without it) whose
    index `t = indices[i, 0, j]` satisfies `0 <= t < s_kv`:

        logit[j] = (q[i, h] . kv[t, 0]) * q_scale * kv_scale * sm_scale
        p = exp(logit - max(logit))
        out[i, h] = sum_j p[j] * kv[t_j, 0, :512] * kv_scale
                    / (sum_j p[j] + exp(attn_sink[h] - max(logit)))
        max_logits[i, h] = max(logit),  lse[i, h] = log(sum_j exp(logit[j]))

    Every other lane weighs exactly nothing and its row is never read. Duplicate indices count as
    often as they appear. The sink enters the denominator of `out` alone. A row without a valid
    lane gives `out` 0, `max_logits` -inf and `lse` +inf, with or without a sink.

    Args:
        q: queries `[s_q, h_q, d_qk]`, float8_e4m3fn, contiguous.
        kv: cache rows `[s_kv, 1, d_qk]`, float8_e4m3fn; rows may lie any distance apart.
        indices: rows that each query attends to `[s_q, 1, topk]`, int32; anything outside
            `[0, s_kv)` is a masked lane.
        sm_scale: scale of the logits, usually `d_qk ** -0.5`.
        q_scale, kv_scale: one float32 element each, `[]` or `[1]`: what a stored 1.0 stands for.
        d_v: width of a value row; 512.
        attn_sink: `[h_q]` float32, in units of the natural logarithm.
        topk_length: `[s_q]` int32, lanes in use; values outside `[0, topk]` are clamped.
        out, max_logits, lse: results written in place and returned as they are.

    Returns:
        `(out [s_q, h_q, 512] bfloat16, max_logits [s_q, h_q] float32, lse [s_q, h_q] float32)`.

    Raises:
        ContractError: the call breaks a rule; nothing was allocated, launched or overwritten.
        NoBackendError: the backend that was demanded cannot serve the call.

    Example:
        >>> import torch, backends
        >>> q = torch.randn(2, 64, 576).to(torch.float8_e4m3fn)
        >>> kv = torch.randn(300, 1, 576).to(torch.float8_e4m3fn)
        >>> indices = torch.randint(0, 300, (2, 1, 128), dtype=torch.int32)
        >>> one = torch.ones(1)
        >>> out, max_logits, lse = backends.sparse_mla_q8kv8_prefill_fwd(
        ...     q, kv, indices, 576**-0.5, one, one)
        >>> out.shape
        torch.Size([2, 64, 512])
    """
