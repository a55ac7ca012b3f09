"""The reference is the op's meaning: held against float64, and against the definition's laws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backends.ops.hunyuan_qkv_rope_pack.cases import SMALL, Case
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference

BFLOAT16_HALF_ULP = 2.0**-8
"""Half the distance of neighbours above 1, relative to 1: a single rounding's largest error."""


def rotated_in_float64(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs as complex numbers, multiplied by cos + i sin."""
    angle = torch.complex(cos.double(), sin.double())[: x.shape[1], None, :]
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * angle).flatten(-2)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_rotation_is_one_rounding_from_float64(case: Case) -> None:
    tensors = case.build("cpu").tensors
    img_q, img_k, *_, cos, sin = tensors
    packed = pack_reference(*tensors)
    for x, plane in ((img_q, packed[0]), (img_k, packed[1])):
        expected = rotated_in_float64(x, cos, sin)
        # The float32 products and sum add 2^-23 of the pair's length to the final rounding.
        allowed = BFLOAT16_HALF_ULP * expected.abs() + 2.0**-22 * x.double().abs().amax(
            dim=-1, keepdim=True
        )
        assert ((plane[:, : case.img_len].double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_result_is_fresh_contiguous_and_copies_the_rest_bit_for_bit(case: Case) -> None:
    tensors = case.build("cpu").tensors
    packed = pack_reference(*tensors)
    shape = (3, case.batch, case.img_len + case.txt_len, case.num_heads, case.head_dim)
    assert packed.shape == shape
    assert packed.dtype == torch.bfloat16
    assert packed.is_contiguous()
    assert torch.equal(packed[2, :, : case.img_len], tensors[2])
    assert torch.equal(packed[:, :, case.img_len :], torch.stack(tensors[3:6]))


def test_pairs_are_neighbours_and_turn_counterclockwise() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.bfloat16).view(1, 1, 1, 4)
    none = torch.empty(1, 0, 1, 4, dtype=torch.bfloat16)
    quarter_then_half_turn = torch.tensor([[0.0, -1.0]]), torch.tensor([[1.0, 0.0]])
    q, k, v = pack_reference(x, 2 * x, 3 * x, none, none, none, *quarter_then_half_turn).unbind(0)
    assert q.flatten().tolist() == [0.0, 1.0, 0.0, -1.0]
    assert k.flatten().tolist() == [0.0, 2.0, 0.0, -2.0]
    assert v.flatten().tolist() == [3.0, 0.0, 0.0, 3.0]
