"""Sparse MLA prefill on Hopper, device code: queries and keys in FP8, weights and values in f16.

A *tile* is 64 heads of one query. A program walks the tile's lanes in blocks of 64 keys and keeps
the transposed output, `O^T = V^T P^T` of 512 channels by 64 heads, in float32 registers of two
warpgroups. Four partitions of four warps run side by side and pass blocks on in shared memory:

    gather --K ring--> score --P ring--> values (channels 0..255) and values (256..511)

* gather copies the selected rows of `kv` with 16-byte `cp.async`. A masked lane reads nothing: the
  copy fills its row with zeros.
* score multiplies `S = Q K^T` in FP8, runs the online softmax and writes `P^T` as float16.
* values multiplies `V^T P^T` in float16. V is the first 512 channels of the K rows: it is read
  from the ring transposed, and raised from FP8 in registers, so that no 16-bit V is ever stored.

Programs are persistent: each takes work items `program_id, program_id + num_programs, ...`. With
few queries a tile's lanes are split among several work items. Each then writes an unnormalised
part, and `merge_kernel` adds the parts up in order, so that the bits depend on sizes alone.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import _aggregate as aggregate

# Gluon renamed three primitives after Triton 3.6.
_descriptor = gl.shared_memory_descriptor
reinterpret = getattr(_descriptor, "reinterpret", None) or _descriptor._reinterpret
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
sync_threads = getattr(gl, "barrier", None) or gl.thread_barrier

HEADS = gl.constexpr(64)
"""Heads of a tile: the rows of a warpgroup's product."""
KEYS = gl.constexpr(64)
"""Keys of a block. 128 would leave room for two stages only, and was slower."""
LANES_PER_PAIR = gl.constexpr(128)
"""Blocks come in pairs, as the score loop holds one in each of two accumulators."""
D_V = gl.constexpr(512)
D_ROPE = gl.constexpr(64)

STAGES = gl.constexpr(4)
"""Blocks under way between gather and values: 215 KB of shared memory with the queries, of 227."""

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)
LOWEST = gl.constexpr(-3.0e38)
"""The running maximum starts here, not at -inf, so that no difference of maxima is NaN."""
LAG = gl.constexpr(8.0)
"""The maximum that P is relative to is raised, and O rescaled, only when a score exceeds it by
this many powers of two: P stays below 2**8, far from float16's largest number, and the rescale
leaves the common path."""
SMALLEST_SCALE = gl.constexpr(1.1754944e-38)
"""A scale of zero acts as the smallest normal number, so that -inf times it stays -inf."""

S_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32]))
S_HEADS = gl.constexpr(gl.SliceLayout(1, S_LAYOUT.value))
S_KEYS = gl.constexpr(gl.SliceLayout(0, S_LAYOUT.value))
O_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
O_CHANNELS = gl.constexpr(gl.SliceLayout(1, O_LAYOUT.value))
O_HEADS = gl.constexpr(gl.SliceLayout(0, O_LAYOUT.value))
V_LAYOUT = gl.constexpr(gl.DotOperandLayout(0, O_LAYOUT.value, 2))
IN_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))
"""64 values, all of them in every warp: a reduction stays inside the warp."""
WIDE_COPY = gl.constexpr(gl.BlockedLayout([4, 16], [4, 8], [4, 1], [1, 0]))
"""Eight threads copy 128 bytes of a row, one line of the swizzled tile, and then the row's next
128. A thread so needs four indices, which load as one word, and one address for four copies."""
ROPE_COPY = gl.constexpr(gl.BlockedLayout([2, 16], [8, 4], [4, 1], [1, 0]))
MERGE_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))
"""A warp merges one head, a thread eight pairs of channels."""
STATS_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))


def record(cls):
    """A Gluon aggregate whose constructor takes its fields in order."""
    names = tuple(cls.__annotations__)

    def __init__(self, *fields):
        for name, field in zip(names, fields, strict=True):
            setattr(self, name, field)

    __init__.__triton_builtin__ = True
    cls.__init__ = __init__
    return aggregate(cls)


