"""Any sizes, any order of the outer axes, any gaps between them, any address."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from backends.ops.hunyuan_qkv_rope_pack.cases import Pool
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from backends.ops.hunyuan_qkv_rope_pack.triton_launch import launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@st.composite
def layouts(draw: Any) -> dict[str, Any]:
    """Outer axes from innermost out, the gap beyond each, and how far off alignment they start."""
    return {
        "order": draw(st.permutations((0, 1, 2))),
        "gaps": draw(st.tuples(*[st.sampled_from((0, 0, 1, 2, 8))] * 3)),
        "skip": draw(st.sampled_from((0, 0, 1, 4, 7))),
    }


def place(pool: Pool, shape: tuple[int, ...], order: list[int], gaps: tuple, skip: int) -> Tensor:
    strides, reach = [0, 0, 0, 1], shape[3]
    for axis, gap in zip(order, gaps, strict=True):
        strides[axis] = reach + gap
        reach = strides[axis] * max(1, shape[axis])
    return pool.strided(shape, tuple(strides), skip=skip)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    batch=st.integers(0, 3),
    lengths=st.tuples(st.integers(0, 6), st.integers(0, 4)),
    num_heads=st.integers(1, 9),
    head_dim=st.integers(1, 64).map(lambda pairs: 2 * pairs),
    where=st.lists(layouts(), min_size=6, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_same_bits_as_the_reference(
    batch: int,
    lengths: tuple[int, int],
    num_heads: int,
    head_dim: int,
    where: list[dict[str, Any]],
    seed: int,
) -> None:
    pool = Pool(DEVICE, seed)
    images = [place(pool, (batch, lengths[0], num_heads, head_dim), **at) for at in where[:3]]
    texts = [place(pool, (batch, lengths[1], num_heads, head_dim), **at) for at in where[3:]]
    tables = [pool.draw(lengths[0] + 1, head_dim // 2, dtype=torch.float32) for _ in range(2)]
    packed = launch(*images, *texts, *tables)
    expected = pack_reference(*images, *texts, *tables)
    assert torch.equal(packed.view(torch.int16), expected.view(torch.int16))
