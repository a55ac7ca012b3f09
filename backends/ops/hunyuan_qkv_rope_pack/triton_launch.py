"""Host code around the device code: how a call is tiled, specialised and launched.

Triton's own dispatch looks at every argument of every call to decide how to specialise, which for
33 arguments costs as much again as the launch. All that may differ here is the head's width, the
tile and the alignment, so these are the key: a compiled kernel is looked up by them and given bare
addresses. `compile_specs` goes the same way, so that what a machine without a GPU compiles is what
a call runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime import JITFunction

from backends.dispatch.cubin import CubinSpec
from backends.ops.hunyuan_qkv_rope_pack.triton_kernel import pack_kernel

INTERPRETED = not isinstance(pack_kernel, JITFunction)
"""Whether TRITON_INTERPRET was set when the kernel was defined: it then runs on any device."""

WIDEST_ACCESS = 16
"""Bytes that one thread loads or stores at once, at most."""

TILE_ELEMENTS = 1024
NUM_WARPS = 4
"""Eight elements, the widest access, a thread for each of q, k and v. Measured on an H200, two
tokens of 512 lanes stay within 2 % of the best of six shapes at every head_dim from 64 to 128."""


@dataclass(frozen=True)
class Tile:
    """What one program handles: `tokens` by `heads`, the heads side by side in `lanes`."""

    tokens: int
    heads: int
    lanes: int


@dataclass(frozen=True)
class Specialisation:
    """What the compiled kernel depends on. `alignment` divides every address, in bytes."""

    head_dim: int
    alignment: int
    tile: Tile

    @property
    def constexprs(self) -> dict[str, int | bool]:
        return {
            "HEAD_DIM": self.head_dim,
            "BLOCK_TOKENS": self.tile.tokens,
            "BLOCK_HEADS": self.tile.heads,
            "LANES": self.tile.lanes,
            "ROUND_IN_INTEGERS": INTERPRETED,
        }

    @property
    def options(self) -> dict[str, int | bool]:
        """Products are rounded before they are added, as in torch: the same bits everywhere."""
        return {"num_warps": NUM_WARPS, "enable_fp_fusion": False}


@cache
def choose_tile(num_heads: int, head_dim: int) -> Tile:
    """Part a token's heads evenly into tiles so that few lanes idle; fill up with further tokens.

    A tile holds whole heads, in at most 512 lanes or 256: whichever needs fewer for all heads.
    """

    def parts(lanes: int) -> int:
        return triton.cdiv(num_heads, lanes // head_dim)

    fewest = min((512, 256), key=lambda lanes: parts(lanes) * lanes)
    heads = triton.cdiv(num_heads, parts(fewest))
    lanes = triton.next_power_of_2(heads * head_dim)
    return Tile(TILE_ELEMENTS // lanes, heads, lanes)


def compile_spec(specialisation: Specialisation) -> CubinSpec:
    """Describe one specialisation to Triton's compiler."""
    constexprs = specialisation.constexprs
    signature, divisibility = {}, {}
    for name in pack_kernel.arg_names:
        table = name in ("cos_ptr", "sin_ptr", "stride_cs", "stride_ss")
        if name in constexprs:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = "*fp32" if table else "*bf16"
            divisibility[name] = specialisation.alignment
        elif name.startswith("stride_"):
            signature[name] = "i64"
            divisibility[name] = max(1, specialisation.alignment // (4 if table else 2))
        else:
            signature[name] = "i32"
    return CubinSpec(
        name=f"hunyuan_qkv_rope_pack-d{specialisation.head_dim}-a{specialisation.alignment}"
        f"-t{specialisation.tile.tokens}",
        kernel=pack_kernel,
        signature=signature,
        constexprs=constexprs,
        options=specialisation.options,
        divisibility=divisibility,
    )


def compile_specs() -> Iterator[CubinSpec]:
    """Every kind of specialisation: each width of access, many heads and few, odd head_dims."""
    for head_dim in (64, 80, 96, 112, 128):
        yield compile_spec(Specialisation(head_dim, WIDEST_ACCESS, choose_tile(24, head_dim)))
    for alignment in (2, 4, 8):
        yield compile_spec(Specialisation(128, alignment, choose_tile(24, 128)))
    for head_dim in (2, 8, 66, 100):
        yield compile_spec(Specialisation(head_dim, WIDEST_ACCESS, choose_tile(1, head_dim)))


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel ready to run on one device: `run[grid](*arguments, *constexprs)`."""

    run: Any
    tile: Tile
    constexprs: tuple[int | bool, ...]


@cache
def load_kernel(num_heads: int, head_dim: int, alignment: int, device_index: int) -> LoadedKernel:
    """Compile for, and load on, the current device, which `device_index` must name."""
    specialisation = Specialisation(head_dim, alignment, choose_tile(num_heads, head_dim))
    run = pack_kernel if INTERPRETED else compile_spec(specialisation).load()
    return LoadedKernel(run, specialisation.tile, tuple(specialisation.constexprs.values()))


def kernel_arguments(
    img_q: Tensor,
    img_k: Tensor,
    img_v: Tensor,
    txt_q: Tensor,
    txt_k: Tensor,
    txt_v: Tensor,
    cos: Tensor,
    sin: Tensor,
    packed: Tensor,
) -> tuple[tuple[Any, ...], int]:
    """Pointers and strides in the kernel's order, and the alignment in bytes of all of them.

    The stride of an axis of size one is never stepped along, so it says nothing of alignment.
    Written out, not looped: this is a third of what a call costs the host.
    """
    iq_b, iq_s, iq_h, _ = img_q.stride()
    ik_b, ik_s, ik_h, _ = img_k.stride()
    iv_b, iv_s, iv_h, _ = img_v.stride()
    tq_b, tq_s, tq_h, _ = txt_q.stride()
    tk_b, tk_s, tk_h, _ = txt_k.stride()
    tv_b, tv_s, tv_h, _ = txt_v.stride()
    cos_s, _ = cos.stride()
    sin_s, _ = sin.stride()
    iq: Any = img_q.data_ptr()
    ik: Any = img_k.data_ptr()
    iv: Any = img_v.data_ptr()
    tq: Any = txt_q.data_ptr()
    tk: Any = txt_k.data_ptr()
    tv: Any = txt_v.data_ptr()
    c: Any = cos.data_ptr()
    s: Any = sin.data_ptr()
    out: Any = packed.data_ptr()

    batch_size, img_len, num_heads, _ = img_q.shape
    bits = WIDEST_ACCESS | iq | ik | iv | tq | tk | tv | c | s | out
    if batch_size > 1:
        bits |= 2 * (iq_b | ik_b | iv_b | tq_b | tk_b | tv_b)
    if num_heads > 1:
        bits |= 2 * (iq_h | ik_h | iv_h | tq_h | tk_h | tv_h)
    if img_len > 1:
        bits |= 2 * (iq_s | ik_s | iv_s) | 4 * (cos_s | sin_s)
    if txt_q.shape[1] > 1:
        bits |= 2 * (tq_s | tk_s | tv_s)

    if INTERPRETED:  # it wants tensors
        iq, ik, iv, tq, tk, tv = img_q, img_k, img_v, txt_q, txt_k, txt_v
        c, s, out = cos, sin, packed
    arguments = (
        iq, iq_b, iq_s, iq_h, ik, ik_b, ik_s, ik_h, iv, iv_b, iv_s, iv_h,
        tq, tq_b, tq_s, tq_h, tk, tk_b, tk_s, tk_h, tv, tv_b, tv_s, tv_h,
        c, cos_s, s, sin_s, out,
    )  # fmt: skip
    return arguments, bits & -bits


def launch(
    img_q: Tensor,
    img_k: Tensor,
    img_v: Tensor,
    txt_q: Tensor,
    txt_k: Tensor,
    txt_v: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    """Rotate image q and k, and pack all six: `packed[3, B, S + T, H, D]`, image tokens first.

    Trusts its arguments: the op's contract has judged them. Reads any outer strides and any
    2-byte aligned address in place. Launches once, on the tensors' device and its current stream,
    or not at all when there is nothing to pack.
    """
    batch_size, img_len, num_heads, head_dim = img_q.shape
    txt_len = txt_q.shape[1]
    device_index = img_q.get_device()
    if not INTERPRETED and device_index != torch.cuda.current_device():
        with torch.cuda.device(device_index):
            return launch(img_q, img_k, img_v, txt_q, txt_k, txt_v, cos, sin)
    packed = img_q.new_empty((3, batch_size, img_len + txt_len, num_heads, head_dim))
    if not batch_size * (img_len + txt_len) * num_heads:
        return packed
    arguments, alignment = kernel_arguments(
        img_q, img_k, img_v, txt_q, txt_k, txt_v, cos, sin, packed
    )
    kernel = load_kernel(num_heads, head_dim, alignment, device_index)
    tile = kernel.tile
    token_tiles = -(-img_len // tile.tokens) - (-txt_len // tile.tokens)
    programs = batch_size * token_tiles * -(-num_heads // tile.heads)
    sizes = (batch_size, img_len, txt_len, num_heads)
    kernel.run[programs, 1, 1](*arguments, *sizes, *kernel.constexprs)
    return packed
