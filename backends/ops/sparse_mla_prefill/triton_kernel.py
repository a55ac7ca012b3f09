"""Device code of the portable Triton backend of sparse MLA prefill.

A program owns ``BLOCK_H`` heads of one query and one half of the value columns, and walks the
query's lanes ``BLOCK_N`` at a time with the running maximum and sum of an online softmax. Both
halves compute the whole Q·K: that costs less than an accumulator of 512 columns, since 128 heads
fit beside each other this way, and every row gathered and every value raised serves all of them.

Q·K runs in FP8. For P·V the values are raised to float16, which holds every e4m3 value exactly,
takes one conversion instruction for two values and keeps eleven bits of each weight; an FP8 product
there would want V transposed in shared memory.

A lane is valid when it lies below ``topk_length`` and its index is a row of kv. The rows of all
other lanes are never addressed and their logits are -inf, so that a block of them multiplies the
running state by exactly one and adds exactly zero: neither what they hold nor how many they are
changes a bit.

``QK_DTYPE`` and ``PV_DTYPE`` are the operand types of the two products: float8e4nv and float16 on a
device, float32 under Triton's interpreter, which is at home in no narrower type.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
VALUE_DIM = tl.constexpr(512)
HALF = tl.constexpr(256)
ROPE_DIM = tl.constexpr(64)


@triton.jit
def sparse_mla_kernel(
    q_ptr,
    kv_ptr,
    indices_ptr,
    topk_length_ptr,
    attn_sink_ptr,
    q_scale_ptr,
    kv_scale_ptr,
    out_ptr,
    max_logits_ptr,
    lse_ptr,
    sm_scale,
    s_kv,
    h_q,
    topk,
    stride_kv,
    HAS_ROPE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    QK_DTYPE: tl.constexpr,
    PV_DTYPE: tl.constexpr,
):
    """All lanes of ``BLOCK_H`` heads of a query. Grid: ``2 * s_q * h_q / BLOCK_H``."""
    query, head, half = _position(h_q, BLOCK_H)
    acc, peak, total = _attend(
        q_ptr,
        kv_ptr,
        indices_ptr + query * topk,
        query * h_q + head,
        half,
        0,
        _lane_count(topk_length_ptr, query, topk),
        tl.load(q_scale_ptr) * tl.load(kv_scale_ptr) * sm_scale,
        s_kv,
        stride_kv,
        HAS_ROPE,
        BLOCK_H,
        BLOCK_N,
        QK_DTYPE,
        PV_DTYPE,
    )
    _write(
        acc,
        peak,
        total,
        query,
        head,
        half,
        attn_sink_ptr,
        kv_scale_ptr,
        out_ptr,
        max_logits_ptr,
        lse_ptr,
        h_q,
    )


@triton.jit
def sparse_mla_split_kernel(
    q_ptr,
    kv_ptr,
    indices_ptr,
    topk_length_ptr,
    q_scale_ptr,
    kv_scale_ptr,
    parts_ptr,
    sm_scale,
    s_kv,
    h_q,
    topk,
    lanes_per_split,
    splits,
    stride_kv,
    HAS_ROPE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    QK_DTYPE: tl.constexpr,
    PV_DTYPE: tl.constexpr,
):
    """One share of the lanes of ``BLOCK_H`` heads of a query, left unnormalised.

    Grid: ``(2 * s_q * h_q / BLOCK_H, splits)``. ``parts_ptr`` holds float32, one after the other:
    ``acc [s_q, h_q, 2, splits, 256]``, then ``peak`` and ``total`` ``[s_q, h_q, 2, splits]``.
    """
    query, head, half = _position(h_q, BLOCK_H)
    split = tl.program_id(1)
    first_lane = split * lanes_per_split
    lane_count = _lane_count(topk_length_ptr, query, topk)
    acc, peak, total = _attend(
        q_ptr,
        kv_ptr,
        indices_ptr + query * topk,
        query * h_q + head,
        half,
        first_lane,
        tl.minimum(first_lane + lanes_per_split, lane_count),
        tl.load(q_scale_ptr) * tl.load(kv_scale_ptr) * sm_scale,
        s_kv,
        stride_kv,
        HAS_ROPE,
        BLOCK_H,
        BLOCK_N,
        QK_DTYPE,
        PV_DTYPE,
    )
    part = ((query * h_q + head) * 2 + half) * splits + split
    part_count = tl.num_programs(0).to(tl.int64) * BLOCK_H * splits
    tl.store(parts_ptr + part[:, None] * HALF + tl.arange(0, HALF)[None, :], acc)
    tl.store(parts_ptr + part_count * HALF + part, peak)
    tl.store(parts_ptr + part_count * (HALF + 1) + part, total)


@triton.jit
def sparse_mla_merge_kernel(
    parts_ptr,
    attn_sink_ptr,
    kv_scale_ptr,
    out_ptr,
    max_logits_ptr,
    lse_ptr,
    h_q,
    splits,
    BLOCK_S: tl.constexpr,
):
    """Join the shares of one head of a query, always in the same order. Grid: ``2 * s_q * h_q``."""
    query, head, half = _position(h_q, 1)
    first_part = tl.program_id(0).to(tl.int64) * splits
    part_count = tl.num_programs(0).to(tl.int64) * splits
    offs_s = tl.arange(0, BLOCK_S)
    offs_v = tl.arange(0, HALF)
    acc = tl.zeros([HALF], tl.float32)
    peak = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)

    for first in range(0, splits, BLOCK_S):
        part = first_part + first + offs_s
        mask = first + offs_s < splits
        accs = tl.load(
            parts_ptr + part[:, None] * HALF + offs_v[None, :], mask=mask[:, None], other=0.0
        )
        peaks = tl.load(parts_ptr + part_count * HALF + part, mask=mask, other=float("-inf"))
        totals = tl.load(parts_ptr + part_count * (HALF + 1) + part, mask=mask, other=0.0)
        new_peak = tl.maximum(peak, tl.max(peaks, 0))
        origin = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink = tl.exp2((peak - origin) * LOG2_E)
        weights = tl.exp2((peaks - origin) * LOG2_E)
        total = total * shrink + tl.sum(totals * weights, 0)
        acc = acc * shrink + tl.sum(accs * weights[:, None], 0)
        peak = new_peak

    _write(
        acc[None, :],
        peak,
        total,
        query,
        head,
        half,
        attn_sink_ptr,
        kv_scale_ptr,
        out_ptr,
        max_logits_ptr,
        lse_ptr,
        h_q,
    )


@triton.jit
def _position(h_q, BLOCK_H: tl.constexpr):
    """This program's query, heads and half of the value columns.

    Halves are neighbours, then the heads of one query: they gather the same rows, and meet in L2.
    """
    tile = tl.program_id(0) // 2
    head_tiles = h_q // BLOCK_H
    query = (tile // head_tiles).to(tl.int64)
    head = tile % head_tiles * BLOCK_H + tl.arange(0, BLOCK_H)
    return query, head, tl.program_id(0) % 2


@triton.jit
def _lane_count(topk_length_ptr, query, topk):
    """``topk_length[query]`` clamped to ``[0, topk]``; every lane counts without it."""
    if topk_length_ptr is None:
        count = topk
    else:
        count = tl.minimum(tl.maximum(tl.load(topk_length_ptr + query), 0), topk)
    return count


@triton.jit
def _attend(
    q_ptr,
    kv_ptr,
    index_ptr,
    q_row,
    half,
    first_lane,
    end_lane,
    logit_scale,
    s_kv,
    stride_kv,
    HAS_ROPE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    QK_DTYPE: tl.constexpr,
    PV_DTYPE: tl.constexpr,
):
    """Softmax state of the q rows ``q_row`` over the lanes ``[first_lane, end_lane)``.

    Returns ``acc [BLOCK_H, 256]``, ``peak`` and ``total`` ``[BLOCK_H]``, where ``peak`` is the
    largest logit, ``total = sum_j exp(logit_j - peak)`` and ``acc`` the sum of
    ``exp(logit_j - peak) * v_j`` over one half of v's columns; 0, -inf and 0 without a valid lane.
    """
    d_qk: tl.constexpr = VALUE_DIM + ROPE_DIM if HAS_ROPE else VALUE_DIM
    offs_n = tl.arange(0, BLOCK_N)
    offs_own = half * HALF + tl.arange(0, HALF)
    offs_rest = (1 - half) * HALF + tl.arange(0, HALF)
    offs_rope = VALUE_DIM + tl.arange(0, ROPE_DIM)
    q_rows = q_ptr + q_row[:, None] * d_qk
    q_own = tl.load(q_rows + offs_own[None, :]).to(QK_DTYPE)
    q_rest = tl.load(q_rows + offs_rest[None, :]).to(QK_DTYPE)
    if HAS_ROPE:
        q_rope = tl.load(q_rows + offs_rope[None, :]).to(QK_DTYPE)

    acc = tl.zeros([BLOCK_H, HALF], tl.float32)
    peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
    # One partial sum a column, added up after the loop: a sum over columns is a shuffle a step.
    partial = tl.zeros([BLOCK_H, BLOCK_N], tl.float32)

    # Each step loads the indices of the next, so that its gather need not wait for them.
    offs = first_lane + offs_n
    index = tl.load(index_ptr + offs, mask=offs < end_lane, other=-1)
    for lane in range(first_lane, end_lane, BLOCK_N):
        valid = (index >= 0) & (index < s_kv)
        rows = kv_ptr + (index.to(tl.int64) * stride_kv)[:, None]
        own = tl.load(rows + offs_own[None, :], mask=valid[:, None], other=0.0)
        rest = tl.load(rows + offs_rest[None, :], mask=valid[:, None], other=0.0)
        # Separate products, added in float32: Hopper's FP8 unit keeps some 13 bits below the
        # largest term it adds. At logits of size 8 one accumulator for all makes an error of
        # 3.4e-3, three make 1.9e-3.
        logits = tl.dot(q_own, tl.trans(own.to(QK_DTYPE)))
        logits += tl.dot(q_rest, tl.trans(rest.to(QK_DTYPE)))
        if HAS_ROPE:
            rope = tl.load(rows + offs_rope[None, :], mask=valid[:, None], other=0.0)
            logits += tl.dot(q_rope, tl.trans(rope.to(QK_DTYPE)))
        logits = tl.where(valid[None, :], logits * logit_scale, float("-inf"))

        new_peak = tl.maximum(peak, tl.max(logits, 1))
        # Until a valid lane is seen the peak is -inf: subtract 0 then, for -inf - -inf is NaN.
        origin = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink = tl.exp2((peak - origin) * LOG2_E)
        weights = tl.exp2((logits - origin[:, None]) * LOG2_E)
        partial = partial * shrink[:, None] + weights
        acc = tl.dot(weights.to(PV_DTYPE), own.to(PV_DTYPE), acc * shrink[:, None])
        peak = new_peak

        offs = lane + BLOCK_N + offs_n
        index = tl.load(index_ptr + offs, mask=offs < end_lane, other=-1)

    return acc, peak, tl.sum(partial, 1)


@triton.jit
def _write(
    acc,
    peak,
    total,
    query,
    head,
    half,
    attn_sink_ptr,
    kv_scale_ptr,
    out_ptr,
    max_logits_ptr,
    lse_ptr,
    h_q,
):
    """Normalise the state of some heads of a query; write half of out and, from half 0, the rest.

    ``total == 0`` means that no lane was valid. It is false for a NaN, which so reaches the caller.
    """
    empty = total == 0.0
    denominator = total
    if attn_sink_ptr is not None:
        # exp overflows to inf where the sink outweighs every lane: out is 0 then, as it should be.
        origin = tl.where(empty, 0.0, peak)
        denominator += tl.exp2((tl.load(attn_sink_ptr + head) - origin) * LOG2_E)
    scale = tl.where(empty, 0.0, tl.load(kv_scale_ptr) / tl.where(empty, 1.0, denominator))
    # + 0.0 makes a -0 left by an underflow +0, as a following block of masked lanes would.
    values = acc * scale[:, None] + 0.0
    out_rows = out_ptr + (query * h_q + head) * VALUE_DIM
    offs_v = half * HALF + tl.arange(0, HALF)
    tl.store(out_rows[:, None] + offs_v[None, :], values.to(out_ptr.dtype.element_ty))
    if half == 0:
        tl.store(max_logits_ptr + query * h_q + head, peak)
        lse = tl.where(empty, float("inf"), peak + tl.log(tl.where(empty, 1.0, total)))
        tl.store(lse_ptr + query * h_q + head, lse)
