"""Dtypes whose bytes a kernel would misread without a word are refused, each by its full name.

The first of a row of int64 indices looks right, and the second is the first one's upper half; one
byte is twice as much in one FP8 flavour as in another; an operand raised to float32 is read as
bfloat16 noise. Nothing is cast in silence: that costs time, and changes what -1 means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import backends
from backends.ops.hunyuan_qkv_rope_pack.cases import Case as PackCase
from backends.ops.sparse_mla_prefill.cases import Case as AttendCase
from backends.ops.sparse_mla_prefill.cases import Results
from contracts import ContractError
from contracts.errors import Violation

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter

pack = backends.hunyuan_qkv_rope_pack
attend = backends.sparse_mla_q8kv8_prefill_fwd

PACK = PackCase("", 2, 5, 3, 3, 16)
ATTEND = AttendCase("", 1, 40, 64, 128, 512, topk_length=(100,), attn_sink=0.5)
DEMANDS = [None, "reference", "triton"]


def refusals(
    op: Any, arguments: dict[str, Any], backend: str | None = None
) -> tuple[Violation, ...]:
    with pytest.raises(ContractError) as refusal:
        op(**arguments, backend=backend)
    return refusal.value.violations


WRONG = [
    *(("indices", dtype) for dtype in (torch.int64, torch.int16, torch.uint8, torch.float32)),
    *(("topk_length", dtype) for dtype in (torch.int64, torch.int16, torch.uint8, torch.bool)),
    *(
        (name, dtype)
        for name in ("q", "kv")
        for dtype in (
            torch.float8_e4m3fnuz,
            torch.float8_e5m2,
            torch.float8_e5m2fnuz,
            torch.uint8,
            torch.int8,
            torch.bfloat16,
        )
    ),
    *(
        (name, dtype)
        for name in ("q_scale", "kv_scale", "attn_sink")
        for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int32)
    ),
]


@pytest.mark.parametrize(("name", "dtype"), WRONG, ids=str)
def test_one_argument_of_another_dtype(name: str, dtype: torch.dtype, device: str) -> None:
    """Of the same bytes where it has the same width: nothing but the dtype is off."""
    arguments = ATTEND.build(device).arguments
    x = arguments[name]
    arguments[name] = x.view(dtype) if x.itemsize == dtype.itemsize else x.to(dtype)
    (fault,) = refusals(attend, arguments)
    assert (fault.argument, fault.rule) == (name, f"{name}-dtype")
    for said in (x.dtype, dtype):
        assert str(said) in fault.message.replace(",", " ").split()


@pytest.mark.parametrize("backend", DEMANDS)
def test_several_at_once_are_all_named_in_the_order_of_the_arguments(
    backend: str | None, device: str
) -> None:
    inputs = ATTEND.build(device)
    wrong = replace(
        inputs,
        kv=inputs.kv.view(torch.float8_e5m2),
        indices=inputs.indices.long(),
        topk_length=inputs.topk_length.long(),
    )
    faults = refusals(attend, wrong.arguments, backend)
    assert [fault.argument for fault in faults] == ["kv", "indices", "topk_length"]


def test_flavours_of_eight_bit_floats_differ_in_value_and_in_name(device: str) -> None:
    byte = torch.tensor([0x40], dtype=torch.uint8)
    fn, fnuz = (byte.view(kind).item() for kind in (torch.float8_e4m3fn, torch.float8_e4m3fnuz))
    assert (fn, fnuz) == (2.0, 1.0)
    inputs = ATTEND.build(device)
    q = inputs.q.view(torch.float8_e4m3fnuz)
    (fault,) = refusals(attend, replace(inputs, q=q).arguments)
    assert (fault.expected, fault.actual) == ("torch.float8_e4m3fn", "torch.float8_e4m3fnuz")
    assert fault.fix is None  # a cast rounds, and a view of the same bytes doubles


QKV = ("img_q", "img_k", "img_v", "txt_q", "txt_k", "txt_v")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int16])
@pytest.mark.parametrize(
    "names", [("img_q",), ("txt_v",), ("img_q", "img_k"), QKV[3:], QKV], ids=" ".join
)
def test_operands_that_something_raised(
    names: tuple[str, ...], dtype: torch.dtype, device: str
) -> None:
    """All six of another dtype are refused too: the op is one of bfloat16."""
    arguments = PACK.build(device).arguments
    for name in names:
        arguments[name] = arguments[name].to(dtype)
    faults = refusals(pack, arguments)
    assert [fault.argument for fault in faults] == list(names)
    assert all("bfloat16" in fault.message and str(dtype) in fault.message for fault in faults)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("name", ["cos", "sin"])
def test_a_table_of_another_dtype(name: str, dtype: torch.dtype, device: str) -> None:
    arguments = PACK.build(device).arguments
    arguments[name] = arguments[name].to(dtype)
    (fault,) = refusals(pack, arguments)
    assert (fault.argument, fault.rule) == (name, f"{name}-dtype")


# -- one scale, however it is shaped


@pytest.mark.parametrize("name", ["q_scale", "kv_scale"])
@pytest.mark.parametrize("shape", [(0,), (2,), (64, 1, 1), (1, 0), (1, 128)], ids=str)
@pytest.mark.parametrize("backend", DEMANDS)
def test_a_scale_of_more_or_fewer_elements_than_one(
    backend: str | None, shape: tuple[int, ...], name: str, device: str
) -> None:
    """Whether it would be broadcast, taken row by row or cut is no backend's choice."""
    arguments = ATTEND.build(device).arguments
    arguments[name] = torch.ones(shape, device=device)
    (fault,) = refusals(attend, arguments, backend)
    assert fault.rule == f"{name}-one-element"
    assert name in fault.message


@pytest.mark.parametrize("name", ["q_scale", "kv_scale"])
def test_a_number_is_no_scale(name: str, device: str) -> None:
    arguments = ATTEND.build(device).arguments
    arguments[name] = 1.0
    (fault,) = refusals(attend, arguments)
    assert fault.argument == name


@pytest.mark.parametrize(
    "backend", ["reference", "triton", pytest.param("gluon", marks=pytest.mark.gpu)]
)
def test_a_scale_of_one_element_means_the_same_in_every_shape(
    backend: str, serve: Callable[..., Any], device: str
) -> None:
    inputs = replace(ATTEND, q_scale=3.0, kv_scale=0.25).build(device)

    def results(shape: tuple[int, ...]) -> Results:
        scales: dict[str, Tensor] = {
            name: getattr(inputs, name).reshape(shape) for name in ("q_scale", "kv_scale")
        }
        return Results(*serve(attend, backend, **replace(inputs, **scales).arguments))

    first = results(())
    assert first.out.isfinite().all()
    assert first.same_bits(results((1,)))
