"""How a call is tiled: host arithmetic alone."""

from __future__ import annotations

import pytest

from backends.ops.hunyuan_qkv_rope_pack.triton_launch import LANES_PER_TILE, choose_tile

HEAD_DIMS = range(2, 130, 2)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 7, 16, 24, 25, 40, 128, 65_600])
def test_tile_holds_whole_heads_and_all_of_them_in_few_parts(num_heads: int) -> None:
    for head_dim in HEAD_DIMS:
        tile = choose_tile(num_heads, head_dim)
        assert tile.lanes & (tile.lanes - 1) == 0
        assert 1 <= tile.heads <= num_heads
        assert tile.heads * head_dim <= tile.lanes
        assert tile.tokens * tile.lanes <= LANES_PER_TILE
        assert tile.tokens == 1 or tile.heads == num_heads


@pytest.mark.parametrize(
    ("head_dim", "least"), [(64, 1.0), (72, 0.8), (80, 0.9), (96, 0.9), (112, 0.85), (128, 1.0)]
)
def test_few_lanes_idle(head_dim: int, least: float) -> None:
    tile = choose_tile(24, head_dim)
    parts = -(-24 // tile.heads)
    assert 24 * head_dim / (parts * tile.lanes) >= least


def test_few_heads_take_several_tokens_at_once() -> None:
    assert choose_tile(1, 8).tokens * choose_tile(1, 8).lanes == LANES_PER_TILE
