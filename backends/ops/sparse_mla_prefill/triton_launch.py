"""Host side of the portable Triton backend of sparse MLA prefill: tiles, shares, launches.

Triton's own dispatch inspects every argument of every call. What a kernel here depends on is
little, and that is the key: a `Specialisation` is looked up, and its compiled kernel given bare
addresses. The same record drives `compile_specs`, so that what a machine without a GPU compiles is
what a call runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import JITFunction

from backends.dispatch.cubin import CubinSpec

from .triton_kernel import sparse_mla_kernel, sparse_mla_merge_kernel, sparse_mla_split_kernel

INTERPRETED = not isinstance(sparse_mla_kernel, JITFunction)
"""Whether TRITON_INTERPRET was set when the kernels were defined: they then run on any device."""

WIDEST_ACCESS = 16
"""Bytes that one thread loads or stores at once, at most."""

SHARE_UNIT = 64
"""A share of a query's lanes is a multiple of this, and so of every tile's block of lanes."""

MERGE_BLOCK = 8
"""Shares that a merging program reads at once: 8 KB, 128 bytes a thread of two warps."""


@dataclass(frozen=True)
class Tile:
    """What one program handles at a time, `block_h` heads by `block_n` lanes, and with what."""

    block_h: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Shares:
    """How the lanes of a query are shared among programs: `count` shares of `lanes` lanes."""

    count: int
    lanes: int


@dataclass(frozen=True)
class Specialisation:
    """What a compiled kernel depends on.

    `alignment` divides the addresses of all that is read or written wide, and kv's row stride, in
    bytes.
    """

    tile: Tile
    has_rope: bool
    has_topk_length: bool
    has_attn_sink: bool
    alignment: int

    @property
    def constexprs(self) -> dict[str, Any]:
        """Of the kernels that attend; both products are in float32 under the interpreter."""
        return {
            "HAS_ROPE": self.has_rope,
            "BLOCK_H": self.tile.block_h,
            "BLOCK_N": self.tile.block_n,
            "QK_DTYPE": tl.float32 if INTERPRETED else tl.float8e4nv,
            "PV_DTYPE": tl.float32 if INTERPRETED else tl.float16,
        }

    @property
    def options(self) -> dict[str, int | bool]:
        return {
            "num_warps": self.tile.num_warps,
            "num_stages": self.tile.num_stages,
            "enable_fp_fusion": True,
        }


@cache
def choose_tile(capability: int, h_q: int) -> Tile:
    """The tile for a compute capability, such as 90, and a number of heads.

    sm_90, measured: 128 heads side by side take eight warps and 200 KB of shared memory, a second
    block of rows in flight included; 64 heads take four warps and half of that, so that two
    programs share a multiprocessor. Elsewhere there are 99 KB, and a matrix instruction is one
    warp's: by the compiler's report, 32 lanes in eight warps neither overflow nor spill.
    """
    if capability == 90:
        if h_q % 128 == 0:
            return Tile(block_h=128, block_n=64, num_warps=8, num_stages=3)
        return Tile(block_h=64, block_n=32, num_warps=4, num_stages=3)
    return Tile(block_h=64, block_n=32, num_warps=8, num_stages=3)


@cache
def choose_shares(programs: int, topk: int, processors: int) -> Shares:
    """Share the lanes of each program among several where programs are fewer than processors.

    The shares depend on sizes alone, never on topk_length nor on which lanes are masked: so do the
    order of the sums and, with it, the bits.

    >>> choose_shares(programs=16, topk=2048, processors=132)
    Shares(count=8, lanes=256)
    """
    units = topk // SHARE_UNIT
    wanted = max(1, min(processors // programs, units))
    units_per_share = -(-units // wanted)
    return Shares(-(-units // units_per_share), units_per_share * SHARE_UNIT)


def compile_spec(
    kernel: Any, specialisation: Specialisation, capabilities: tuple[int, ...] = ()
) -> CubinSpec:
    """Describe one kernel of a specialisation to Triton's compiler."""
    s = specialisation
    merging = kernel is sparse_mla_merge_kernel
    constexprs: dict[str, Any] = {"BLOCK_S": MERGE_BLOCK} if merging else s.constexprs
    if "topk_length_ptr" in kernel.arg_names and not s.has_topk_length:
        constexprs["topk_length_ptr"] = None
    if "attn_sink_ptr" in kernel.arg_names and not s.has_attn_sink:
        constexprs["attn_sink_ptr"] = None
    elements = {"q_ptr": "*fp8e4nv", "kv_ptr": "*fp8e4nv", "out_ptr": "*bf16"}
    elements |= {"indices_ptr": "*i32", "topk_length_ptr": "*i32"}
    divisibility = {
        "q_ptr": s.alignment,
        "kv_ptr": s.alignment,
        "indices_ptr": s.alignment,
        "out_ptr": s.alignment,
        "parts_ptr": WIDEST_ACCESS,
        "stride_kv": s.alignment,
        "h_q": 64,
        "topk": 128,
    }
    signature = {}
    for name in kernel.arg_names:
        if name in constexprs:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = elements.get(name, "*fp32")
        elif name.startswith("stride_"):
            signature[name] = "i64"
        else:
            signature[name] = "fp32" if name == "sm_scale" else "i32"
    marks = "rope-" * s.has_rope + "length-" * s.has_topk_length + "sink-" * s.has_attn_sink
    return CubinSpec(
        name=f"{kernel.__name__}-{marks}h{s.tile.block_h}-n{s.tile.block_n}-a{s.alignment}",
        kernel=kernel,
        signature=signature,
        constexprs=constexprs,
        options={"num_warps": 2, "enable_fp_fusion": True} if merging else s.options,
        capabilities=capabilities,
        divisibility={name: by for name, by in divisibility.items() if name in signature},
        # 128 heads fill the register file to the last: a few loop invariants live in local memory,
        # read once a step. It is the fastest all the same.
        allowed_stack_bytes=160,
    )


