"""Results that the caller supplies are judged like inputs before a byte is written.

A default result is right by construction; a supplied one goes straight to an address.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import backends
from backends.ops.sparse_mla_prefill.cases import Case, Inputs, Results
from contracts import ContractError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter

attend = backends.sparse_mla_q8kv8_prefill_fwd
CASE = Case("", s_q=2, s_kv=40, h_q=64, topk=128, d_qk=512)
NAMES = ("out", "max_logits", "lse")
every_backend = pytest.mark.parametrize(
    "backend", ["reference", "triton", pytest.param("gluon", marks=pytest.mark.gpu)]
)


def buffers(device: str) -> dict[str, Tensor]:
    return dict(zip(NAMES, CASE.new_results(device).buffers, strict=True))


Wrong = tuple[str, Callable[[Tensor], Tensor], str]
WRONG: dict[str, Wrong] = {
    "a row short": ("out", lambda x: x[:-1].clone(), "out-s_q"),
    "a row long": ("out", lambda x: x.new_zeros(3, 64, 512), "out-s_q"),
    "a head short": ("out", lambda x: x[:, :-1].contiguous(), "out-h_q"),
    "a column short": ("out", lambda x: x[..., :-1].contiguous(), "out-d_v"),
    "flat": ("out", lambda x: x.view(-1), "out-rank"),
    "float32": ("out", lambda x: x.float(), "out-dtype"),
    "float16": ("out", lambda x: x.view(torch.float16), "out-dtype"),
    "heads inside": ("out", lambda x: x.mT.contiguous().mT, "contiguous"),
    "part of a parent": ("out", lambda x: x.new_zeros(2, 64, 640)[..., :512], "contiguous"),
    "one row for all": ("out", lambda x: x[:1].expand(2, 64, 512), "contiguous"),
    "elsewhere": ("out", lambda x: torch.empty_like(x, device="meta"), "same-device"),
    "peaks swapped": ("max_logits", lambda x: x.mT.contiguous(), "max_logits-s_q"),
    "peaks swapped in place": ("max_logits", lambda x: x.mT.contiguous().mT, "contiguous"),
    "peaks float64": ("max_logits", lambda x: x.double(), "max_logits-dtype"),
    "totals bfloat16": ("lse", lambda x: x.bfloat16(), "lse-dtype"),
    "totals of one head": ("lse", lambda x: x[:, :1].clone(), "lse-h_q"),
    "no tensor": ("lse", lambda x: x.numpy(force=True), "lse-type"),
}


def bytes_of(x: Tensor) -> Tensor:
    return x.reshape(-1).view(torch.uint8).clone()


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("backend", [None, "reference"])
def test_a_wrong_buffer_is_refused_by_name_and_nothing_is_written(
    backend: str | None, wrong: str, device: str
) -> None:
    name, make, rule = WRONG[wrong]
    given: dict[str, Any] = buffers(device)
    given[name] = make(given[name])
    held = {key: x for key, x in given.items() if isinstance(x, Tensor) and not x.is_meta}
    before = {key: bytes_of(x) for key, x in held.items()}
    with pytest.raises(ContractError) as refusal:
        attend(**CASE.build(device).arguments, **given, backend=backend)
    assert (name, rule) in {(fault.argument, fault.rule) for fault in refusal.value.violations}
    for key, x in held.items():
        assert torch.equal(bytes_of(x), before[key])


def bytes_within(x: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    """A view of another dtype over the first bytes of a tensor."""
    flat = x.view(-1).view(torch.uint8)
    view = flat[: torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)
    assert view.data_ptr() == x.data_ptr()
    return view


Overlap = Callable[[Inputs, dict[str, Tensor]], dict[str, Tensor]]
OVERLAPS: dict[str, Overlap] = {
    "max_logits is lse": lambda inputs, given: {"lse": given["max_logits"]},
    "lse within out": lambda inputs, given: {
        "lse": bytes_within(given["out"], torch.float32, 2, 64)
    },
    "lse within q": lambda inputs, given: {"lse": bytes_within(inputs.q, torch.float32, 2, 64)},
    "max_logits within indices": lambda inputs, given: {
        "max_logits": bytes_within(inputs.indices, torch.float32, 2, 64)
    },
    "lse one row on from max_logits": lambda inputs, given: dict(
        zip(("max_logits", "lse"), shifted(given["lse"], 64), strict=True)
    ),
}


def shifted(x: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """Two tensors like x, `by` elements apart in one storage."""
    flat = x.new_zeros(x.numel() + by)
    return flat[: x.numel()].view(x.shape), flat[by:].view(x.shape)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_buffers_that_share_bytes_with_one_another_or_an_input_are_refused(
    overlap: str, device: str
) -> None:
    inputs, given = CASE.build(device), buffers(device)
    given |= OVERLAPS[overlap](inputs, given)
    everything = {**inputs.arguments, **given}
    before = {name: bytes_of(x) for name, x in everything.items() if isinstance(x, Tensor)}
    with pytest.raises(ContractError) as refusal:
        attend(**everything)
    assert {fault.rule for fault in refusal.value.violations} == {"buffers-disjoint"}
    for name, held in before.items():
        assert torch.equal(bytes_of(everything[name]), held)


@every_backend
def test_buffers_side_by_side_in_one_storage_are_served(
    backend: str, serve: Callable[..., Any], device: str
) -> None:
    """One ends where the next begins: no byte is shared, and none beside them is written."""
    inputs, given = CASE.build(device), buffers(device)
    parent = torch.full((2 * given["lse"].numel() + 32,), 7.0, device=device)
    inside = parent[16:-16].view(2, 2, 64)
    given |= {"max_logits": inside[0], "lse": inside[1]}
    results = serve(attend, backend, **inputs.arguments, **given)
    for name, result in zip(NAMES, results, strict=True):
        assert result is given[name]
    fresh = serve(attend, backend, **inputs.arguments)
    assert Results(*results).same_bits(Results(*fresh))
    assert (parent[:16] == 7).all()
    assert (parent[-16:] == 7).all()


@every_backend
def test_rows_of_a_larger_buffer_are_written_and_no_others(
    backend: str, serve: Callable[..., Any], device: str
) -> None:
    """A caller's slice of the first axis is dense: a chunk of queries into the whole result."""
    inputs = CASE.build(device)
    parents = {name: x.new_full((6, *x.shape[1:]), 7.0) for name, x in buffers(device).items()}
    results = serve(
        attend, backend, **inputs.arguments, **{name: x[2:4] for name, x in parents.items()}
    )
    assert Results(*results).same_bits(Results(*serve(attend, backend, **inputs.arguments)))
    for parent in parents.values():
        assert (parent[:2] == 7).all()
        assert (parent[4:] == 7).all()
        assert (parent[2:4] != 7).any()


@pytest.mark.parametrize("length", [None, (5, 0)])
def test_a_buffer_of_nan_is_written_everywhere(length: tuple[int, ...] | None, device: str) -> None:
    inputs, given = replace(CASE, topk_length=length).build(device), buffers(device)
    attend(**inputs.arguments, **given)
    assert not any(x.isnan().any() for x in given.values())