@record
class Shared:
    """A program's shared memory and the barriers by which its partitions pass it on."""

    q: gl.shared_memory_descriptor  # [64, 512] queries
    q_rope: gl.shared_memory_descriptor  # [64, 64]
    k: gl.shared_memory_descriptor  # [STAGES, 64, 512] gathered rows
    k_rope: gl.shared_memory_descriptor  # [STAGES, 64, 64]
    bias: gl.shared_memory_descriptor  # [STAGES, 64] 0 for a live lane, -inf for a masked one
    p: gl.shared_memory_descriptor  # [STAGES, 64 heads, 64 keys] float16 weights
    alpha: gl.shared_memory_descriptor  # [STAGES, 64 heads] what O is multiplied by before P
    inverse: gl.shared_memory_descriptor  # [64 heads] what O is multiplied by at the end
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    p_full: gl.shared_memory_descriptor
    used: gl.shared_memory_descriptor  # by values, which frees a block's K and P
    inverse_full: gl.shared_memory_descriptor
    inverse_empty: gl.shared_memory_descriptor


@record
class Schedule:
    """How tiles are cut into work items: `splits` items a tile, `pairs` pairs of blocks each."""

    n_work: gl.tensor
    head_tiles: gl.tensor
    topk: gl.tensor
    splits: gl.tensor
    pairs: gl.tensor


# What every partition asks of the schedule and the barriers


@gluon.jit
def work_item(schedule, work, topk_length_ptr):
    """Tile, query, first lane, pairs of blocks and end of the live lanes of a work item.

    Pairs wholly behind `topk_length` are left out: masked blocks add exact zeros, so that leaving
    them out changes no bit. One pair always runs, so that every tile passes through every stage.
    """
    tile = work // schedule.splits
    query = tile // schedule.head_tiles
    length = schedule.topk
    if topk_length_ptr is not None:
        length = gl.minimum(gl.maximum(gl.load(topk_length_ptr + query), 0), length)
    first_pair = work % schedule.splits * schedule.pairs
    pairs = (length + LANES_PER_PAIR - 1) // LANES_PER_PAIR - first_pair
    pairs = gl.maximum(gl.minimum(pairs, schedule.pairs), 1)
    return tile, query, first_pair * LANES_PER_PAIR, pairs, length


@gluon.jit
def statistics(parts_ptr, n_work):
    """Where the statistics begin that lie behind the parts of all work items."""
    return parts_ptr + n_work.to(gl.int64) * (HEADS * D_V)


@gluon.jit
def stage_of(block):
    """A block's place in the ring and the parity of its round. Blocks count on over all tiles."""
    return block & (STAGES - 1), block // STAGES & 1


# Gather


@gluon.jit
def load_rows(indices, LAYOUT: gl.constexpr):
    return gl.load(indices + gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT)))


