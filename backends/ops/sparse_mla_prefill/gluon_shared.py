"""What the partitions of the Hopper kernel share: sizes, the schedule, shared memory, barriers.

A ring of STAGES places holds the blocks under way: each has keys, their biases, P and the factors
of O. Barriers hand a block on: `k_full` from gather to score, `p_full` from score to values, `used`
from values back to gather. That one frees keys and P alike, as values reads both last: score writes
P to a place whose keys gather has renewed since.

Gluon is Triton's lower level: layouts, shared memory and synchronisation are spelled out. A layout
says which thread holds which element; `SliceLayout(axis, parent)` is the layout of what remains
when a tensor of the parent's layout is reduced along that axis.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.core import _aggregate as aggregate

HEADS = gl.constexpr(64)
"""Heads of a tile: the rows of a warpgroup's product."""

KEYS = gl.constexpr(64)
"""Keys of a block. 128 would leave room for two stages only, and was slower."""

LANES_PER_PAIR = gl.constexpr(128)
"""Blocks go by pairs: score has one in each of two accumulators, values two in one stretch."""

D_V = gl.constexpr(512)
D_ROPE = gl.constexpr(64)

STAGES = gl.constexpr(4)
"""Blocks under way between gather and values: 215 KB of shared memory with the queries, of 227."""

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)

LOWEST = gl.constexpr(-3.0e38)
"""The running maximum starts here, not at -inf, so that no difference of maxima is NaN."""

IN_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))
"""64 values, all of them in every warp: a reduction stays inside the warp."""

# Gluon renamed it after Triton 3.6.
sync_threads = getattr(gl, "barrier", None) or gl.thread_barrier


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
    """How tiles are cut into work items: the first `whole` are one item each, the others `splits`
    items of `pairs` pairs of blocks each, which write parts."""

    n_work: gl.tensor
    head_tiles: gl.tensor
    topk: gl.tensor
    whole: gl.tensor
    splits: gl.tensor
    pairs: gl.tensor


@gluon.jit
def work_item(schedule, work, topk_length_ptr):
    """Tile, query, first lane, pairs of blocks and end of the live lanes of a work item.

    Pairs wholly behind `topk_length` are left out: masked blocks add exact zeros, so that leaving
    them out changes no bit. One pair always runs, so that every tile passes through every stage.
    """
    tile = work
    first_pair = 0
    limit = schedule.topk // LANES_PER_PAIR
    if work >= schedule.whole:
        part = work - schedule.whole
        tile = schedule.whole + part // schedule.splits
        first_pair = part % schedule.splits * schedule.pairs
        limit = schedule.pairs
    query = tile // schedule.head_tiles
    length = schedule.topk
    if topk_length_ptr is not None:
        length = gl.minimum(gl.maximum(gl.load(topk_length_ptr + query), 0), length)
    pairs = (length + LANES_PER_PAIR - 1) // LANES_PER_PAIR - first_pair
    pairs = gl.maximum(gl.minimum(pairs, limit), 1)
    return tile, query, first_pair * LANES_PER_PAIR, pairs, length


@gluon.jit
def statistics(parts_ptr, n_parts):
    """Where the statistics begin that lie behind all parts."""
    return parts_ptr + n_parts.to(gl.int64) * (HEADS * D_V)


@gluon.jit
def stage_of(block):
    """A block's place in the ring and the parity of its round. Blocks count on over all tiles."""
    return block & (STAGES - 1), block // STAGES & 1


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
