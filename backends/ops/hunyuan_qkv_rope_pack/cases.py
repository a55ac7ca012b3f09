"""Named inputs, shared by tests, conformance and benchmarks: every layout that a caller may bring.

Each input lies in a buffer of NaN: a kernel that reads beside it packs NaN, and one that writes
beside it is caught by comparing the buffers with a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

GUARD = 64
"""Elements of NaN on either side of each input; a multiple of 16 bytes, so alignment is kept."""


NAMES = ("img_q", "img_k", "img_v", "txt_q", "txt_k", "txt_v", "cos", "sin")


class Pool:
    """Draws random inputs inside guarded buffers, on one device, from one seed."""

    def __init__(self, device: str | torch.device, seed: int) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.buffers: list[Tensor] = []

    def draw(self, *shape: int, dtype: torch.dtype = torch.bfloat16, skip: int = 0) -> Tensor:
        """A contiguous, standard-normal tensor, `skip` elements past a 16-byte boundary."""
        return self.strided(shape, contiguous_strides(shape), dtype=dtype, skip=skip)

    def strided(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype = torch.bfloat16,
        skip: int = 0,
    ) -> Tensor:
        """The same with any strides, zero included; the elements it steps over are NaN."""
        reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        start = GUARD + skip
        length = start + (reach if prod(shape) else 0) + GUARD
        buffer = torch.full((length,), float("nan"), dtype=dtype, device=self.device)
        self.buffers.append(buffer)
        x = buffer.as_strided(shape, strides, start)
        values = torch.randn(shape, generator=self.generator, device=self.device)
        for axis, stride in enumerate(strides):
            if stride == 0 and shape[axis] > 1:  # one value under several indices
                values = values.narrow(axis, 0, 1)
                x = x.narrow(axis, 0, 1)
        x.copy_(values)
        return buffer.as_strided(shape, strides, start)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


Shape = tuple[int, int, int, int]
QKV = tuple[Tensor, Tensor, Tensor]
Layout = Callable[[Pool, Shape], QKV]


def separate(pool: Pool, shape: Shape, skip: int = 0) -> QKV:
    """Three contiguous tensors, `skip` elements past an aligned address."""
    q, k, v = (pool.draw(*shape, skip=skip) for _ in range(3))
    return q, k, v


def fused(pool: Pool, shape: Shape, beside: int = 0) -> QKV:
    """Views of one projection `[B, S, 3 H D + beside]`; a parallel MLP's part lies beside."""
    b, s, h, d = shape
    projection = pool.draw(b, s, 3 * h * d + beside)
    q, k, v = projection[..., : 3 * h * d].unflatten(-1, (3, h, d)).unbind(2)
    return q, k, v


def normed_qk(pool: Pool, shape: Shape) -> QKV:
    """q and k fresh from a norm, v still a view of the projection: their strides differ."""
    q, k, _ = separate(pool, shape)
    return q, k, fused(pool, shape)[2]


def transposed(pool: Pool, shape: Shape) -> QKV:
    """Tensors `[B, H, S, D]` with heads and tokens swapped."""
    b, s, h, d = shape
    q, k, v = (pool.draw(b, h, s, d).transpose(1, 2) for _ in range(3))
    return q, k, v


def head_slice(pool: Pool, shape: Shape, wider: int = 6) -> QKV:
    """The inner part of wider heads: neither heads nor tokens touch."""
    *outer, d = shape
    q, k, v = (pool.draw(*outer, d + 2 * wider)[..., wider : wider + d] for _ in range(3))
    return q, k, v


def each_its_own(pool: Pool, shape: Shape) -> QKV:
    """q contiguous, k transposed, v a slice: no two strides are the same."""
    return separate(pool, shape)[0], transposed(pool, shape)[1], head_slice(pool, shape)[2]


def expanded(pool: Pool, shape: Shape, axis: int) -> QKV:
    """One slice along `axis`, seen at every index: stride 0 over storage of the small size."""
    strides = list(contiguous_strides(tuple(1 if i == axis else n for i, n in enumerate(shape))))
    strides[axis] = 0
    q, k, v = (pool.strided(shape, tuple(strides)) for _ in range(3))
    return q, k, v


