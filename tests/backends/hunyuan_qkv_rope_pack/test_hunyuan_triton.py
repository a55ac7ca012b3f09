"""The Triton kernel against the reference, bit for bit: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from backends.ops.hunyuan_qkv_rope_pack import triton_launch
from backends.ops.hunyuan_qkv_rope_pack.cases import SMALL, Case
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from backends.ops.hunyuan_qkv_rope_pack.triton_kernel import pack_kernel
from backends.ops.hunyuan_qkv_rope_pack.triton_launch import kernel_arguments, launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int16)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_same_bits_as_the_reference_and_inputs_untouched(case: Case) -> None:
    inputs = case.build(DEVICE)
    before = [buffer.clone() for buffer in inputs.buffers]
    packed = launch(*inputs.tensors)
    assert packed.is_contiguous()
    assert torch.equal(bits(packed), bits(pack_reference(*inputs.tensors)))
    for buffer, copy in zip(inputs.buffers, before, strict=True):
        assert torch.equal(buffer.view(torch.uint8), copy.view(torch.uint8))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_every_element_is_written(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    uninitialised = Tensor.new_empty

    def full_of_nan(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return uninitialised(self, *args, **kwargs).fill_(float("nan"))

    tensors = case.build(DEVICE).tensors
    monkeypatch.setattr(Tensor, "new_empty", full_of_nan)
    assert launch(*tensors).isfinite().all()


def test_copies_keep_the_payload_of_nan() -> None:
    tensors = list(Case("", 1, 2, 2, 2, 16).build(DEVICE).tensors)
    patterns = torch.arange(0x7F81, 0x7F81 + 64, dtype=torch.int16, device=DEVICE)
    for position in (2, 3, 4, 5):  # img_v and the text
        tensors[position] = patterns.view(torch.bfloat16).view(1, 2, 2, 16)
    packed = launch(*tensors)
    assert torch.equal(bits(packed[2, :, :2]).flatten(), patterns)
    assert torch.equal(bits(packed[:, :, 2:]).flatten(), patterns.repeat(3))


EXTREMES = [float("inf"), float("-inf"), float("nan"), 3.39e38, 2e-38, -0.0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the interpreter's arithmetic
@pytest.mark.parametrize("value", [*EXTREMES, pytest.param(1e-40, marks=pytest.mark.gpu)])
def test_extreme_values_round_as_in_the_reference(value: float) -> None:
    """A subnormal only on a GPU: Triton's interpreter misreads it."""
    tensors = Case("", 1, 3, 1, 2, 16).build(DEVICE).tensors
    tensors[0][:, 1] = value
    packed, expected = launch(*tensors), pack_reference(*tensors)
    assert torch.equal(packed.isnan(), expected.isnan())
    assert torch.equal(bits(packed.nan_to_num(nan=7.0)), bits(expected.nan_to_num(nan=7.0)))


def test_a_nan_of_the_tables_stays_one() -> None:
    """All its bits set, it would be rounded to a zero if it were rounded as a number."""
    *qkv, cos, sin = Case("", 1, 3, 1, 2, 16).build(DEVICE).tensors
    cos.view(torch.int32)[1] = 0x7FFFFFFF
    assert torch.equal(launch(*qkv, cos, sin).isnan(), pack_reference(*qkv, cos, sin).isnan())
    assert launch(*qkv, cos, sin)[:2, :, 1].isnan().all()


def test_zero_tokens_launch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = Case("", 2, 0, 0, 3, 16).build(DEVICE).tensors
    monkeypatch.delattr(triton_launch, "load_kernel")
    assert launch(*tensors).shape == (3, 2, 0, 3, 16)


@pytest.mark.parametrize("interpreted", [True, False])
def test_arguments_are_in_the_kernels_order(
    interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors for the interpreter, addresses for a compiled kernel: each under its own name."""
    monkeypatch.setattr(triton_launch, "INTERPRETED", interpreted)
    case = next(case for case in SMALL if case.name == "several-tiles-of-each-kind")
    tensors = case.build(DEVICE).tensors
    packed = torch.empty(64, dtype=torch.bfloat16, device=DEVICE)
    arguments, _ = kernel_arguments(*tensors, packed)
    named = dict(zip(pack_kernel.arg_names[: len(arguments)], arguments, strict=True))
    names = ("img_q", "img_k", "img_v", "txt_q", "txt_k", "txt_v", "cos", "sin", "packed")
    for name, x in zip(names, (*tensors, packed), strict=True):
        pointer = named.pop(f"{name}_ptr")
        assert pointer is x if interpreted else pointer == x.data_ptr()
    for name, x in zip(names[:6], tensors[:6], strict=True):
        short = name[0] + name[-1]
        assert [named.pop(f"stride_{short}{axis}") for axis in "bsh"] == list(x.stride()[:3])
    assert named == {"stride_cs": tensors[6].stride(0), "stride_ss": tensors[7].stride(0)}


@pytest.mark.parametrize(
    ("name", "alignment"),
    [
        ("fused", 16),
        ("fused-odd-row", 2),
        ("odd-address", 2),
        ("odd-address-tables", 4),
        ("slice-of-wider-heads", 4),
        ("head-dim-100", 8),
        ("one-of-everything", 16),
        ("one-batch-one-head", 16),
        ("one-head", 16),
    ],
)
def test_access_is_as_wide_as_addresses_allow(name: str, alignment: int) -> None:
    case = next(case for case in SMALL if case.name == name)
    tensors = case.build(DEVICE).tensors
    packed = torch.empty(64, dtype=torch.bfloat16, device=DEVICE)
    assert kernel_arguments(*tensors, packed)[1] == alignment