@gluon.jit
def mask_rows(rows, live_lanes, s_kv, LAYOUT: gl.constexpr):
    """A block's rows, -1 for lanes that are cut off or whose row is outside `[0, s_kv)`.

    In PTX, as LLVM would pack a thread's comparisons into a bit vector and take it apart again,
    for which the gather has no registers.
    """
    lanes = gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT))
    return gl.inline_asm_elementwise(
        """{
        .reg .pred live;
        setp.lt.u32 live, $1, $2;
        setp.lt.and.s32 live, $3, $4, live;
        selp.b32 $0, $1, -1, live;
        }""",
        "=r,r,r,r,r",
        [rows, s_kv, lanes, live_lanes],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def copy_rows(target, source, stride, rows, FIRST: gl.constexpr, LAYOUT: gl.constexpr):
    """Start copying columns `FIRST ...` of rows; a row of -1 reads nothing and becomes zeros."""
    columns = FIRST + gl.arange(0, target.shape[1], gl.SliceLayout(0, LAYOUT))
    # A 64-bit product in one instruction: Triton's own would be the low half of 64 by 64 bits.
    start = gl.inline_asm_elementwise(
        "mul.wide.s32 $0, $1, $2;",
        "=l,r,r",
        [rows, stride],
        dtype=gl.int64,
        is_pure=True,
        pack=1,
    )
    pointers = source + gl.multiple_of(start, [16])[:, None] + columns[None, :]
    copy_to_shared(target, pointers, mask=(rows >= 0)[:, None])


@gluon.jit
def gather_block(
    shared, kv_ptr, stride_kv, s_kv, wide, narrow, live_lanes, block, ROPE: gl.constexpr
):
    """Start copying a block's rows once its stage is free, and write which lanes are live."""
    stage, phase = stage_of(block)
    mbarrier.wait(shared.used.index(stage), phase ^ 1)
    rows = mask_rows(wide, live_lanes, s_kv, WIDE_COPY)
    copy_rows(shared.k.index(stage), kv_ptr, stride_kv, rows, 0, WIDE_COPY)
    rows = mask_rows(narrow, live_lanes, s_kv, ROPE_COPY)
    if ROPE:
        copy_rows(shared.k_rope.index(stage), kv_ptr, stride_kv, rows, D_V, ROPE_COPY)
    shared.bias.index(stage).store(gl.where(rows >= 0, 0.0, float("-inf")))
    # Each thread arrives when its copies land, and the partition once more for the bias.
    async_copy.mbarrier_arrive(shared.k_full.index(stage), increment_count=False)
    mbarrier.arrive(shared.k_full.index(stage), count=1)


@gluon.jit
def gather_queries(shared, q_ptr, tile, phase, ROPE: gl.constexpr):
    """Start copying a tile's 64 query rows once score is done with the tile before."""
    D_QK: gl.constexpr = D_V + D_ROPE if ROPE else D_V
    source = q_ptr + tile.to(gl.int64) * (HEADS * D_QK)
    mbarrier.wait(shared.q_empty, phase ^ 1)
    rows = gl.arange(0, HEADS, gl.SliceLayout(1, WIDE_COPY))
    copy_rows(shared.q, source, D_QK, rows, 0, WIDE_COPY)
    if ROPE:
        rows = gl.arange(0, HEADS, gl.SliceLayout(1, ROPE_COPY))
        copy_rows(shared.q_rope, source, D_QK, rows, D_V, ROPE_COPY)
    async_copy.mbarrier_arrive(shared.q_full, increment_count=False)


@gluon.jit
def gather_partition(
    shared,
    schedule,
    q_ptr,
    kv_ptr,
    indices_ptr,
    topk_length_ptr,
    stride_kv,
    s_kv,
    ROPE: gl.constexpr,
):
    block = 0
    phase = 0
    for work in range(gl.program_id(0), schedule.n_work, gl.num_programs(0)):
        tile, query, first, pairs, length = work_item(schedule, work, topk_length_ptr)
        indices = indices_ptr + query.to(gl.int64) * schedule.topk + first
        wide = load_rows(indices, WIDE_COPY)
        narrow = load_rows(indices, ROPE_COPY)
        gather_queries(shared, q_ptr, tile, phase, ROPE)
        for i in range(2 * pairs):
            live_lanes = length - first - i * KEYS
            gather_block(shared, kv_ptr, stride_kv, s_kv, wide, narrow, live_lanes, block, ROPE)
            # A block ahead: indices come from device memory, and nothing would hide the wait.
            following = indices + gl.minimum(i + 1, 2 * pairs - 1) * KEYS
            wide = load_rows(following, WIDE_COPY)
            narrow = load_rows(following, ROPE_COPY)
            block += 1
        phase ^= 1


# Score


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
    SPLIT: gl.constexpr,
):
    kv_scale = gl.load(kv_scale_ptr)
    scale = gl.load(q_scale_ptr) * kv_scale * sm_scale * LOG2_E
    negative = scale < 0  # then scores change sign, so that the largest score has the largest logit
    scale = gl.maximum(gl.abs(scale), SMALLEST_SCALE)
    rows = gl.arange(0, HEADS, S_HEADS)
    block = 0
    phase = 0
    for work in range(gl.program_id(0), schedule.n_work, gl.num_programs(0)):
        tile, _, _, pairs, _ = work_item(schedule, work, topk_length_ptr)
        mbarrier.wait(shared.q_full, phase)
        top, m, total, block = score_tile(shared, pairs, scale, negative, block, ROPE)
        if SPLIT:
            stats = statistics(parts_ptr, schedule.n_work) + work * (3 * HEADS) + rows
            gl.store(stats, top)
            gl.store(stats + HEADS, m)
            gl.store(stats + 2 * HEADS, total)
        else:
            offsets = tile.to(gl.int64) * HEADS + rows
            write_statistics(max_logits_ptr, lse_ptr, offsets, top, m, total)
            inverse = normaliser(attn_sink_ptr, tile * HEADS % h_q + rows, m, total, kv_scale)
            mbarrier.wait(shared.inverse_empty, phase ^ 1)
            shared.inverse.store(inverse)
            mbarrier.arrive(shared.inverse_full, count=1)
        phase ^= 1


# Values