def odd_strides_of_one(pool: Pool, shape: Shape) -> QKV:
    """Contiguous, but with nonsense for the strides of axes of size one: they are never used."""
    strides = zip(shape[:3], contiguous_strides(shape)[:3], strict=True)
    odd = tuple(12_345 if size == 1 else stride for size, stride in strides)
    q, k, v = (pool.strided(shape, (*odd, 1)) for _ in range(3))
    return q, k, v


def angle_tables(pool: Pool, rows: int, pairs: int, skip: int = 0) -> tuple[Tensor, Tensor]:
    """cos and sin of angles over several turns, each in its own buffer."""
    angle = 6.0 * torch.randn(rows, pairs, generator=pool.generator, device=pool.device)
    cos = pool.draw(rows, pairs, dtype=torch.float32, skip=skip).copy_(angle.cos())
    sin = pool.draw(rows, pairs, dtype=torch.float32, skip=skip).copy_(angle.sin())
    return cos, sin


def joined_tables(pool: Pool, rows: int, pairs: int) -> tuple[Tensor, Tensor]:
    """cos and sin as the halves of one table `[R, D]`."""
    table = torch.cat(angle_tables(pool, rows, pairs), dim=1)
    table = pool.draw(rows, 2 * pairs, dtype=torch.float32).copy_(table)
    return table[:, :pairs], table[:, pairs:]


@dataclass(frozen=True)
class Inputs:
    """Arguments of the op, and the buffers they lie in."""

    tensors: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]

    @property
    def arguments(self) -> dict[str, Tensor]:
        """Keyword arguments of the operation."""
        return dict(zip(NAMES, self.tensors, strict=True))


@dataclass(frozen=True)
class Case:
    """One call: sizes, and how image, text and tables lie in memory."""

    name: str
    batch: int
    img_len: int
    txt_len: int
    num_heads: int
    head_dim: int
    image: Layout = separate
    text: Layout = separate
    tables: Callable[[Pool, int, int], tuple[Tensor, Tensor]] = angle_tables
    spare_rows: int = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written when each input element is read once: the floor of the traffic."""
        tokens = self.batch * (self.img_len + self.txt_len)
        tables = 2 * 4 * self.img_len * self.head_dim // 2
        return 2 * 3 * 2 * tokens * self.num_heads * self.head_dim + tables

    def build(self, device: str | torch.device, seed: int = 0) -> Inputs:
        """Fresh inputs on `device`; the same ones for the same seed and device."""
        pool = Pool(device, seed)
        heads = (self.num_heads, self.head_dim)
        image = self.image(pool, (self.batch, self.img_len, *heads))
        text = self.text(pool, (self.batch, self.txt_len, *heads))
        tables = self.tables(pool, self.img_len + self.spare_rows, self.head_dim // 2)
        return Inputs((*image, *text, *tables), tuple(pool.buffers))


SMALL = (
    Case("separate", 2, 5, 3, 3, 16),
    Case("fused", 2, 5, 3, 4, 32, image=fused, text=fused),
    Case("fused-beside-mlp", 2, 4, 3, 2, 16, image=partial(fused, beside=40)),
    Case("fused-odd-row", 2, 4, 3, 2, 16, image=partial(fused, beside=1)),
    Case("normed-qk", 2, 4, 3, 2, 16, image=normed_qk, text=normed_qk),
    Case("transposed", 2, 5, 3, 3, 16, image=transposed, text=transposed),
    Case("slice-of-wider-heads", 2, 5, 3, 2, 16, image=head_slice, text=head_slice),
    Case("expanded-batch", 3, 4, 3, 2, 16, text=partial(expanded, axis=0)),
    Case("expanded-tokens", 2, 4, 3, 2, 16, image=partial(expanded, axis=1)),
    Case("expanded-heads", 2, 4, 3, 3, 16, image=partial(expanded, axis=2)),
    Case("odd-address", 2, 5, 3, 2, 16, image=partial(separate, skip=1)),
    Case("odd-address-text", 2, 5, 3, 2, 16, text=partial(separate, skip=3)),
    Case("odd-address-tables", 2, 5, 3, 2, 16, tables=partial(angle_tables, skip=1)),
    Case("joined-tables", 1, 5, 3, 2, 16, tables=joined_tables),
    Case("longer-tables", 1, 5, 9, 2, 16, spare_rows=7),
    Case("one-head", 2, 5, 3, 1, 16, image=transposed, text=transposed),
    Case("one-of-everything", 1, 1, 1, 1, 2, image=odd_strides_of_one, text=odd_strides_of_one),
    Case("one-batch-one-head", 1, 5, 3, 1, 16, image=odd_strides_of_one, text=odd_strides_of_one),
    Case("no-text", 2, 5, 0, 3, 16),
    Case("no-image", 2, 0, 3, 3, 16),
    Case("no-image-long-tables", 2, 0, 3, 3, 16, spare_rows=4),
    Case("no-batch", 0, 5, 3, 3, 16),
    Case("nothing", 2, 0, 0, 3, 16),
    Case("several-token-tiles", 2, 150, 70, 1, 16, image=fused),
    Case("several-head-tiles", 1, 2, 1, 25, 128, image=fused),
    Case("several-tiles-of-each-kind", 2, 9, 6, 9, 64, image=each_its_own, text=each_its_own),
    Case("head-dim-2", 2, 3, 2, 5, 2),
    Case("head-dim-66", 1, 3, 2, 9, 66, image=fused),
    Case("head-dim-80", 1, 2, 2, 24, 80, image=fused),
    Case("head-dim-96", 1, 2, 2, 24, 96, image=fused),
    Case("head-dim-100", 1, 2, 2, 24, 100, image=fused),
    Case("head-dim-112", 1, 2, 2, 24, 112, image=fused),
    Case("head-dim-126-odd-address", 1, 2, 1, 3, 126, image=partial(separate, skip=1)),
)
"""Small enough for Triton's interpreter on a CPU."""

