"""How the Hopper kernel's work is cut: every lane of every tile once, and nobody waits for long."""

from __future__ import annotations

from itertools import product

import pytest

gluon_launch = pytest.importorskip("backends.ops.sparse_mla_prefill.gluon_launch")

TILES = (1, 2, 8, 16, 64, 65, 66, 67, 128, 131, 132, 133, 140, 198, 200, 264, 2048, 4096, 8192)
TOPK = (128, 256, 384, 512, 2048, 4224)
CUTS = list(product(TILES, TOPK, (78, 132)))


@pytest.mark.parametrize(("tiles", "topk", "processors"), CUTS)
def test_every_pair_of_blocks_belongs_to_one_item(tiles: int, topk: int, processors: int) -> None:
    cut = gluon_launch.choose_splits(tiles, topk, processors)
    pairs = topk // 128
    assert 0 <= cut.whole <= tiles
    assert 1 <= cut.count <= gluon_launch.MAX_SPLITS
    if cut.whole == tiles:
        assert (cut.count, cut.pairs) == (1, pairs)
        return
    assert (cut.count - 1) * cut.pairs < pairs <= cut.count * cut.pairs
    assert cut.whole % processors == 0
    assert (tiles - cut.whole) * cut.count <= processors  # all parts run at once, the last round


@pytest.mark.parametrize(("tiles", "topk", "processors"), CUTS)
def test_a_split_saves_more_than_its_merge_costs(tiles: int, topk: int, processors: int) -> None:
    cut = gluon_launch.choose_splits(tiles, topk, processors)
    saved = topk // 128 - cut.pairs
    assert saved >= gluon_launch.WORTH_A_MERGE if cut.whole < tiles else saved == 0
