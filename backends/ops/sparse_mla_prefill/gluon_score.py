"""Score, the second partition: `S = Q K^T` in FP8, the online softmax, and P as float16.

Scores are turned into powers of two, so that a weight is one `exp2`. The tensor cores' FP8 sums are
not exact: each instruction takes 32 products, aligns them and the accumulator to the largest of
them and keeps 13 bits behind it. With standard-normal operands that is 9e-3 on a score of size 24.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .gluon_shared import (
    HEADS,
    IN_WARP,
    KEYS,
    LN_2,
    LOG2_E,
    LOWEST,
    stage_of,
    statistics,
    work_item,
)

S_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32]))
S_HEADS = gl.constexpr(gl.SliceLayout(1, S_LAYOUT.value))
S_KEYS = gl.constexpr(gl.SliceLayout(0, S_LAYOUT.value))

LAG = gl.constexpr(8.0)
"""The maximum that P is relative to is raised, and O rescaled, only when a score exceeds it by
this many powers of two: P stays below 2**8, far from float16's largest number, and the rescale
leaves the common path."""

SMALLEST_SCALE = gl.constexpr(1.1754944e-38)
"""A scale of zero acts as the smallest normal number, so that -inf times it stays -inf."""


@gluon.jit
def start_scores(shared, block, ROPE: gl.constexpr):
    """Start `S = Q K^T` of a block once it has landed; also whether a lane of it is masked."""
    stage, phase = stage_of(block)
    mbarrier.wait(shared.k_full.index(stage), phase)
    # cp.async wrote through the generic proxy, the tensor cores read through the async one.
    fence_async_shared()
    s = gl.full([HEADS, KEYS], 0.0, gl.float32, S_LAYOUT)
    if ROPE:
        k_rope = shared.k_rope.index(stage).permute((1, 0))
        s = warpgroup_mma(shared.q_rope, k_rope, s, use_acc=False, is_async=True)
    k = shared.k.index(stage).permute((1, 0))
    s = warpgroup_mma(shared.q, k, s, use_acc=ROPE, is_async=True)
    # -inf is negative as an integer too, whose minimum over a warp is one instruction.
    bias = shared.bias.index(stage).load(IN_WARP).to(gl.int32, bitcast=True)
    return s, gl.min(bias, 0) < 0


@gluon.jit
def finish_scores(shared, s, masked, negative, block):
    """Wait for a block's scores, and set those of masked lanes to -inf."""
    s = warpgroup_mma_wait(0, deps=(s,))
    if negative:
        s = -s
    if masked:
        bias = shared.bias.index(stage_of(block)[0]).load(S_KEYS)
        s = gl.where(bias[None, :] < 0, float("-inf"), s)
    return s


@gluon.jit
def weigh_block(shared, s, scale, top, m, total, block):
    """One step of the online softmax: writes P of a block, and what O is multiplied by before it.

    `scale` turns scores into powers of two. `top` is the largest score so far, `m` the lagging
    maximum that P is relative to, `total` the sum of P, still spread over eight columns: reduced
    over column groups first, a thread is alone with its own elements.
    """
    highest = gl.max(gl.max(s.reshape([HEADS, 8, 8]), 1), 1)
    highest = gl.convert_layout(highest, S_HEADS, assert_trivial=True)
    raised = gl.where(highest * scale > m + LAG, highest * scale, m)
    alpha = gl.exp2(m - raised)
    p = gl.exp2(s * scale - raised[:, None])
    part = gl.sum(p.reshape([HEADS, 8, 8]), 1)
    decay = gl.convert_layout(alpha, gl.SliceLayout(1, part.type.layout), assert_trivial=True)
    total = total * decay[:, None] + part

    # The stage is free: gather waited for that before it wrote this block's keys.
    stage, _ = stage_of(block)
    shared.p.index(stage).store(p.to(gl.float16))
    shared.alpha.index(stage).store(alpha)
    mbarrier.arrive(shared.p_full.index(stage), count=1)
    return gl.maximum(top, highest), raised, total


