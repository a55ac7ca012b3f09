"""From a model's bfloat16 activations to sparse attention in FP8, and what each step costs.

    python examples/sparse_mla_prefill.py            on a CPU, in seconds; on a GPU if there is one

A chunk of a long prompt is prefilled: its queries see the whole latent KV cache up to their own
position, but attend only to the rows that a cheap indexer picks for them. The result is compared
with dense float32 attention, and the difference taken apart: what the selection leaves out, and
what FP8 rounds off.
"""

from __future__ import annotations

import torch
from torch import Tensor

import backends

FP8 = torch.float8_e4m3fn
LATENT, ROPE = 512, 64
"""Columns of a cache row: the compressed values, then the rotated part of the key."""
SM_SCALE = (128 + 64) ** -0.5
"""That of the heads before their up-projections were absorbed: 128 columns and 64 rotated ones."""


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale so that the largest magnitude is e4m3's, and round: x is about fp8 * scale."""
    scale = x.abs().amax().float() / torch.finfo(FP8).max
    return (x.float() / scale).to(FP8), scale


def activations(
    positions: Tensor, s_kv: int, num_heads: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Stand-ins for a model's: each query resembles a few dozen cached tokens before it."""
    generator = torch.Generator(device).manual_seed(0)
    draw = {"generator": generator, "device": device}
    kv = torch.randn(s_kv, LATENT + ROPE, **draw)
    relevant = (torch.rand(len(positions), 48, **draw) * (positions[:, None] + 1)).long()
    theme = kv[relevant].sum(1)
    q = 0.6 * torch.randn(len(positions), num_heads, LATENT + ROPE, **draw) + 0.12 * theme[:, None]
    return q.bfloat16(), kv.bfloat16()


def select(q: Tensor, kv: Tensor, positions: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """The indexer: one score a cached token, from the heads' mean query, and its best `topk`.

    `torch.topk` returns int64 and always `topk` of them. The kernels want int32, and topk_length
    says how many of a query's lanes count: a query at position p sees p + 1 tokens.
    """
    scores = q.float().mean(1) @ kv.float().T
    causal = torch.arange(len(kv), device=kv.device) <= positions[:, None]
    indices = scores.masked_fill(~causal, -torch.inf).topk(topk, sorted=True).indices
    return indices[:, None].int(), (positions + 1).clamp(max=topk).int()


def attention(q: Tensor, kv: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Dense float32 attention over the visible rows: output and weights."""
    logits = torch.einsum("qhd,kd->qhk", q.float(), kv.float()) * SM_SCALE
    weights = logits.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
    return weights @ kv[:, :LATENT].float(), weights


def off(actual: Tensor, exact: Tensor) -> float:
    """||actual - exact|| / ||exact||"""
    return float((actual.float() - exact.float()).norm() / exact.float().norm())


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    s_q, s_kv, num_heads = 32, 2048, 64
    positions = torch.arange(s_kv - s_q, s_kv, device=device)
    positions[0] = 40  # a query near the start of the prompt: fewer tokens than lanes
    q, kv = activations(positions, s_kv, num_heads, device)
    q_fp8, q_scale = to_fp8(q)
    kv_fp8, kv_scale = to_fp8(kv)
    print(f"{s_q} queries of {num_heads} heads, {s_kv} cached tokens, on {device}")
    print(f"FP8 scales: q {q_scale.item():.4f}, kv {kv_scale.item():.4f}")

    rows = torch.arange(s_kv, device=device)
    causal = rows <= positions[:, None]
    dense, weights = attention(q, kv, causal)
    print("\n topk  weight kept  selection alone  FP8 alone  both against dense")
    for topk in (128, 256, 512):
        indices, topk_length = select(q, kv, positions, topk)
        out, _, lse = backends.sparse_mla_q8kv8_prefill_fwd(
            q_fp8,
            kv_fp8[:, None],
            indices,
            SM_SCALE,
            q_scale,
            kv_scale,
            topk_length=topk_length,
        )
        chosen = torch.zeros_like(causal).scatter_(1, indices[:, 0].long(), True) & causal
        sparse, _ = attention(q, kv, chosen)
        kept = (weights * chosen[:, None]).sum(-1).mean()
        print(
            f"{topk:5d}  {kept:11.1%}  {off(sparse, dense):15.2%}"
            f"  {off(out, sparse):9.2%}  {off(out, dense):18.2%}"
        )
    # The log-sum-exp that comes with it joins results over parts of a cache without recomputing.
    print(f"\nlse of the last query: {lse[-1].min():.2f} to {lse[-1].max():.2f}")
    print(f"query 0 sees {positions[0] + 1} tokens; its other lanes are cut off by topk_length")


if __name__ == "__main__":
    main()
