"""Gradients of the op, whichever backend runs it, against torch's own of the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backends import hunyuan_qkv_rope_pack
from backends.ops.hunyuan_qkv_rope_pack.cases import SMALL, Case
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ["reference", "triton"]
CASES = [case for case in SMALL if not case.name.startswith(("expanded", "head-dim"))]


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int16)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_bits_as_torch_gives(case: Case, backend: str) -> None:
    *qkv, cos, sin = case.build(DEVICE).tensors
    leaves = [x.detach().requires_grad_() for x in qkv]
    packed = pack_reference(*leaves, cos, sin)
    gradient = torch.randn_like(packed)
    expected = torch.autograd.grad(packed, leaves, gradient)
    planes = hunyuan_qkv_rope_pack(*leaves, cos, sin, backend=backend)
    ours = torch.autograd.grad(planes, leaves, gradient.unbind(0))
    for got, wanted in zip(ours, expected, strict=True):
        assert torch.equal(bits(got), bits(wanted))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tables_have_gradients_and_unused_rows_none(backend: str) -> None:
    *qkv, cos, sin = Case("", 2, 5, 3, 2, 16, spare_rows=2).build(DEVICE).tensors
    tables = [cos.detach().requires_grad_(), sin.detach().requires_grad_()]
    packed = pack_reference(*qkv, *tables)
    gradient = torch.randn_like(packed)
    expected = torch.autograd.grad(packed, tables, gradient)
    planes = hunyuan_qkv_rope_pack(*qkv, *tables, backend=backend)
    ours = torch.autograd.grad(planes, tables, gradient.unbind(0))
    for got, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(got, wanted)
        assert (got[5:] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_plane_of_three_is_enough(backend: str) -> None:
    """A sum's gradient is expanded, stride zero throughout, and two planes have none at all."""
    *qkv, cos, sin = Case("", 1, 3, 2, 2, 16).build(DEVICE).tensors
    img_k = qkv[1].detach().requires_grad_()
    qkv[1] = img_k
    pack_reference(*qkv, cos, sin)[1].sum().backward()
    expected = img_k.grad
    img_k.grad = None
    hunyuan_qkv_rope_pack(*qkv, cos, sin, backend=backend)[1].sum().backward()
    assert expected is not None
    assert img_k.grad is not None
    assert torch.equal(bits(img_k.grad), bits(expected))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_recorded_when_nothing_is_asked(backend: str) -> None:
    *qkv, cos, sin = Case("", 1, 3, 2, 2, 16).build(DEVICE).tensors
    leaf = qkv[0].detach().requires_grad_()
    with torch.no_grad():
        planes = hunyuan_qkv_rope_pack(leaf, *qkv[1:], cos, sin, backend=backend)
    assert not any(plane.requires_grad for plane in planes)
    with torch.inference_mode():
        assert hunyuan_qkv_rope_pack(leaf, *qkv[1:], cos, sin, backend=backend)[0].is_inference()