@gluon.jit
def score_tile(shared, pairs, scale, negative, block, ROPE: gl.constexpr):
    """All blocks of a tile. The next block's product runs behind each block's softmax.

    Two accumulators take turns, so the loop goes by pairs, and the last pair stands behind it.
    """
    top = gl.full([HEADS], float("-inf"), gl.float32, S_HEADS)
    m = gl.full([HEADS], LOWEST, gl.float32, S_HEADS)
    total = gl.sum(gl.full([HEADS, KEYS], 0.0, gl.float32, S_LAYOUT).reshape([HEADS, 8, 8]), 1)
    even, even_masked = start_scores(shared, block, ROPE)
    for _ in range(pairs - 1):
        s = finish_scores(shared, even, even_masked, negative, block)
        odd, odd_masked = start_scores(shared, block + 1, ROPE)
        top, m, total = weigh_block(shared, s, scale, top, m, total, block)
        s = finish_scores(shared, odd, odd_masked, negative, block + 1)
        even, even_masked = start_scores(shared, block + 2, ROPE)
        top, m, total = weigh_block(shared, s, scale, top, m, total, block + 1)
        block += 2
    s = finish_scores(shared, even, even_masked, negative, block)
    odd, odd_masked = start_scores(shared, block + 1, ROPE)
    top, m, total = weigh_block(shared, s, scale, top, m, total, block)
    s = finish_scores(shared, odd, odd_masked, negative, block + 1)
    mbarrier.arrive(shared.q_empty, count=1)
    top, m, total = weigh_block(shared, s, scale, top, m, total, block + 1)
    total = gl.convert_layout(gl.sum(total, 1), S_HEADS, assert_trivial=True)
    return top * scale, m, total, block + 2


@gluon.jit
def write_statistics(max_logits_ptr, lse_ptr, offsets, top, m, total):
    """max_logits and lse in natural units, from powers of two; a row without a lane sums to 0."""
    gl.store(max_logits_ptr + offsets, top * LN_2)
    lse = (m + gl.log2(total)) * LN_2
    gl.store(lse_ptr + offsets, gl.where(total > 0, lse, float("inf")))


@gluon.jit
def normaliser(attn_sink_ptr, heads, m, total, kv_scale):
    """What an output row is multiplied by: 0 for a row without a live lane, sink or not."""
    denominator = total
    if attn_sink_ptr is not None:
        denominator += gl.exp2(gl.load(attn_sink_ptr + heads) * LOG2_E - m)
    return gl.where(total > 0, kv_scale / denominator, 0.0)


@gluon.jit
def score_partition(
    shared,
    schedule,
    topk_length_ptr,
    attn_sink_ptr,
    q_scale_ptr,
    kv_scale_ptr,
    max_logits_ptr,
    lse_ptr,
    parts_ptr,
    sm_scale,
    h_q,
    ROPE: gl.constexpr,
):
    kv_scale = gl.load(kv_scale_ptr)
    scale = gl.load(q_scale_ptr) * kv_scale * sm_scale * LOG2_E
    negative = scale < 0  # then scores change sign, so that the largest score has the largest logit
    scale = gl.maximum(gl.abs(scale), SMALLEST_SCALE)
    rows = gl.arange(0, HEADS, S_HEADS)
    block = 0
    phase = 0
    for work in range(gl.program_id(0), schedule.n_work, gl.num_programs(0)):
        _, _, _, pairs, _ = work_item(schedule, work, topk_length_ptr)
        mbarrier.wait(shared.q_full, phase)
        top, m, total, block = score_tile(shared, pairs, scale, negative, block, ROPE)
        if work >= schedule.whole:
            stats = statistics(parts_ptr, schedule.n_work - schedule.whole) + rows
            stats += (work - schedule.whole) * (3 * HEADS)
            gl.store(stats, top)
            gl.store(stats + HEADS, m)
            gl.store(stats + 2 * HEADS, total)
        else:
            offsets = work.to(gl.int64) * HEADS + rows
            write_statistics(max_logits_ptr, lse_ptr, offsets, top, m, total)
            inverse = normaliser(attn_sink_ptr, work * HEADS % h_q + rows, m, total, kv_scale)
            mbarrier.wait(shared.inverse_empty, phase ^ 1)
            shared.inverse.store(inverse)
            mbarrier.arrive(shared.inverse_full, count=1)
        phase ^= 1
