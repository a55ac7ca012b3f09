"""Layouts that a caller really brings are read in place and rightly, or refused by a named rule.

`is_contiguous` says nothing of addresses, nor anything that matters of axes of one element; a row
stride is not heads times width; a view of one row over a small storage is no dense tensor. Inputs
lie in buffers of NaN: whoever reads beside them shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from jaxtyping import BFloat16
from torch import Tensor

import backends
from backends import NoBackendError
from backends.ops.hunyuan_qkv_rope_pack.cases import Case as PackCase
from backends.ops.hunyuan_qkv_rope_pack.cases import (
    Pool,
    Shape,
    angle_tables,
    expanded,
    fused,
    head_slice,
    joined_tables,
    odd_strides_of_one,
    separate,
    transposed,
)
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from backends.ops.sparse_mla_prefill.cases import Case as AttendCase
from backends.ops.sparse_mla_prefill.cases import Results
from contracts import ContractError, contiguous, contract

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter

pack = backends.hunyuan_qkv_rope_pack
attend = backends.sparse_mla_q8kv8_prefill_fwd

PACK = PackCase("", batch=2, img_len=5, txt_len=3, num_heads=3, head_dim=16)
ATTEND = AttendCase("", s_q=1, s_kv=40, h_q=64, topk=128, d_qk=512)
NAMES = ("img_q", "img_k", "img_v", "txt_q", "txt_k", "txt_v", "cos", "sin")

pack_backends = pytest.mark.parametrize("backend", ["reference", "triton"])
attend_backends = pytest.mark.parametrize(
    "backend", ["reference", "triton", pytest.param("gluon", marks=pytest.mark.gpu)]
)


def broadcast_three_ways(pool: Pool, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """One batch, one token and one head, each seen at every index."""
    q, k, v = (expanded(pool, shape, axis)[axis] for axis in range(3))
    return q, k, v


LAYOUTS = {
    "inner part of wider heads": replace(PACK, image=head_slice, text=head_slice),
    "tail of much wider heads": replace(PACK, image=partial(head_slice, wider=64)),
    "planes of a fused projection": replace(PACK, image=fused, text=fused),
    "fused beside something odd": replace(PACK, image=partial(fused, beside=3)),
    "heads and tokens swapped": replace(PACK, image=transposed, text=transposed),
    "one head, swapped": replace(PACK, num_heads=1, image=transposed, text=transposed),
    "one token, swapped": replace(PACK, img_len=1, txt_len=1, image=transposed, text=transposed),
    "nonsense strides of one": replace(
        PACK, batch=1, num_heads=1, image=odd_strides_of_one, text=odd_strides_of_one
    ),
    "broadcast images": replace(PACK, image=broadcast_three_ways),
    "broadcast texts": replace(PACK, text=broadcast_three_ways),
    "an odd element on": replace(PACK, image=partial(separate, skip=1)),
    "texts odd elements on": replace(PACK, text=partial(separate, skip=3)),
    "tables an odd element on": replace(PACK, tables=partial(angle_tables, skip=1)),
    "halves of one table": replace(PACK, tables=joined_tables),
}


@pack_backends
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_what_dense_copies_give(
    layout: str, backend: str, serve: Callable[..., Any], device: str
) -> None:
    inputs = LAYOUTS[layout].build(device)
    copies = (x.clone(memory_format=torch.contiguous_format) for x in inputs.tensors)
    expected = pack_reference(*copies)
    for plane, right in zip(serve(pack, backend, **inputs.arguments), expected, strict=True):
        assert torch.equal(plane.view(torch.int16), right.view(torch.int16))


@pack_backends
@pytest.mark.parametrize("name", NAMES)
def test_one_argument_at_a_time_starts_at_an_odd_address(
    name: str, backend: str, serve: Callable[..., Any], device: str
) -> None:
    inputs = PACK.build(device)
    expected = pack_reference(*inputs.tensors)
    arguments = inputs.arguments
    x = arguments[name]
    arguments[name] = x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    assert arguments[name].is_contiguous()
    assert arguments[name].data_ptr() % 16 == x.itemsize
    for plane, right in zip(serve(pack, backend, **arguments), expected, strict=True):
        assert torch.equal(plane, right)
    if device == "cuda":
        torch.cuda.synchronize()


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "every second element": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "last two axes swapped": lambda x: x.mT.contiguous().mT,
    "one element for all": lambda x: x[..., :1].expand(x.shape),
}


@pytest.mark.parametrize("layout", STRIDED)
@pytest.mark.parametrize("name", NAMES)
def test_a_strided_last_axis_is_refused_and_only_its_argument_is_named(
    name: str, layout: str, device: str
) -> None:
    arguments = PACK.build(device).arguments
    arguments[name] = STRIDED[layout](arguments[name])
    with pytest.raises(ContractError) as refusal:
        pack(**arguments)
    (fault,) = refusal.value.violations
    assert (fault.argument, fault.rule) == (name, "last-axis-contiguous")
    assert str(tuple(arguments[name].stride())) in fault.message
    assert fault.fix == f"{name} = {name}.contiguous()"
    arguments[name] = arguments[name].contiguous()
    pack(**arguments)


@pack_backends
@pytest.mark.parametrize("layout", STRIDED)
def test_tables_of_one_column_may_have_any_stride_along_it(
    layout: str, backend: str, serve: Callable[..., Any], device: str
) -> None:
    inputs = replace(PACK, head_dim=2).build(device)
    expected = pack_reference(*inputs.tensors)
    arguments = inputs.arguments
    for name in ("cos", "sin"):
        arguments[name] = STRIDED[layout](arguments[name])
    for plane, right in zip(serve(pack, backend, **arguments), expected, strict=True):
        assert torch.equal(plane, right)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["planes of a fused projection", "inner part of wider heads"])
def test_views_are_not_copied_first(layout: str) -> None:
    sizes = {"batch": 1, "img_len": 2048, "txt_len": 64, "num_heads": 24, "head_dim": 128}
    arguments = replace(LAYOUTS[layout], **sizes).build("cuda").arguments
    pack(**arguments, backend="triton")  # so that the kernel is loaded
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    q, *_ = pack(**arguments, backend="triton")
    assert torch.cuda.max_memory_allocated() - before <= 3 * q.nbytes + 1024


# -- rows of a cache


@attend_backends
@pytest.mark.parametrize("pitch", [656])
def test_rows_of_a_wider_cache_are_read_in_place(
    pitch: int,
    backend: str,
    serve: Callable[..., Any],
    assert_attention: Callable[..., None],
    device: str,
) -> None:
    case = replace(ATTEND, kv_row_bytes=pitch)
    inputs = case.build(device)
    assert inputs.kv.stride(0) == pitch
    assert_attention(case, inputs, serve(attend, backend, **inputs.arguments), backend)


@attend_backends
@pytest.mark.parametrize("pitch", [520, 577])
def test_rows_of_an_odd_pitch_are_served_or_refused_by_it(
    pitch: int,
    backend: str,
    serve: Callable[..., Any],
    assert_attention: Callable[..., None],
    device: str,
) -> None:
    case = replace(ATTEND, kv_row_bytes=pitch)
    inputs = case.build(device)
    if backend == "gluon":
        with pytest.raises(NoBackendError, match=r"stride\(kv, 0\) % 16 == 0"):
            serve(attend, backend, **inputs.arguments)
        results = attend(**inputs.arguments)  # some other backend
    else:
        results = serve(attend, backend, **inputs.arguments)
    assert_attention(case, inputs, results, "triton" if backend == "gluon" else backend)


@attend_backends
def test_a_cache_of_one_row_seen_many_times(
    backend: str, serve: Callable[..., Any], assert_attention: Callable[..., None], device: str
) -> None:
    """Stride 0 over the storage of one row."""
    case = replace(ATTEND, s_kv=1)
    inputs = case.build(device)
    inputs = replace(inputs, kv=inputs.kv.expand(40, 1, 512))
    inputs.indices.random_(0, 40)
    assert_attention(case, inputs, serve(attend, backend, **inputs.arguments), backend)


@attend_backends
def test_axes_of_one_have_strides_that_do_not_matter(
    backend: str, serve: Callable[..., Any], device: str
) -> None:
    """One query, one row of kv, one key head."""
    inputs = replace(ATTEND, s_kv=1).build(device)

    def with_odd_strides(x: Tensor) -> Tensor:
        sizes = zip(x.shape, x.stride(), strict=True)
        return x.as_strided(x.shape, [12_345 if size == 1 else stride for size, stride in sizes])

    names = ("q", "kv", "indices")
    odd = replace(inputs, **{name: with_odd_strides(getattr(inputs, name)) for name in names})
    first = Results(*serve(attend, backend, **inputs.arguments))
    assert first.same_bits(Results(*serve(attend, backend, **odd.arguments)))


@attend_backends
@pytest.mark.parametrize("name", ["q", "kv", "indices"])
def test_an_odd_address_is_read_rightly_or_refused_by_alignment(
    name: str,
    backend: str,
    serve: Callable[..., Any],
    assert_attention: Callable[..., None],
    device: str,
) -> None:
    inputs = ATTEND.build(device)
    x = getattr(inputs, name)
    storage = torch.empty(x.numel() + 1, dtype=x.dtype, device=device)
    moved = storage[1:].view(x.shape)
    moved.view(torch.uint8).copy_(x.contiguous().view(torch.uint8))
    inputs = replace(inputs, **{name: moved})
    if backend == "gluon":
        with pytest.raises(NoBackendError, match="16-byte boundary"):
            serve(attend, backend, **inputs.arguments)
        torch.cuda.synchronize()
        results = attend(**inputs.arguments)
    else:
        results = serve(attend, backend, **inputs.arguments)
    assert_attention(ATTEND, inputs, results, "triton" if backend == "gluon" else backend)


# -- a contract that a linear reader needs


@contract(contiguous("x"))
def quantise(x: BFloat16[Tensor, "num_tokens hidden_size"]) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 448
    return (x / scale).to(torch.float8_e4m3fn), scale


def test_a_slice_of_columns_is_not_dense() -> None:
    big = torch.randn(33, 512).bfloat16()
    for right in (big, big[:1, :256], big[:, :256].contiguous(), big[:0, :256]):
        quantise(right)
    for wrong in (big[:, :256], big[:, ::2], big.mT, big[::2]):
        with pytest.raises(ContractError) as refusal:
            quantise(wrong)
        (fault,) = refusal.value.violations
        assert (fault.argument, fault.fix) == ("x", "x = x.contiguous()")
        assert str(tuple(wrong.stride())) in fault.message
