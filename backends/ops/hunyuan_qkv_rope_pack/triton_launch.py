"""Host code around the device code: how a call is tiled, specialised and launched.

Triton's own dispatch looks at every argument of every call to decide how to specialise, which for
33 arguments costs more than the kernel at a few thousand tokens. All that may differ here is the
head's width, the tile and the alignment, so they are the key: `Specialisation` is looked up, and
the compiled kernel is given bare addresses. The same record drives `compile_specs`, so that what a
machine without a GPU compiles is what a call runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
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

LANES_PER_TILE = 1024
"""Four warps of 16 bytes a thread, for each of q, k and v: enough in flight to fill the memory bus,
and still some six waves of programs at 4096 tokens of 24 heads."""


@dataclass(frozen=True)
class Tile:
    """What one program handles: `tokens` by `heads`, the heads side by side in `lanes`."""

    tokens: int
    heads: int
    lanes: int

    @property
    def num_warps(self) -> int:
        """Enough warps for eight elements, 16 bytes, a thread; one at least."""
        return max(1, self.tokens * self.lanes // (8 * 32))


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
        return {"num_warps": self.tile.num_warps, "enable_fp_fusion": False}


@cache
def choose_tile(num_heads: int, head_dim: int) -> Tile:
    """Part a token's heads evenly so that few lanes idle; take several tokens where heads are few.

    A tile holds whole heads, in a power of two of lanes. Between half and all of `LANES_PER_TILE`,
    that size wins for which the fewest lanes are needed to hold all heads.
    """
    row = triton.next_power_of_2(num_heads * head_dim)
    if row <= LANES_PER_TILE // 2:
        return Tile(tokens=LANES_PER_TILE // row, heads=num_heads, lanes=row)

    def lanes_needed(lanes: int) -> int:
        return triton.cdiv(num_heads, lanes // head_dim) * lanes

    lanes = min((LANES_PER_TILE, LANES_PER_TILE // 2), key=lanes_needed)
    parts = triton.cdiv(num_heads, lanes // head_dim)
    return Tile(tokens=1, heads=triton.cdiv(num_heads, parts), lanes=lanes)


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
    if INTERPRETED:
        run = pack_kernel
    else:
        spec = compile_spec(specialisation)
        run = triton.compile(spec.source(), options=dict(spec.options))
    return LoadedKernel(run, specialisation.tile, tuple(specialisation.constexprs.values()))


def kernel_arguments(
    images: Sequence[Tensor], texts: Sequence[Tensor], tables: Sequence[Tensor], packed: Tensor
) -> tuple[list[Any], int]:
    """Gather pointers and strides in the kernel's order, and the alignment in bytes of all of them.

    The stride of an axis of size one is never stepped along: it says nothing, and counts as zero.
    """
    arguments: list[Any] = []
    bits = WIDEST_ACCESS
    batch_size, _, num_heads, _ = images[0].shape
    for tensors in images, texts:
        seq_len = tensors[0].shape[1]
        for x in tensors:
            stride_b, stride_s, stride_h, _ = x.stride()
            stride_b *= batch_size > 1
            stride_s *= seq_len > 1
            stride_h *= num_heads > 1
            address = x.data_ptr()
            arguments += (x if INTERPRETED else address, stride_b, stride_s, stride_h)
            bits |= address | 2 * (stride_b | stride_s | stride_h)
    for table in tables:
        stride_s = table.stride(0) * (images[0].shape[1] > 1)
        address = table.data_ptr()
        arguments += (table if INTERPRETED else address, stride_s)
        bits |= address | 4 * stride_s
    address = packed.data_ptr()
    arguments.append(packed if INTERPRETED else address)
    bits |= address
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
    packed = img_q.new_empty((3, batch_size, img_len + txt_len, num_heads, head_dim))
    if not packed.numel():
        return packed
    arguments, alignment = kernel_arguments(
        (img_q, img_k, img_v), (txt_q, txt_k, txt_v), (cos, sin), packed
    )
    device_index = img_q.get_device()
    here = INTERPRETED or device_index == torch.cuda.current_device()
    with nullcontext() if here else torch.cuda.device(device_index):
        kernel = load_kernel(num_heads, head_dim, alignment, device_index)
        tile = kernel.tile
        token_tiles = -(-img_len // tile.tokens) - (-txt_len // tile.tokens)
        grid = (batch_size * token_tiles * -(-num_heads // tile.heads), 1, 1)
        sizes = (batch_size, img_len, txt_len, num_heads)
        kernel.run[grid](*arguments, *sizes, *kernel.constexprs)
    return packed


def launch_backward(
    grad_packed: Tensor, cos: Tensor, sin: Tensor, img_len: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `(img_q, img_k, img_v, txt_q, txt_k, txt_v)`, given that of `packed`.

    A rotation's transpose is the rotation by the negated angle, and a copy's is a copy: the op
    itself, on slices of the gradient, with -sin. The six are views of one fresh buffer.
    """
    if grad_packed.stride(-1) != 1:  # an expanded gradient, as a sum's
        grad_packed = grad_packed.contiguous()
    images, texts = grad_packed[:, :, :img_len], grad_packed[:, :, img_len:]
    gradients = launch(*images.unbind(0), *texts.unbind(0), cos, -sin)
    return (*gradients[:, :, :img_len].unbind(0), *gradients[:, :, img_len:].unbind(0))
