"""The kernel that merges the parts of tiles whose lanes were split among several programs."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .gluon_score import normaliser, write_statistics
from .gluon_shared import D_V, HEADS, LOWEST, statistics
from .gluon_values import pack_bfloat16

HEADS_PER_MERGE = gl.constexpr(4)
"""Heads that a program merges, one a warp."""

MERGE_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))
"""A thread merges eight pairs of channels of one head."""

STATISTICS_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))
"""A warp looks at one head, a thread at one split."""


@gluon.jit
def merge_statistics(stats_ptr, first_part, heads, splits, MAX_SPLITS: gl.constexpr):
    """Largest logit, common maximum and sum of P of four heads over all splits."""
    split = gl.arange(0, MAX_SPLITS, gl.SliceLayout(0, STATISTICS_LAYOUT))
    head = gl.convert_layout(heads, gl.SliceLayout(1, STATISTICS_LAYOUT))
    stats = stats_ptr + ((first_part + split) * (3 * HEADS))[None, :] + head[:, None]
    present = (split < splits)[None, :]
    top = gl.max(gl.load(stats, present, other=float("-inf")), 1)
    m = gl.load(stats + HEADS, present, other=LOWEST)
    highest = gl.max(m, 1)
    total = gl.load(stats + 2 * HEADS, present, other=0.0) * gl.exp2(m - highest[:, None])
    rows: gl.constexpr = gl.SliceLayout(1, MERGE_LAYOUT)
    return (
        gl.convert_layout(top, rows),
        gl.convert_layout(highest, rows),
        gl.convert_layout(gl.sum(total, 1), rows),
    )


@gluon.jit(do_not_specialize=["n_parts", "whole", "splits"])
def merge_kernel(
    parts_ptr,
    attn_sink_ptr,
    kv_scale_ptr,
    out_ptr,
    max_logits_ptr,
    lse_ptr,
    h_q,
    n_parts,
    whole,
    splits,
    MAX_SPLITS: gl.constexpr,
    UNROLL: gl.constexpr,
):
    """Add the parts of four heads up, in the splits' order; `parts_ptr` as in `prefill_kernel`.

    The first `whole` tiles have none.

    O = sum_i 2^(m_i - m) O_i over the splits, likewise the sums of P, with m the largest m_i. A
    split without a live lane has m_i = LOWEST and adds exact zeros.
    """
    rows: gl.constexpr = gl.SliceLayout(1, MERGE_LAYOUT)
    row = gl.program_id(0) * HEADS_PER_MERGE
    first_part = row // HEADS * splits
    heads = row % HEADS + gl.arange(0, HEADS_PER_MERGE, rows)
    stats_ptr = statistics(parts_ptr, n_parts)
    top, m, total = merge_statistics(stats_ptr, first_part, heads, splits, MAX_SPLITS)

    pairs = gl.arange(0, D_V // 2, gl.SliceLayout(0, MERGE_LAYOUT))
    offsets = (heads * (D_V // 2))[:, None] + pairs[None, :]
    even = gl.full([HEADS_PER_MERGE, D_V // 2], 0.0, gl.float32, MERGE_LAYOUT)
    odd = even
    for start in range(0, splits, UNROLL):
        for i in gl.static_range(UNROLL):  # so many loads in flight
            split = start + i
            number = (first_part + gl.minimum(split, splits - 1)).to(gl.int64)
            weight = gl.exp2(gl.load(stats_ptr + number * (3 * HEADS) + HEADS + heads) - m)
            weight = gl.where(split < splits, weight, 0.0)[:, None]
            part = parts_ptr + number * (HEADS * D_V)
            even += weight * gl.load(part + offsets)
            odd += weight * gl.load(part + HEADS * (D_V // 2) + offsets)

    row = row.to(gl.int64) + whole.to(gl.int64) * HEADS
    kv_scale = gl.load(kv_scale_ptr)
    inverse = normaliser(
        attn_sink_ptr, row % h_q + gl.arange(0, HEADS_PER_MERGE, rows), m, total, kv_scale
    )
    words = pack_bfloat16(even * inverse[:, None], odd * inverse[:, None])
    target = out_ptr.to(gl.pointer_type(gl.int32)) + row * (D_V // 2)
    lines = gl.arange(0, HEADS_PER_MERGE, rows) * (D_V // 2)
    gl.store(target + lines[:, None] + pairs[None, :], words)
    write_statistics(
        max_logits_ptr, lse_ptr, row + gl.arange(0, HEADS_PER_MERGE, rows), top, m, total
    )