CASES = SMALL
"""What every backend is compared on, bit for bit, wherever the operation is tested."""

LARGE = (
    Case("image-past-65535", 1, 65_600, 3, 1, 8),
    Case("text-past-65535", 1, 3, 65_600, 1, 8),
    Case("batch-past-65535", 65_600, 1, 1, 1, 8),
    Case("heads-past-65535", 1, 1, 1, 65_600, 8),
    Case("heads-past-65535-wide", 1, 2, 1, 65_600, 128),
    Case("odd-sizes", 3, 1021, 77, 7, 72, image=fused, text=transposed),
    Case("video", 1, 4096, 256, 24, 128, image=fused, text=fused),
)
"""For a GPU: past the limits of a launch's second and third axes, and of everyday sizes."""

BENCH = (
    Case("S4096", 1, 4096, 256, 24, 128),
    Case("S4096-fused", 1, 4096, 256, 24, 128, image=fused, text=fused),
    Case("S32768-fused", 1, 32_768, 256, 24, 128, image=fused, text=fused),
    Case("S32768-normed-qk", 1, 32_768, 256, 24, 128, image=normed_qk, text=normed_qk),
    Case("S32768-transposed", 1, 32_768, 256, 24, 128, image=transposed, text=transposed),
    Case("S32768-odd-address", 1, 32_768, 256, 24, 128, image=partial(separate, skip=1)),
    Case("S115200", 1, 115_200, 512, 24, 128),
    Case("B2-S1024-D64", 2, 1024, 77, 16, 64),
    *(
        Case(f"S32768-D{head_dim}", 1, 32_768, 256, 24, head_dim, image=fused, text=fused)
        for head_dim in (64, 72, 80, 96, 112)
    ),
)
"""Production sizes: 24 heads of 128 are HunyuanVideo's; 115,200 tokens are a 720p clip."""
