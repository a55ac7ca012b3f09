"""What every kernel of sparse MLA prefill owes: the reference's results, and bits that depend on
valid lanes alone.

Where there is no GPU the portable kernel runs in Triton's interpreter; others need their device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from backends import sparse_mla_q8kv8_prefill_fwd
from backends.ops.sparse_mla_prefill.cases import (
    EVERYTHING,
    LARGE,
    SMALL,
    Case,
    Inputs,
    Results,
    every_lane,
    exact_results,
    mismatches,
    odd_lanes,
    random_lanes,
)

Launch = Callable[..., None]

BACKENDS = {
    "backends.ops.sparse_mla_prefill.triton_launch": "triton",
    "backends.ops.sparse_mla_prefill.gluon_launch": "gluon",
}

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of exp2's overflow


@pytest.fixture(params=["triton", pytest.param("gluon", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def launch(backend: str) -> Launch:
    if backend == "triton":
        from backends.ops.sparse_mla_prefill import triton_launch

        return triton_launch.launch
    from backends.ops.sparse_mla_prefill import gluon_launch

    return gluon_launch.launch


def skip_unless_served(launch: Launch, inputs: Inputs) -> None:
    """By the backend's own reasons: a kernel trusts that nothing else reaches it."""
    backend = BACKENDS[launch.__module__]
    report = sparse_mla_q8kv8_prefill_fwd.explain(**inputs.arguments, backend=backend)
    for answer in report.answers:
        if answer.backend == backend and answer.reasons:
            pytest.skip("; ".join(reason.text for reason in answer.reasons))


def run(launch: Launch, case: Case, inputs: Inputs) -> Results:
    skip_unless_served(launch, inputs)
    results = case.new_results(inputs.q.device)
    launch(*inputs.operands, *results.buffers)
    return results