def compile_specs() -> Iterator[CubinSpec]:
    """Both tiles of sm_90 and the one of other GPUs, with every option and without."""
    elsewhere = (89, 100, 120)
    for capabilities, h_q in (((90,), 128), ((90,), 64), (elsewhere, 64)):
        tile = choose_tile(capabilities[0], h_q)
        everything = Specialisation(tile, True, True, True, WIDEST_ACCESS)
        nothing = Specialisation(tile, False, False, False, WIDEST_ACCESS)
        yield compile_spec(sparse_mla_kernel, everything, capabilities)
        yield compile_spec(sparse_mla_kernel, nothing, capabilities[:1])
        yield compile_spec(sparse_mla_split_kernel, everything, capabilities[:1])
    yield compile_spec(sparse_mla_merge_kernel, everything, (90, *elsewhere))


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

    Trusts its arguments: the op's contract has judged them. kv may have any row stride. Launches on
    the tensors' device and its current stream, once, or twice where the lanes are shared, or not at
    all without queries; never waits for the device.
    """
    s_q, h_q, d_qk = q.shape
    if s_q == 0:
        return
    device_index = q.get_device()
    capability, processors = device_facts(device_index)
    tile = choose_tile(capability, h_q)
    programs = 2 * s_q * h_q // tile.block_h
    topk = indices.shape[-1]
    shares = choose_shares(programs, topk, processors)
    addresses = [
        address(x)
        for x in (q, kv, indices, topk_length, attn_sink, q_scale, kv_scale, out, max_logits, lse)
    ]
    stride_kv = kv.stride(0)
    bits = WIDEST_ACCESS | q.data_ptr() | kv.data_ptr() | indices.data_ptr() | out.data_ptr()
    bits |= stride_kv
    specialisation = Specialisation(
        tile, d_qk != 512, topk_length is not None, attn_sink is not None, bits & -bits
    )
    constexprs = specialisation.constexprs.values()

    here = INTERPRETED or device_index == torch.cuda.current_device()
    with nullcontext() if here else torch.cuda.device(device_index):
        if shares.count == 1:
            kernel = load_kernel(sparse_mla_kernel, specialisation, device_index)
            kernel[programs, 1, 1](
                *addresses,
                sm_scale,
                kv.shape[0],
                h_q,
                topk,
                stride_kv,
                *constexprs,
            )
            return
        rows = 2 * s_q * h_q
        # 256 float32 values, a peak and a total for each half of a head's row and each share.
        parts_buffer = torch.empty(rows * shares.count * 258, device=q.device)
        parts = address(parts_buffer)
        split = load_kernel(sparse_mla_split_kernel, specialisation, device_index)
        merge = load_kernel(sparse_mla_merge_kernel, specialisation, device_index)
        split[programs, shares.count, 1](
            *addresses[:4],
            *addresses[5:7],
            parts,
            sm_scale,
            kv.shape[0],
            h_q,
            topk,
            shares.lanes,
            shares.count,
            stride_kv,
            *constexprs,
        )
        merge[rows, 1, 1](
            parts,
            addresses[4],
            *addresses[6:],
            h_q,
            shares.count,
            MERGE_BLOCK,
        )


def address(x: Tensor | None) -> Tensor | int | None:
    """What a kernel takes for a tensor: its address, or under the interpreter the tensor itself."""
    return x if x is None or INTERPRETED else x.data_ptr()


@cache
def load_kernel(kernel: Any, specialisation: Specialisation, device_index: int) -> Any:
    """Compile for, and load on, the current device, which `device_index` must name."""
    return kernel if INTERPRETED else compile_spec(kernel, specialisation).load()


@cache
def device_facts(device_index: int) -> tuple[int, int]:
    """Compute capability and number of multiprocessors; the interpreter plays a sm_90 of two."""
    if INTERPRETED:
        return 90, 2
    properties = torch.cuda.get_device_properties(device_index)
    return 10 * properties.major + properties.minor, properties.multi_processor_count