@gluon.jit
def load_values(shared, block, CHANNEL: gl.constexpr, KEY: gl.constexpr):
    """V^T of 128 channels from CHANNEL by 16 keys from KEY: [64 pairs of channels, 16 keys]."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    pairs = reinterpret(shared.k, gl.int16, [STAGES, KEYS, D_V // 2], layout)
    pairs = pairs.index(stage_of(block)[0]).slice(CHANNEL // 2, 64, dim=1).slice(KEY, 16, dim=0)
    return pairs.permute((1, 0)).load(V_LAYOUT)


@gluon.jit
def raise_values(pairs):
    """Two FP8 in an int16 to two float16 operands, the even channels' and the odd ones'."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 sorted;
        .reg .b16 even, odd;
        prmt.b32 sorted, $2, 0, 0x3120;
        mov.b32 {even, odd}, sorted;
        cvt.rn.f16x2.e4m3x2 $0, even;
        cvt.rn.f16x2.e4m3x2 $1, odd;
        }""",
        "=r,=r,r",
        [pairs],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def await_weights(shared, block):
    """Wait for P of a block; the smallest factor of O as an integer.

    Positive floats order as integers do, whose minimum over a warp is one instruction.
    """
    stage, phase = stage_of(block)
    mbarrier.wait(shared.p_full.index(stage), phase)
    fence_async_shared()
    alpha = shared.alpha.index(stage).load(IN_WARP).to(gl.int32, bitcast=True)
    return gl.min(alpha, 0)


@gluon.jit
def rescale(shared, block, smallest, e0, o0, e1, o1):
    """Multiply O by a block's factors, unless all of them are one."""
    if smallest < 0x3F800000:
        e0, o0, e1, o1 = warpgroup_mma_wait(0, deps=(e0, o0, e1, o1))
        alpha = shared.alpha.index(stage_of(block)[0]).load(O_HEADS)[None, :]
        e0 *= alpha
        o0 *= alpha
        e1 *= alpha
        o1 *= alpha
    return e0, o0, e1, o1


@gluon.jit
def add_pair(shared, block, after, smallest, lower, upper, e0, o0, e1, o1, FIRST: gl.constexpr):
    """`O^T += V^T P^T` for 256 channels and two blocks, 16 keys and 128 channels at a time.

    `e0, o0` are the even and the odd ones of the lower 128 channels, `e1, o1` those of the upper.
    `lower` and `upper` are read a step ahead of their products, which two more run behind. Each
    block's P is awaited, and its stage let go, while products run; none runs on into the next
    pair, behind block `after`, as ptxas would then serialise all products of the kernel.
    """
    for half in gl.static_range(2):
        following = block + 1 if half == 0 else after
        stage, _ = stage_of(block + half)
        p = shared.p.index(stage)
        e0, o0, e1, o1 = rescale(shared, block + half, smallest, e0, o0, e1, o1)
        for step in gl.static_range(4):
            weights = p.slice(16 * step, 16, dim=1).permute((1, 0))
            # P of a block is published after the keys of the next one have landed.
            ahead = block + half if step < 3 else following
            even, odd = raise_values(lower)
            e0 = warpgroup_mma(even, weights, e0, is_async=True)
            o0 = warpgroup_mma(odd, weights, o0, is_async=True)
            lower = load_values(shared, ahead, FIRST, 16 * (step + 1) % KEYS)
            e0, o0, e1, o1 = warpgroup_mma_wait(2, deps=(e0, o0, e1, o1))
            if half == 1 and step == 0:  # the first block's products have ended
                mbarrier.arrive(shared.used.index(stage_of(block)[0]), count=1)
            even, odd = raise_values(upper)
            e1 = warpgroup_mma(even, weights, e1, is_async=True)
            o1 = warpgroup_mma(odd, weights, o1, is_async=True)
            upper = load_values(shared, ahead, FIRST + 128, 16 * (step + 1) % KEYS)
            if half == 0 or step < 3:
                e0, o0, e1, o1 = warpgroup_mma_wait(2, deps=(e0, o0, e1, o1))
        smallest = await_weights(shared, following)
    e0, o0, e1, o1 = warpgroup_mma_wait(0, deps=(e0, o0, e1, o1))
    mbarrier.arrive(shared.used.index(stage), count=1)
    return smallest, lower, upper, e0, o0, e1, o1


