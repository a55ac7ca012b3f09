"""Nothing to do is legal: an idle rank passes no tokens, and gets results of the right shape.

A grid of zero programs is an error of the launch that shows in some later, unrelated call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor

import backends
from backends.ops.hunyuan_qkv_rope_pack.cases import Case as PackCase
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from backends.ops.sparse_mla_prefill.cases import Case as AttendCase
from contracts import ContractError, aligned, contiguous, contract, no_overlap, unit_stride

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter

pack = backends.hunyuan_qkv_rope_pack
attend = backends.sparse_mla_q8kv8_prefill_fwd

PACK = PackCase("", batch=2, img_len=5, txt_len=3, num_heads=3, head_dim=16)
ATTEND = AttendCase("", s_q=2, s_kv=40, h_q=64, topk=128, d_qk=512)
attend_backends = pytest.mark.parametrize(
    "backend", ["reference", "triton", pytest.param("gluon", marks=pytest.mark.gpu)]
)


def next_call_is_fine(device: str) -> bool:
    """A launch that failed shows in whatever runs next."""
    x = torch.ones(3, device=device)
    return (x + x).sum().item() == 6


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("spare_rows", [0, 4])
@pytest.mark.parametrize(
    "sizes",
    [
        {"txt_len": 0},
        {"img_len": 0},
        {"img_len": 0, "txt_len": 0},
        {"batch": 0},
        {"batch": 0, "img_len": 0, "txt_len": 0},
        {"num_heads": 0},
    ],
    ids=str,
)
def test_no_tokens_batches_or_heads_to_pack(
    sizes: dict[str, int], spare_rows: int, backend: str, serve: Callable[..., Any], device: str
) -> None:
    """Without an image the tables may have no rows."""
    case = replace(PACK, spare_rows=spare_rows, **sizes)
    inputs = case.build(device)
    planes = serve(pack, backend, **inputs.arguments)
    shape = (case.batch, case.img_len + case.txt_len, case.num_heads, case.head_dim)
    for plane, right in zip(planes, pack_reference(*inputs.tensors), strict=True):
        assert plane.shape == shape
        assert plane.dtype == torch.bfloat16
        assert plane.device == inputs.tensors[0].device
        assert torch.equal(plane, right)
    assert next_call_is_fine(device)


@attend_backends
@pytest.mark.parametrize("supplied", [False, True])
def test_no_queries(supplied: bool, backend: str, serve: Callable[..., Any], device: str) -> None:
    case = replace(ATTEND, s_q=0)
    buffers = vars(case.new_results(device)) if supplied else {}
    results = serve(attend, backend, **case.build(device).arguments, **buffers)
    assert [tuple(x.shape) for x in results] == [(0, 64, 512), (0, 64), (0, 64)]
    assert [x.dtype for x in results] == [torch.bfloat16, torch.float32, torch.float32]
    assert next_call_is_fine(device)


@attend_backends
@pytest.mark.parametrize("sink", [None, 0.5])
def test_no_rows_to_attend_to(
    sink: float | None, backend: str, serve: Callable[..., Any], device: str
) -> None:
    case = replace(ATTEND, s_kv=0, attn_sink=sink, topk_length=(128, 7) if sink else None)
    inputs = case.build(device)
    inputs.indices.random_(-1, 50)  # stale ones: there is no row 0 either
    out, max_logits, lse = serve(attend, backend, **inputs.arguments)
    assert (out == 0).all()
    assert (max_logits == float("-inf")).all()
    assert (lse == float("inf")).all()
    assert next_call_is_fine(device)


@pytest.mark.parametrize("sizes", [{"topk": 0}, {"h_q": 0}], ids=str)
def test_no_lanes_and_no_heads_are_refused(sizes: dict[str, int], device: str) -> None:
    ((axis, _),) = sizes.items()
    with pytest.raises(ContractError, match=f"{axis} is 0"):
        attend(**replace(ATTEND, **sizes).build(device).arguments)


# -- rules on what is empty hold, whatever its strides and its address


@contract(
    "num_tokens % 4 == 0",
    "hidden_size % 128 == 0",
    unit_stride(),
    contiguous("x"),
    aligned(16),
    no_overlap("out"),
)
def quantise(
    x: BFloat16[Tensor, "num_tokens hidden_size"],
    out: Float32[Tensor, "num_tokens hidden_size/128"],
) -> Tensor:
    return out


@pytest.mark.parametrize("shape", [(0, 256), (4, 0), (0, 0)], ids=str)
def test_every_kind_of_rule_takes_empty_tensors(shape: tuple[int, int]) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16)
    out = torch.empty(shape[0], shape[1] // 128)
    assert quantise(x, out) is out
    strange = x.as_strided(shape, (0, 3))
    assert quantise(strange, out) is out
    buffer = torch.empty(64, dtype=torch.bfloat16)
    assert quantise(buffer[1:1].as_strided(shape, (shape[1], 1)), out) is out


@pytest.mark.parametrize("sizes", [(3, 256), (0, 130)], ids=str)
def test_a_size_of_zero_excuses_no_other(sizes: tuple[int, int]) -> None:
    with pytest.raises(ContractError):
        quantise(torch.empty(sizes, dtype=torch.bfloat16), torch.empty(sizes[0], sizes[1] // 128))