def assert_parity(backend: str, launch: Launch, case: Case) -> None:
    inputs = case.build(DEVICE)
    tolerance = case.tolerance(backend if HAS_GPU else f"{backend}-interpreted")
    results = run(launch, case, inputs)
    assert not list(mismatches(results, exact_results(inputs), tolerance))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_parity_with_float64(case: Case, backend: str, launch: Launch) -> None:
    assert_parity(backend, launch, case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_parity_with_float64_at_size(case: Case, backend: str, launch: Launch) -> None:
    assert_parity(backend, launch, case)


BIT_CASES = [
    Case("three-queries", 3, 95, 64, 128, 512, lanes=random_lanes, topk_length=(65, -1, 7)),
    pytest.param(
        Case("queries", 8, 95, 64, 128, 512, topk_length=(1, 7, 64, 127, 128, 129, 0, -1)),
        marks=pytest.mark.gpu,
    ),
    pytest.param(
        Case(
            "shared-lanes", 8, 4096, 128, 2048, attn_sink="normal", topk_length=(1, 700, 2048, 63)
        ),
        marks=pytest.mark.gpu,
    ),
    pytest.param(
        Case("many-queries", 130, 4096, 128, 2048, topk_length=(1, 700, 2048, 63, 1985)),
        marks=pytest.mark.gpu,
    ),
]


def case_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", BIT_CASES, ids=case_name)
def test_cut_off_lanes_change_no_bit(case: Case, launch: Launch) -> None:
    """Against -1 in their place; and what they hold, a row or no row, makes no difference."""
    inputs = case.build(DEVICE)
    cut = torch.arange(case.topk, device=DEVICE) >= inputs.topk_length[:, None, None]
    marked = torch.where(cut, -1, inputs.indices).int()
    elsewhere = torch.where(cut, 2**31 - 1, inputs.indices).int()
    first = run(launch, case, inputs)
    assert first.same_bits(run(launch, case, replace(inputs, indices=marked)))
    assert first.same_bits(run(launch, case, replace(inputs, indices=elsewhere)))
    every = torch.full_like(inputs.topk_length, case.topk)
    assert first.same_bits(run(launch, case, replace(inputs, indices=marked, topk_length=every)))
    if inputs.attn_sink is None:
        assert first.same_bits(run(launch, case, replace(inputs, indices=marked, topk_length=None)))


def test_an_index_that_is_no_row_is_as_good_as_minus_one(launch: Launch) -> None:
    """-2, -2^31, s_kv, s_kv + 1, 2147480000 and 2^31 - 1, in every other lane."""
    case = Case("", 1, 95, 64, 128, 512, lanes=odd_lanes)
    inputs, other = case.build(DEVICE), replace(case, masked_index="extremes").build(DEVICE)
    assert len(other.indices.unique()) > len(inputs.indices.unique()) + 5
    assert run(launch, case, inputs).same_bits(run(launch, case, other))


def test_a_sink_of_no_weight_changes_no_bit(launch: Launch) -> None:
    case = Case("", 1, 95, 64, 128, 512, topk_length=(100,))
    inputs = case.build(DEVICE)
    sinks = torch.tensor([float("-inf"), -1e30] * 32, device=DEVICE)
    with_sink = replace(inputs, attn_sink=sinks)
    assert run(launch, case, inputs).same_bits(run(launch, case, with_sink))


def test_a_sink_is_not_seen_by_lse_and_max_logits(launch: Launch) -> None:
    case = Case("", 1, 95, 64, 128, 512, topk_length=(100,))
    inputs = case.build(DEVICE)
    without = run(launch, case, inputs)
    sunk = run(launch, case, replace(inputs, attn_sink=torch.full((64,), 3.0, device=DEVICE)))
    assert torch.equal(without.lse, sunk.lse)
    assert torch.equal(without.max_logits, sunk.max_logits)
    assert not torch.equal(without.out, sunk.out)


def test_permuted_lanes_stay_within_tolerance(backend: str, launch: Launch) -> None:
    case = Case("", 2, 95, 64, 256, lanes=random_lanes, masked_index="extremes")
    inputs = case.build(DEVICE)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    permuted = replace(inputs, indices=inputs.indices[..., order].contiguous())
    tolerance = case.tolerance(backend if HAS_GPU else f"{backend}-interpreted")
    assert not list(mismatches(run(launch, case, permuted), exact_results(inputs), tolerance))


def test_same_bits_every_time(launch: Launch) -> None:
    case = Case("", 2, 95, 64, 128, 512, **EVERYTHING)
    inputs = case.build(DEVICE)
    first = run(launch, case, inputs)
    assert first.same_bits(run(launch, case, inputs))


@pytest.mark.gpu
@pytest.mark.parametrize("s_q", [1, 8, 200])
def test_same_bits_every_time_at_size(s_q: int, launch: Launch) -> None:
    case = Case("", s_q, 4096, 128, 2048, **EVERYTHING)
    inputs = case.build(DEVICE)
    first = run(launch, case, inputs)
    assert all(first.same_bits(run(launch, case, inputs)) for _ in range(20))


@pytest.mark.gpu
def test_a_named_nan_reaches_the_result(launch: Launch) -> None:
    """On a GPU: Triton's interpreter takes the FP8 NaN for 480."""
    case = Case("", 2, 95, 64, 128, 512)
    inputs = case.build(DEVICE)
    inputs.indices[:, 0, 5] = torch.tensor([7, -1], device=DEVICE)
    inputs.indices[1].masked_fill_(inputs.indices[1] == 7, -1)
    inputs.kv[7] = float("nan")
    results = run(launch, case, inputs)
    assert results.out[0].isnan().all()
    assert results.out[1].isfinite().all()


def test_the_buffer_around_out_is_left_alone(launch: Launch) -> None:
    case = Case("", 2, 95, 64, 128, 512)
    inputs, results = case.build(DEVICE), case.new_results(DEVICE)
    parent = torch.full((4, 64, 512), 7.0, dtype=torch.bfloat16, device=DEVICE)
    launch(*inputs.operands, parent[1:3], results.max_logits, results.lse)
    assert torch.equal(parent[1:3], run(launch, case, inputs).out)
    assert (parent[::3] == 7.0).all()


def test_inputs_are_left_alone(launch: Launch) -> None:
    case = Case("", 1, 95, 64, 128, 512, **EVERYTHING)
    inputs, copy = case.build(DEVICE), case.build(DEVICE)
    run(launch, case, inputs)
    for x, y in zip(inputs.operands, copy.operands, strict=True):
        if isinstance(x, torch.Tensor):
            assert torch.equal(x.double().nan_to_num(999.0), y.double().nan_to_num(999.0))


@pytest.mark.gpu
def test_more_queries_than_a_second_grid_axis_holds(backend: str, launch: Launch) -> None:
    case = Case("", 65_600, 300, 64, 128, 512)
    inputs = case.build(DEVICE)
    results = run(launch, case, inputs)
    assert results.out.isfinite().all()
    for rows in (slice(0, 40), slice(65_520, 65_600)):
        part = replace(inputs, q=inputs.q[rows], indices=inputs.indices[rows])
        written = Results(results.out[rows], results.max_logits[rows], results.lse[rows])
        assert not list(mismatches(written, exact_results(part), case.tolerance(backend)))


@pytest.mark.gpu
def test_offsets_past_two_to_the_31(backend: str, launch: Launch) -> None:
    """kv rows so far apart that row 40 lies beyond 2^31 bytes. (65,600 queries do it for out.)"""
    pitch = 1 << 26
    case = Case("", 3, 41, 64, 128, 576, lanes=every_lane)
    inputs, results = case.build(DEVICE), case.new_results(DEVICE)
    cache = torch.empty(41 * pitch, dtype=torch.uint8, device=DEVICE)
    kv = cache.view(inputs.kv.dtype).as_strided((41, 1, 576), (pitch, 576, 1))
    kv.view(torch.uint8).copy_(inputs.kv.view(torch.uint8))
    launch(*replace(inputs, kv=kv).operands, *results.buffers)
    assert not list(mismatches(results, exact_results(inputs), case.tolerance(backend)))


@pytest.mark.gpu
@pytest.mark.parametrize("s_q", [1, 200])
def test_captured_in_a_graph_and_replayed_on_new_values(
    s_q: int, backend: str, launch: Launch
) -> None:
    case = Case("", s_q, 4096, 128, 512, **EVERYTHING)
    inputs, other = case.build(DEVICE, seed=0), case.build(DEVICE, seed=1)
    results = run(launch, case, inputs)  # compiled before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            launch(*inputs.operands, *results.buffers)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for mine, new in zip(inputs.operands, other.operands, strict=True):
        if isinstance(mine, torch.Tensor):
            mine.copy_(new)
    graph.replay()
    assert not list(mismatches(results, exact_results(other), case.tolerance(backend)))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_runs_where_the_tensors_are(backend: str, launch: Launch) -> None:
    case = Case("", 2, 95, 64, 128, **EVERYTHING)
    inputs = case.build("cuda:1")
    with torch.cuda.device(0):
        results = run(launch, case, inputs)
        assert torch.cuda.current_device() == 0
    assert not list(mismatches(results, exact_results(inputs), case.tolerance(backend)))