@gluon.jit
def store_part(part, even, odd, FIRST: gl.constexpr):
    """Write 128 unnormalised channels of a work item: [even and odd][64 heads][256 pairs]."""
    pairs = FIRST // 2 + gl.arange(0, 64, O_CHANNELS)
    heads = gl.arange(0, HEADS, O_HEADS) * (D_V // 2)
    target = part + heads[None, :] + pairs[:, None]
    gl.store(target, even)
    gl.store(target + HEADS * (D_V // 2), odd)


@gluon.jit
def store_output(out, even, odd, inverse, FIRST: gl.constexpr):
    """Normalise 128 channels of a tile and write them, a pair of bfloat16 a word."""
    words = pack_bfloat16(even * inverse[None, :], odd * inverse[None, :])
    pairs = FIRST // 2 + gl.arange(0, 64, O_CHANNELS)
    heads = gl.arange(0, HEADS, O_HEADS) * (D_V // 2)
    gl.store(out + heads[None, :] + pairs[:, None], words)


@gluon.jit
def pack_bfloat16(low, high):
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;",
        "=r,r,r",
        [low, high],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def values_partition(
    FIRST: gl.constexpr, shared, schedule, topk_length_ptr, out_ptr, parts_ptr, SPLIT: gl.constexpr
):
    """Channels FIRST .. FIRST + 255 of O."""
    block = 0
    phase = 0
    for work in range(gl.program_id(0), schedule.n_work, gl.num_programs(0)):
        tile, _, _, pairs, _ = work_item(schedule, work, topk_length_ptr)
        zero = gl.full([64, HEADS], 0.0, gl.float32, O_LAYOUT)
        e0, o0, e1, o1 = zero, zero, zero, zero
        last = block + 2 * pairs - 1
        smallest = await_weights(shared, block)
        lower = load_values(shared, block, FIRST, 0)
        upper = load_values(shared, block, FIRST + 128, 0)
        for _ in range(pairs):
            # The last block awaits itself again, as the next tile's first may be far off.
            after = gl.minimum(block + 2, last)
            smallest, lower, upper, e0, o0, e1, o1 = add_pair(
                shared, block, after, smallest, lower, upper, e0, o0, e1, o1, FIRST
            )
            block += 2
        if SPLIT:
            part = parts_ptr + work.to(gl.int64) * (HEADS * D_V)
            store_part(part, e0, o0, FIRST)
            store_part(part, e1, o1, FIRST + 128)
        else:
            mbarrier.wait(shared.inverse_full, phase)
            inverse = shared.inverse.load(O_HEADS)
            mbarrier.arrive(shared.inverse_empty, count=1)
            out = out_ptr.to(gl.pointer_type(gl.int32)) + tile.to(gl.int64) * (HEADS * D_V // 2)
            store_output(out, e0, o0, inverse, FIRST)
            store_output(out, e1, o1, inverse, FIRST + 128)
        phase ^= 1


# Kernels


@gluon.jit
def new_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@gluon.jit
def new_shared(ROPE: gl.constexpr):
    wide: gl.constexpr = gl.NVMMASharedLayout(128, 8)
    narrow: gl.constexpr = gl.NVMMASharedLayout(64, 8)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    weights: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    q = gl.allocate_shared_memory(gl.float8e4nv, [HEADS, D_V], wide)
    k = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, KEYS, D_V], wide)
    q_rope, k_rope = q, k
    if ROPE:
        q_rope = gl.allocate_shared_memory(gl.float8e4nv, [HEADS, D_ROPE], narrow)
        k_rope = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, KEYS, D_ROPE], narrow)
    return Shared(
        q,
        q_rope,
        k,
        k_rope,
        gl.allocate_shared_memory(gl.float32, [STAGES, KEYS], plain),
        gl.allocate_shared_memory(gl.float16, [STAGES, HEADS, KEYS], weights),
        gl.allocate_shared_memory(gl.float32, [STAGES, HEADS], plain),
        gl.allocate_shared_memory(gl.float32, [HEADS], plain),
        new_barriers(1, 128).index(0),  # q_full: each thread of gather
        new_barriers(1, 1).index(0),  # q_empty: score
        new_barriers(STAGES, 129),  # k_full: each thread of gather, and gather
        new_barriers(STAGES, 1),  # p_full: score
        new_barriers(STAGES, 2),  # used: both halves of values
        new_barriers(1, 1).index(0),  # inverse_full: score
        new_barriers(1, 2).index(0),  # inverse_empty: both halves of values
    )


@gluon.jit(do_not_specialize=["s_kv", "n_work", "splits", "pairs"])
def prefill_kernel(
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
    parts_ptr,
    sm_scale,
    h_q,
    topk,
    s_kv,
    stride_kv,
    n_work,
    splits,
    pairs,
    ROPE: gl.constexpr,
    SPLIT: gl.constexpr,
):
    """Attention of `n_work` work items; with SPLIT into parts, which `merge_kernel` then merges.

    `topk_length_ptr` and `attn_sink_ptr` may be None. `parts_ptr` holds `n_work` parts of 64 x 512
    and then, `n_work` times, the largest logit, the maximum that P is relative to and the sum of P
    of 64 heads, the first two in powers of two.

    Registers a thread are 176, 176, 120 and 40, which is all there are. With 168 for values ptxas
    serialises every product of the kernel, and score needs as many as can be for two accumulators.
    """
    shared = new_shared(ROPE)
    schedule = Schedule(n_work, h_q // HEADS, topk, splits, pairs)
    sync_threads()
    gl.warp_specialize(
        [
            (values_partition, (0, shared, schedule, topk_length_ptr, out_ptr, parts_ptr, SPLIT)),
            (values_partition, (256, shared, schedule, topk_length_ptr, out_ptr, parts_ptr, SPLIT)),
            (
                score_partition,
                (
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
                    ROPE,
                    SPLIT,
                ),
            ),
            (
                gather_partition,
                (
                    shared,
                    schedule,
                    q_ptr,
                    kv_ptr,
                    indices_ptr,
                    topk_length_ptr,
                    stride_kv,
                    s_kv,
                    ROPE,
                ),
            ),
        ],
        [4, 4, 4],
        [176, 120, 40],
    )


@gluon.jit
def merge_statistics(stats_ptr, first_work, heads, splits, MAX_SPLITS: gl.constexpr):
    """Largest logit, common maximum and sum of P of four heads over all splits."""
    split = gl.arange(0, MAX_SPLITS, gl.SliceLayout(0, STATS_LAYOUT))
    head = gl.convert_layout(heads, gl.SliceLayout(1, STATS_LAYOUT))
    stats = stats_ptr + ((first_work + split) * (3 * HEADS))[None, :] + head[:, None]
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


@gluon.jit(do_not_specialize=["n_work", "splits"])
def merge_kernel(
    parts_ptr,
    attn_sink_ptr,
    kv_scale_ptr,
    out_ptr,
    max_logits_ptr,
    lse_ptr,
    h_q,
    n_work,
    splits,
    MAX_SPLITS: gl.constexpr,
    UNROLL: gl.constexpr,
):
    """Add the parts of four heads up, in the splits' order; `parts_ptr` as in `prefill_kernel`.

    O = sum_i 2^(m_i - m) O_i over the splits, likewise the sums of P, with m the largest m_i. A
    split without a live lane has m_i = LOWEST and adds exact zeros.
    """
    rows: gl.constexpr = gl.SliceLayout(1, MERGE_LAYOUT)
    row = gl.program_id(0) * 4
    first_work = row // HEADS * splits
    heads = row % HEADS + gl.arange(0, 4, rows)
    stats_ptr = statistics(parts_ptr, n_work)
    top, m, total = merge_statistics(stats_ptr, first_work, heads, splits, MAX_SPLITS)

    pairs = gl.arange(0, D_V // 2, gl.SliceLayout(0, MERGE_LAYOUT))
    offsets = (heads * (D_V // 2))[:, None] + pairs[None, :]
    even = gl.full([4, D_V // 2], 0.0, gl.float32, MERGE_LAYOUT)
    odd = even
    for start in range(0, splits, UNROLL):
        for i in gl.static_range(UNROLL):  # so many loads in flight
            split = start + i
            work = (first_work + gl.minimum(split, splits - 1)).to(gl.int64)
            weight = gl.exp2(gl.load(stats_ptr + work * (3 * HEADS) + HEADS + heads) - m)
            weight = gl.where(split < splits, weight, 0.0)[:, None]
            part = parts_ptr + work * (HEADS * D_V)
            even += weight * gl.load(part + offsets)
            odd += weight * gl.load(part + HEADS * (D_V // 2) + offsets)

    kv_scale = gl.load(kv_scale_ptr)
    inverse = normaliser(attn_sink_ptr, row % h_q + gl.arange(0, 4, rows), m, total, kv_scale)
    words = pack_bfloat16(even * inverse[:, None], odd * inverse[:, None])
    row = row.to(gl.int64)
    target = out_ptr.to(gl.pointer_type(gl.int32)) + row * (D_V // 2)
    lines = gl.arange(0, 4, rows) * (D_V // 2)
    gl.store(target + lines[:, None] + pairs[None, :], words)
    write_statistics(max_logits_ptr, lse_ptr, row + gl.arange(0, 4, rows), top, m, total)
