"""The reference against the sums written out, lane by lane."""

from __future__ import annotations

import math

import pytest
import torch

from backends.ops.sparse_mla_prefill import reference
from backends.ops.sparse_mla_prefill.cases import (
    EVERYTHING,
    SMALL,
    Case,
    Inputs,
    Results,
    exact_results,
    mismatches,
)
from backends.ops.sparse_mla_prefill.reference import sparse_mla_reference


def written_out(inputs: Inputs) -> Results:
    """The definition, one query and head at a time, on the lanes that are valid and no others."""
    s_q, h_q, _ = inputs.q.shape
    topk = inputs.indices.shape[-1]
    out = torch.zeros(s_q, h_q, 512, dtype=torch.float64)
    max_logits = torch.full((s_q, h_q), -math.inf, dtype=torch.float64)
    lse = torch.full((s_q, h_q), math.inf, dtype=torch.float64)
    q_scale, kv_scale = inputs.q_scale.item(), inputs.kv_scale.item()
    for i in range(s_q):
        lanes = topk if inputs.topk_length is None else inputs.topk_length[i].item()
        rows = [
            t for t in inputs.indices[i, 0, : max(lanes, 0)].tolist() if 0 <= t < len(inputs.kv)
        ]
        if not rows:
            continue
        keys = torch.stack([inputs.kv[t, 0].float().double() for t in rows])
        for h in range(h_q):
            logits = (keys @ inputs.q[i, h].double()) * q_scale * kv_scale * inputs.sm_scale
            peak = logits.max().item()
            terms = (logits - peak).exp()
            total = terms.sum().item()
            sink = -math.inf if inputs.attn_sink is None else inputs.attn_sink[h].item()
            denominator = total + (math.inf if sink - peak > 700 else math.exp(sink - peak))
            out[i, h] = terms @ keys[:, :512] * kv_scale / denominator
            max_logits[i, h] = peak
            lse[i, h] = peak + math.log(total)
    return Results(out, max_logits, lse)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_equals_the_sums_written_out(case: Case) -> None:
    inputs = case.build("cpu")
    expected, exact, rounded = written_out(inputs), exact_results(inputs), case.new_results("cpu")
    for actual, right in zip(exact.buffers, expected.buffers, strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-9, atol=1e-9)
    sparse_mla_reference(*inputs.operands, *rounded.buffers)
    assert not list(mismatches(rounded, expected, case.tolerance("reference")))


@pytest.mark.parametrize("queries_at_once", [1, 2, 3])
def test_chunks_of_queries_change_nothing(
    queries_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("", 7, 95, 64, 256, **EVERYTHING)
    inputs = case.build("cpu")
    whole, chunked = case.new_results("cpu"), case.new_results("cpu")
    sparse_mla_reference(*inputs.operands, *whole.buffers)
    per_query = case.topk * (9 * case.d_qk + 32 * case.h_q)
    monkeypatch.setattr(reference, "CHUNK_BYTES", queries_at_once * per_query)
    sparse_mla_reference(*inputs.operands, *chunked.buffers)
    for actual, right in zip(chunked.buffers, whole.buffers, strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-2, atol=1e-6)


def test_inputs_are_left_alone() -> None:
    inputs = Case("", 3, 95, 64, 128, **EVERYTHING).build("cpu")
    tensors = [x for x in inputs.operands if isinstance(x, torch.Tensor)]
    before = [x.clone() for x in tensors]
    exact_results(inputs)
    for x, copy in zip(tensors, before, strict=True):
        assert torch.equal(x.double().nan_to_num(999.0), copy.double().nan_to_num(999.0))


def test_a_nan_that_is_named_reaches_the_result() -> None:
    """Masking must not hide what a valid lane reads."""
    case = Case("", 2, 95, 64, 128)
    inputs = case.build("cpu")
    inputs.indices[:, 0, 5] = torch.tensor([7, -1])
    inputs.kv[7] = float("nan")
    inputs.indices[1].masked_fill_(inputs.indices[1] == 7, -1)
    exact = exact_results(inputs)
    assert exact.out[0].isnan().all()
    assert exact.out[1].isfinite().all()


@pytest.mark.gpu
def test_fits_in_4_gib_at_prefill_sizes_and_waits_for_nothing() -> None:
    case = Case("", 4096, 8192, 128, 2048)
    inputs, results = case.build("cuda"), case.new_results("cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sparse_mla_reference(*inputs.operands, *results.buffers)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    assert torch.cuda.max_memory_allocated() - held < 4 << 30
    assert results.out.isfinite().all()
