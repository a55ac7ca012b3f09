"""Host side of the Hopper backend of sparse MLA prefill: splits, compiled kernels, launches.

A compiled kernel depends on the width of the rows and on which options are given, and on nothing
else. It is looked up by that and given bare addresses, as Triton's own dispatch, which inspects
every argument of every call, costs three times the launch. `compile_specs` goes the same way, so
that what a machine without a GPU compiles is what a call runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from backends.dispatch.cubin import CubinSpec, LoadedKernel

from .gluon_kernel import prefill_kernel
from .gluon_merge import HEADS_PER_MERGE, merge_kernel
from .gluon_shared import D_V, HEADS, LANES_PER_PAIR

MAX_SPLITS = 32
"""Parts of one tile at most: the lanes of a warp, which looks at the parts' statistics at once."""

WORTH_A_MERGE = 2
"""Pairs of blocks, of 3 us each, that splitting a tile has to save: a second launch takes 4 us."""

UNROLLED_PARTS = 4
"""Parts that a merging program has under way at once: 64 bytes a thread of each."""

MERGES_PER_TILE = HEADS.value // HEADS_PER_MERGE.value

STATISTICS = 3
"""Floats that go with each head of a part: its largest logit, its maximum and its sum."""


@dataclass(frozen=True)
class Splits:
    """Which tiles are split and how: all behind the first `whole`, into `count` parts of `pairs`
    pairs of blocks each."""

    whole: int
    count: int
    pairs: int


