"""Values, the third and fourth partition: `O^T = V^T P^T`, 256 of the 512 channels each.

Two neighbouring channels of a row are read as one int16: transposed 16-bit loads then give a
product's left operand, in pairs of channels that are taken apart in registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .gluon_shared import D_V, HEADS, IN_WARP, KEYS, STAGES, stage_of, work_item

# Gluon renamed it after Triton 3.6.
_descriptor = gl.shared_memory_descriptor
reinterpret = getattr(_descriptor, "reinterpret", None) or _descriptor._reinterpret

O_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
O_CHANNELS = gl.constexpr(gl.SliceLayout(1, O_LAYOUT.value))
O_HEADS = gl.constexpr(gl.SliceLayout(0, O_LAYOUT.value))
V_LAYOUT = gl.constexpr(gl.DotOperandLayout(0, O_LAYOUT.value, 2))

ONE = gl.constexpr(0x3F800000)
"""1.0 as an integer."""


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
    # P was stored through the generic proxy, the tensor cores read through the async one. The fence
    # stands here as score, which everything waits for, would wait for its own stores in it.
    fence_async_shared()
    alpha = shared.alpha.index(stage).load(IN_WARP).to(gl.int32, bitcast=True)
    return gl.min(alpha, 0)


@gluon.jit
def rescale(shared, block, smallest, e0, o0, e1, o1):
    """Multiply O by a block's factors, unless all of them are one."""
    if smallest < ONE:
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
def values_partition(FIRST: gl.constexpr, shared, schedule, topk_length_ptr, out_ptr, parts_ptr):
    """Channels FIRST .. FIRST + 255 of O."""
    block = 0
    phase = 0
    for work in range(gl.program_id(0), schedule.n_work, gl.num_programs(0)):
        _, _, _, pairs, _ = work_item(schedule, work, topk_length_ptr)
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
        if work >= schedule.whole:
            part = parts_ptr + (work - schedule.whole).to(gl.int64) * (HEADS * D_V)
            store_part(part, e0, o0, FIRST)
            store_part(part, e1, o1, FIRST + 128)
        else:
            mbarrier.wait(shared.inverse_full, phase)
            inverse = shared.inverse.load(O_HEADS)
            mbarrier.arrive(shared.inverse_empty, count=1)
            out = out_ptr.to(gl.pointer_type(gl.int32)) + work.to(gl.int64) * (HEADS * D_V // 2)
            store_output(out, e0, o0, inverse, FIRST)
            store_output(out, e1, o1, inverse, FIRST + 128)
        phase ^= 1
