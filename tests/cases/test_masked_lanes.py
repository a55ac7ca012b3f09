"""Lanes that do not count weigh nothing, wherever they stand and whatever they hold.

A running maximum of -inf minus -inf is NaN where the first block is masked; the lanes past a
query's length hold stale but plausible rows; indices lie outside the cache on either side, and far
enough for an offset to wrap. Rows that no valid lane names hold NaN here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import backends
import contracts
from backends.ops.sparse_mla_prefill.cases import (
    Case,
    Inputs,
    Results,
    lanes_inside,
    lanes_outside,
    random_lanes,
)
from contracts import ContractError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of exp2's overflow

attend = backends.sparse_mla_q8kv8_prefill_fwd
every_backend = pytest.mark.parametrize(
    "backend", ["reference", "triton", pytest.param("gluon", marks=pytest.mark.gpu)]
)
gpu = pytest.mark.gpu

WIDE = Case("", s_q=1, s_kv=40, h_q=64, topk=256, d_qk=512)
PATTERNS = {
    "first block masked": partial(lanes_outside, first=0, end=128),
    "the last lane alone": partial(lanes_inside, first=255, end=256),
}


@every_backend
@pytest.mark.parametrize("pattern", PATTERNS)
def test_masked_lanes_anywhere(
    pattern: str,
    backend: str,
    serve: Callable[..., Any],
    assert_attention: Callable[..., None],
    device: str,
) -> None:
    case = replace(WIDE, lanes=PATTERNS[pattern], masked_index="extremes")
    inputs = case.build(device)
    results = serve(attend, backend, **inputs.arguments)
    assert all(x.isfinite().all() for x in results)
    assert_attention(case, inputs, results, backend)


@every_backend
def test_order_of_lanes_does_not_matter(
    backend: str, serve: Callable[..., Any], assert_attention: Callable[..., None], device: str
) -> None:
    case = replace(WIDE, lanes=PATTERNS["first block masked"])
    inputs = case.build(device)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(3))
    permuted = replace(inputs, indices=inputs.indices[..., order.to(device)].contiguous())
    results = serve(attend, backend, **permuted.arguments)
    assert_attention(case, inputs, results, backend)


def with_tail(inputs: Inputs, tail: Tensor | int) -> Inputs:
    """The lanes past each query's length replaced."""
    assert inputs.topk_length is not None
    lane = torch.arange(inputs.indices.shape[-1], device=inputs.indices.device)
    cut = lane >= inputs.topk_length[:, None, None]
    return replace(inputs, indices=torch.where(cut, tail, inputs.indices).int())


LENGTHS = (1, 7, 64, 127, 128, 65, 0)


@every_backend
@pytest.mark.parametrize("s_q", [2, pytest.param(65, marks=gpu), pytest.param(130, marks=gpu)])
def test_what_lies_past_a_length_changes_no_bit(
    s_q: int, backend: str, serve: Callable[..., Any], device: str
) -> None:
    """Stale rows, no rows, and rows far outside the cache, against -1."""
    inputs = Case("", s_q, 40, 64, 128, 512, topk_length=LENGTHS[1:]).build(device)
    random = torch.randint(0, 40, inputs.indices.shape, device=device)
    first = Results(*serve(attend, backend, **with_tail(inputs, -1).arguments))
    for tail in (random, 2**31 - 1):
        other = serve(attend, backend, **with_tail(inputs, tail).arguments)
        assert first.same_bits(Results(*other))


def test_many_queries_of_mixed_lengths_by_the_reference(
    assert_attention: Callable[..., None], device: str
) -> None:
    case = Case("", 66, 40, 64, 128, 512, topk_length=LENGTHS)
    inputs = case.build(device)
    results = attend(**inputs.arguments, backend="reference")
    random = torch.randint(0, 40, inputs.indices.shape, device=device)
    other = attend(**with_tail(inputs, random).arguments, backend="reference")
    assert Results(*results).same_bits(Results(*other))
    assert_attention(case, inputs, results, "reference")


@every_backend
@pytest.mark.parametrize("lengths", [(129, -1), (2**31 - 1, -(2**31))], ids=str)
def test_lengths_outside_their_range_are_clamped(
    lengths: tuple[int, int], backend: str, serve: Callable[..., Any], device: str
) -> None:
    """The lanes past a row belong to the next query; here they would be another's valid rows."""
    inputs = Case("", 2, 40, 64, 128, 512, topk_length=lengths).build(device)
    right = replace(inputs, topk_length=torch.tensor([128, 0], dtype=torch.int32, device=device))
    first = Results(*serve(attend, backend, **right.arguments))
    assert first.same_bits(Results(*serve(attend, backend, **inputs.arguments)))


@pytest.mark.parametrize("length", [129, -1])
def test_lengths_outside_their_range_are_refused_in_debug(length: int, device: str) -> None:
    inputs = Case("", 2, 40, 64, 128, 512, topk_length=(7, length)).build(device)
    with contracts.mode("debug"), pytest.raises(ContractError) as refusal:
        attend(**inputs.arguments)
    (fault,) = refusal.value.violations
    assert fault.rule == "topk_length-range"
    assert f"topk_length[1] is {length}" in fault.message


OUTSIDE = (40, 41, 2_147_480_000, 2**31 - 1, -2, -(2**31))


@every_backend
def test_every_index_outside_the_cache_gives_the_bits_of_minus_one(
    backend: str, serve: Callable[..., Any], device: str
) -> None:
    """Both sides, beside the edge and far beyond; an offset that wrapped would be a row again."""
    inputs = Case("", 1, 40, 64, 128, 512, lanes=random_lanes).build(device)
    masked = inputs.indices < 0
    assert masked.sum() > len(OUTSIDE)
    first = Results(*serve(attend, backend, **inputs.arguments))
    strange = torch.tensor(OUTSIDE, device=device).repeat(22)[:128]
    indices = torch.where(masked, strange, inputs.indices).int()
    other = serve(attend, backend, **replace(inputs, indices=indices).arguments)
    assert first.same_bits(Results(*other))


@pytest.mark.parametrize("index", [40, 2**31 - 1, -2, -(2**31)])
def test_an_index_outside_the_cache_is_refused_in_debug(index: int, device: str) -> None:
    inputs = Case("", 1, 40, 64, 128, 512).build(device)
    inputs.indices[0, 0, 5] = index
    with contracts.mode("debug"), pytest.raises(ContractError) as refusal:
        attend(**inputs.arguments)
    (fault,) = refusal.value.violations
    assert fault.rule == "indices-range"
    assert f"indices[0, 0, 5] is {index}" in fault.message


@every_backend
@pytest.mark.parametrize("sink", [None, 0.5])
def test_a_query_without_a_valid_lane(
    sink: float | None, backend: str, serve: Callable[..., Any], device: str
) -> None:
    case = Case("", 1, 40, 64, 128, 512, attn_sink=sink, topk_length=(0,))
    out, max_logits, lse = serve(attend, backend, **case.build(device).arguments)
    assert (out == 0).all()
    assert (max_logits == float("-inf")).all()
    assert (lse == float("inf")).all()
