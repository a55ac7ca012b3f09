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

Programs are persistent: each takes work items `program_id, program_id + num_programs, ...`. The
tiles of full rounds are one item each. Those left over, all of them with few queries, are split
among the programs, lanes by lanes, where that pays: each item then writes an unnormalised part, and
`merge_kernel` adds a tile's parts up in order, so that the bits depend on sizes and the GPU alone.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .gluon_gather import gather_partition
from .gluon_score import score_partition
from .gluon_shared import HEADS, Schedule, new_shared, sync_threads
from .gluon_values import values_partition


@gluon.jit(do_not_specialize=["s_kv", "n_work", "whole", "splits", "pairs"])
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
    whole,
    splits,
    pairs,
    ROPE: gl.constexpr,
):
    """Attention of `n_work` work items: `whole` tiles and then parts, which `merge_kernel` merges.

    `topk_length_ptr` and `attn_sink_ptr` may be None. `parts_ptr` holds all parts, 64 x 512 each,
    and then for each the largest logit, the maximum that P is relative to and the sum of P of 64
    heads, the first two in powers of two.

    Registers a thread are 176, 176, 120 and 40, which is all there are. With 168 for values ptxas
    serialises every product of the kernel, and score needs as many as can be for two accumulators.
    """
    shared = new_shared(ROPE)
    schedule = Schedule(n_work, h_q // HEADS, topk, whole, splits, pairs)
    sync_threads()
    gl.warp_specialize(
        [
            (values_partition, (0, shared, schedule, topk_length_ptr, out_ptr, parts_ptr)),
            (values_partition, (256, shared, schedule, topk_length_ptr, out_ptr, parts_ptr)),
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
