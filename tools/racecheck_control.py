"""A kernel without a race, in which compute-sanitizer's racecheck sees two.

    compute-sanitizer --tool racecheck --racecheck-report analysis python tools/racecheck_control.py

Four warps store; a barrier among them; one of them arrives at an mbarrier; four others, which wait
at it, load. So do the partitions of the Hopper kernel hand small arrays on: Triton has one thread
arrive for a partition. Racecheck leaves the barrier out of account: where every thread arrives for
itself, which `each` as an argument does, it is silent about these stores and loads. In both it sees
a race in the table by which Triton tells the partitions what to run, between stores and loads that
a barrier of all warps parts.
"""

import sys

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier

STEPS = 50
ROWS = gl.constexpr(gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32])))
IN_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))

# Gluon renamed it after Triton 3.6.
sync_threads = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.jit
def store_partition(handed_on, full, empty, steps, EACH: gl.constexpr):
    for i in range(steps):
        stage, phase = i & 1, i // 2 & 1
        mbarrier.wait(empty.index(stage), phase ^ 1)
        handed_on.index(stage).store((gl.arange(0, 64, ROWS) + i).to(gl.float32))
        if EACH:
            async_copy.mbarrier_arrive(full.index(stage), increment_count=False)
        else:
            mbarrier.arrive(full.index(stage), count=1)


@gluon.jit
def load_partition(handed_on, full, empty, out_ptr, steps):
    total = gl.zeros([64], gl.float32, IN_WARP)
    for i in range(steps):
        stage, phase = i & 1, i // 2 & 1
        mbarrier.wait(full.index(stage), phase)
        total += handed_on.index(stage).load(IN_WARP)
        mbarrier.arrive(empty.index(stage), count=1)
    gl.store(out_ptr + gl.arange(0, 64, IN_WARP), total)


@gluon.jit
def control_kernel(out_ptr, steps, EACH: gl.constexpr):
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    handed_on = gl.allocate_shared_memory(gl.float32, [2, 64], plain)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=128 if EACH else 1)
        mbarrier.init(empty.index(i), count=1)
    sync_threads()
    gl.warp_specialize(
        [
            (load_partition, (handed_on, full, empty, out_ptr, steps)),
            (store_partition, (handed_on, full, empty, steps, EACH)),
        ],
        [4],
        [64],
    )


def main() -> None:
    out = torch.full((64,), float("nan"), device="cuda")
    control_kernel[(1,)](out, STEPS, EACH="each" in sys.argv[1:], num_warps=4)
    expected = torch.arange(64.0) * STEPS + sum(range(STEPS))
    assert torch.equal(out.cpu(), expected), out
    print("every sum is right")


if __name__ == "__main__":
    main()
