"""How a call is tiled: host arithmetic alone."""

from __future__ import annotations

import pytest

from backends.ops.hunyuan_qkv_rope_pack.triton_launch import TILE_ELEMENTS, choose_tile


@pytest.mark.parametrize("head_dim", range(2, 130, 2))
@pytest.mark.parametrize("num_heads", [1, 2, 3, 7, 16, 24, 25, 40, 128, 65_600])
def test_tile_is_full_and_holds_whole_heads(num_heads: int, head_dim: int) -> None:
    tile = choose_tile(num_heads, head_dim)
    assert tile.lanes & (tile.lanes - 1) == 0
    assert tile.tokens * tile.lanes == TILE_ELEMENTS
    assert 1 <= tile.heads <= num_heads
    assert tile.heads * head_dim <= tile.lanes < 2 * tile.heads * head_dim


@pytest.mark.parametrize(
    ("head_dim", "least"), [(64, 1.0), (72, 0.84), (80, 0.93), (96, 0.9), (112, 0.87), (128, 1.0)]
)
def test_few_lanes_idle(head_dim: int, least: float) -> None:
    tile = choose_tile(24, head_dim)
    parts = -(-24 // tile.heads)
    assert 24 * head_dim / (parts * tile.lanes) >= least
