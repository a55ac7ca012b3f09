"""Gather, the first partition: the selected rows of `kv` into the ring, and the tile's queries."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier

from .gluon_shared import D_ROPE, D_V, HEADS, KEYS, stage_of, work_item

# Gluon renamed it after Triton 3.6.
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared

WIDE_COPY = gl.constexpr(gl.BlockedLayout([4, 16], [4, 8], [4, 1], [1, 0]))
"""Eight threads copy 128 bytes of a row, one line of the swizzled tile, and then the row's next
128. A thread so needs four indices, which load as one word, and one address for four copies."""

ROPE_COPY = gl.constexpr(gl.BlockedLayout([2, 16], [8, 4], [4, 1], [1, 0]))
"""Four threads copy the 64 bytes behind, two rows a thread."""


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