@cache
def choose_splits(tiles: int, topk: int, processors: int) -> Splits:
    """Split the tiles that are left when all multiprocessors have had equally many.

    They are not split where that would save less than the merge costs. The cut depends on sizes
    alone, never on topk_length nor on which lanes are masked: so do the order of the sums and, with
    it, the bits.

    >>> choose_splits(tiles=16, topk=2048, processors=132)
    Splits(whole=0, count=8, pairs=2)
    >>> choose_splits(tiles=8192, topk=2048, processors=132)
    Splits(whole=8184, count=16, pairs=1)
    >>> choose_splits(tiles=200, topk=2048, processors=132)
    Splits(whole=200, count=1, pairs=16)
    """
    pairs = topk // LANES_PER_PAIR.value
    left = tiles % processors
    wanted = min(processors // left, pairs, MAX_SPLITS) if left else 1
    pairs_per_split = -(-pairs // wanted)
    if pairs - pairs_per_split < WORTH_A_MERGE:
        return Splits(tiles, 1, pairs)
    return Splits(tiles - left, -(-pairs // pairs_per_split), pairs_per_split)


def compile_prefill_spec(has_rope: bool, has_topk_length: bool, has_attn_sink: bool) -> CubinSpec:
    """Describe the attention kernel to the compiler."""
    constexprs: dict[str, Any] = {"ROPE": has_rope}
    if not has_topk_length:
        constexprs["topk_length_ptr"] = None
    if not has_attn_sink:
        constexprs["attn_sink_ptr"] = None
    marks = "-rope" * has_rope + "-length" * has_topk_length + "-sink" * has_attn_sink
    return describe(prefill_kernel, marks, constexprs)


def compile_merge_spec(has_attn_sink: bool) -> CubinSpec:
    """Describe the merging kernel to the compiler."""
    constexprs: dict[str, Any] = {"MAX_SPLITS": MAX_SPLITS, "UNROLL": UNROLLED_PARTS}
    if not has_attn_sink:
        constexprs["attn_sink_ptr"] = None
    return describe(merge_kernel, "-sink" * has_attn_sink, constexprs)


def describe(kernel: Any, marks: str, constexprs: dict[str, Any]) -> CubinSpec:
    """One kernel, its parameters' types, and what divides them."""
    elements = {"q_ptr": "*fp8e4nv", "kv_ptr": "*fp8e4nv", "out_ptr": "*bf16"}
    elements |= {"indices_ptr": "*i32", "topk_length_ptr": "*i32", "sm_scale": "fp32"}
    divisibility = {"q_ptr": 16, "kv_ptr": 16, "indices_ptr": 16, "out_ptr": 16, "parts_ptr": 16}
    divisibility |= {"stride_kv": 16, "h_q": 64, "topk": 128}
    signature = {
        name: "constexpr"
        if name in constexprs
        else elements.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    return CubinSpec(
        name=f"{kernel.__name__}{marks}",
        kernel=kernel,
        signature=signature,
        constexprs=constexprs,
        options={"num_warps": 4, "enable_fp_fusion": True},
        capabilities=(90,),
        divisibility={
            name: by
            for name, by in divisibility.items()
            if signature.get(name, "constexpr") != "constexpr"
        },
        # The four partitions fill the register file to the last: a few of the score partition's
        # invariants live in local memory, read once a tile.
        allowed_stack_bytes=96,
    )


def compile_specs() -> Iterator[CubinSpec]:
    """Both widths, with every option and without, and the merge."""
    for has_rope in (True, False):
        yield compile_prefill_spec(has_rope, True, True)
        yield compile_prefill_spec(has_rope, False, False)
    yield compile_merge_spec(True)
    yield compile_merge_spec(False)


@cache
def load_prefill(
    has_rope: bool, has_topk_length: bool, has_attn_sink: bool, device_index: int
) -> LoadedKernel:
    """The attention kernel on the current device, which `device_index` must name."""
    return compile_prefill_spec(has_rope, has_topk_length, has_attn_sink).load()


@cache
def load_merge(has_attn_sink: bool, device_index: int) -> LoadedKernel:
    """The merging kernel, likewise."""
    return compile_merge_spec(has_attn_sink).load()


@cache
def count_processors(device_index: int) -> int:
    return torch.cuda.get_device_properties(device_index).multi_processor_count


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def launch(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    sm_scale: float,
    q_scale: Tensor,
    kv_scale: Tensor,
    attn_sink: Tensor | None,
    topk_length: Tensor | None,
    out: Tensor,
    max_logits: Tensor,
    lse: Tensor,
) -> None:
    """Write out, max_logits and lse; `reference.sparse_mla_reference` says what they mean.

    Trusts its arguments: the op's contract has judged them, and the backend's rules that q, kv,
    each row of kv, indices and out begin at multiples of 16 bytes. Launches on the tensors' device
    and its current stream, and never waits for it. Nothing is launched without queries; where
    tiles are split, a second kernel merges their parts.
    """
    s_q, h_q, d_qk = q.shape
    tiles = s_q * h_q // HEADS.value
    if not tiles:
        return
    device_index = q.get_device()
    if device_index != torch.cuda.current_device():
        with torch.cuda.device(device_index):
            return launch(
                q,
                kv,
                indices,
                sm_scale,
                q_scale,
                kv_scale,
                attn_sink,
                topk_length,
                out,
                max_logits,
                lse,
            )
    s_kv = kv.shape[0]
    topk = indices.shape[2]
    has_rope = d_qk != D_V.value
    has_sink = attn_sink is not None
    processors = count_processors(device_index)
    splits = choose_splits(tiles, topk, processors)
    n_parts = (tiles - splits.whole) * splits.count
    n_work = splits.whole + n_parts
    prefill = load_prefill(has_rope, topk_length is not None, has_sink, device_index)
    merge = load_merge(has_sink, device_index) if n_parts else None
    parts = None
    if n_parts:
        floats = n_parts * HEADS.value * (D_V.value + STATISTICS)
        parts = q.new_empty(floats, dtype=torch.float32)
    results = (out.data_ptr(), max_logits.data_ptr(), lse.data_ptr())
    prefill[min(n_work, processors), 1, 1](
        q.data_ptr(),
        kv.data_ptr(),
        indices.data_ptr(),
        address(topk_length),
        address(attn_sink),
        q_scale.data_ptr(),
        kv_scale.data_ptr(),
        *results,
        address(parts),
        sm_scale,
        h_q,
        topk,
        s_kv,
        kv.stride(0) if s_kv > 1 else 0,
        n_work,
        splits.whole,
        splits.count,
        splits.pairs,
        has_rope,
    )
    if merge is not None:
        merge[(tiles - splits.whole) * MERGES_PER_TILE, 1, 1](
            address(parts),
            address(attn_sink),
            kv_scale.data_ptr(),
            *results,
            h_q,
            n_parts,
            splits.whole,
            splits.count,
            MAX_SPLITS,
            UNROLLED_PARTS,
        )
