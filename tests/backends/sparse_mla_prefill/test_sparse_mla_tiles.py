"""Tiles and shares of the portable kernel: host arithmetic, and the path that merges shares."""

from __future__ import annotations

import pytest
import torch

from backends.ops.sparse_mla_prefill import triton_launch
from backends.ops.sparse_mla_prefill.cases import EVERYTHING, Case, exact_results, mismatches
from backends.ops.sparse_mla_prefill.triton_launch import (
    SHARE_UNIT,
    Shares,
    choose_shares,
    choose_tile,
)

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


@pytest.mark.parametrize("capability", [89, 90, 100, 120])
@pytest.mark.parametrize("h_q", [64, 128, 192, 256, 320])
def test_tiles_divide_the_heads_and_the_shares(capability: int, h_q: int) -> None:
    tile = choose_tile(capability, h_q)
    assert h_q % tile.block_h == 0
    assert SHARE_UNIT % tile.block_n == 0


@pytest.mark.parametrize("topk", [128, 256, 384, 2048, 8192])
@pytest.mark.parametrize("programs", [1, 2, 3, 7, 64, 131, 132, 133, 100_000])
@pytest.mark.parametrize("processors", [1, 2, 58, 132])
def test_shares_cover_the_lanes_and_none_is_empty(
    topk: int, programs: int, processors: int
) -> None:
    shares = choose_shares(programs, topk, processors)
    assert shares.lanes % SHARE_UNIT == 0
    assert (shares.count - 1) * shares.lanes < topk <= shares.count * shares.lanes
    assert shares.count == 1 or programs * shares.count <= processors


def test_a_lone_query_is_shared_to_the_last_unit() -> None:
    assert choose_shares(programs=2, topk=2048, processors=132) == Shares(count=32, lanes=64)


def test_no_queries_launch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("", 0, 95, 64, 128)
    monkeypatch.delattr(triton_launch, "load_kernel")
    triton_launch.launch(*case.build(DEVICE).operands, *case.new_results(DEVICE).buffers)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("case", "processors", "count"),
    [
        (Case("two", 1, 95, 64, 256, 512, **EVERYTHING), 4, 2),
        (Case("uneven", 1, 95, 64, 640, 512, **EVERYTHING), 8, 4),
        (Case("more-than-a-merge-block", 1, 95, 64, 640, 512, topk_length=(150,)), 20, 10),
        (Case("none-valid", 1, 0, 64, 128, 512, attn_sink=0.5, topk_length=(128,)), 4, 2),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else None,
)
def test_shared_lanes_merge_to_the_same_result(
    case: Case, processors: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few lanes, valid lanes in some shares alone, and none."""
    capability, _ = triton_launch.device_facts(torch.cuda.current_device() if HAS_GPU else -1)
    monkeypatch.setattr(triton_launch, "device_facts", lambda index: (capability, processors))
    programs = 2 * case.h_q // choose_tile(capability, case.h_q).block_h
    assert choose_shares(programs, case.topk, processors).count == count
    inputs, results = case.build(DEVICE), case.new_results(DEVICE)
    triton_launch.launch(*inputs.operands, *results.buffers)
    tolerance = case.tolerance("triton" if HAS_GPU else "triton-interpreted")
    assert not list(mismatches(results, exact_results(inputs), tolerance))
