"""Sizes that do not fit one another are refused at the door, and the one that is off is named.

A kernel takes its sizes from one tensor and strides through all of them: every other tensor that
is smaller is read past its end, and a larger one is silently cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from jaxtyping import BFloat16
from torch import Tensor

import backends
from backends.ops.hunyuan_qkv_rope_pack.cases import Case as PackCase
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from backends.ops.sparse_mla_prefill.cases import Case as AttendCase
from contracts import ContractError, contract

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter

pack = backends.hunyuan_qkv_rope_pack
attend = backends.sparse_mla_q8kv8_prefill_fwd

PACK_BACKENDS = ["reference", "triton"]
ATTEND_BACKENDS = ["reference", "triton", pytest.param("gluon", marks=pytest.mark.gpu)]
QKV = ("img_q", "img_k", "img_v", "txt_q", "txt_k", "txt_v")
PACK = PackCase("pack", 2, 5, 3, num_heads=4, head_dim=16)
ATTEND = AttendCase("attend", s_q=2, s_kv=40, h_q=64, topk=128)


def resized(x: Tensor, axis: int, size: int) -> Tensor:
    """The same values, cut or repeated along one axis."""
    repeats = [1] * x.ndim
    repeats[axis] = -(-size // max(1, x.shape[axis]))
    return x.repeat(repeats).narrow(axis, 0, size)


def refusal(op: Any, arguments: dict[str, Any], backend: str | None = None) -> ContractError:
    with pytest.raises(ContractError) as caught:
        op(**arguments, backend=backend)
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("name", QKV)
def test_batch_and_heads_of_one_tensor_are_off(
    name: str, axis: int, size: int, device: str
) -> None:
    """Five agree, so the sixth is named; a batch or head of one is no broadcast."""
    arguments = PACK.build(device).arguments
    right = arguments[name].shape[axis]
    arguments[name] = resized(arguments[name], axis, size)
    (fault,) = refusal(pack, arguments).violations
    assert (fault.argument, fault.axis) == (name, axis)
    assert str(right) in fault.message
    assert str(size) in fault.message


@pytest.mark.parametrize("size", [0, 1, 2, 9])
@pytest.mark.parametrize("name", QKV)
def test_length_of_one_tensor_is_off(name: str, size: int, device: str) -> None:
    """Image lengths agree among images and text lengths among texts, and not with each other."""
    arguments = replace(PACK, spare_rows=8).build(device).arguments
    arguments[name] = resized(arguments[name], 1, size)
    faults = refusal(pack, arguments).violations
    own = f"{name[:3]}_len"
    assert {fault.rule.split("-")[1] for fault in faults} == {own}
    assert all(fault.argument[:3] == name[:3] and fault.axis == 1 for fault in faults)


@pytest.mark.parametrize("backend", [None, *PACK_BACKENDS])
def test_a_smaller_batch_is_refused_whatever_backend_is_demanded(
    backend: str | None, device: str
) -> None:
    arguments = PACK.build(device).arguments
    for name in ("img_k", "img_v"):
        arguments[name] = arguments[name][:1]
    error = refusal(pack, arguments, backend)
    assert {fault.argument for fault in error.violations} == {"img_k", "img_v"}
    assert "batch" in str(error)


def test_fewer_key_heads_are_neither_divided_nor_shared(device: str) -> None:
    arguments = PACK.build(device).arguments
    arguments["img_q"] = resized(arguments["img_q"], 2, 3)
    for name in ("img_k", "img_v"):
        arguments[name] = resized(arguments[name], 2, 2)
    faults = refusal(pack, arguments).violations
    assert all("num_heads" in fault.rule for fault in faults)


@pytest.mark.parametrize("width", [0, 1, 4, 7, 9, 12, 16])
@pytest.mark.parametrize("names", [("cos", "sin"), ("cos",), ("sin",)])
def test_a_table_has_one_column_for_each_pair(
    names: tuple[str, ...], width: int, device: str
) -> None:
    """Wider would turn the next head; twice as wide is another convention, not a wider rotation."""
    arguments = PACK.build(device).arguments
    for name in names:
        arguments[name] = resized(arguments[name], 1, width).contiguous()
    error = refusal(pack, arguments)
    assert {fault.argument for fault in error.violations} == set(names)
    for fault in error.violations:
        assert f"{width}" in fault.message
        assert "head_dim/2" in f"{fault.message} {fault.expected} {fault.origin}"
        assert "8" in f"{fault.message} {fault.expected} {fault.origin}"
        assert "half of head_dim" in str(error)


@pytest.mark.parametrize("img_len", [1, 5, 65])
def test_a_table_that_ends_before_the_image_is_refused(img_len: int, device: str) -> None:
    arguments = replace(PACK, img_len=img_len).build(device).arguments
    for name in ("cos", "sin"):
        arguments[name] = arguments[name][: img_len - 1]
    (fault,) = refusal(pack, arguments).violations
    assert fault.rule == "table-covers-image"
    said = f"{fault.message} {fault.origin}"
    assert f"img_len is {img_len}" in said
    assert f"table_len is {img_len - 1}" in said


@pytest.mark.parametrize("backend", PACK_BACKENDS)
@pytest.mark.parametrize("spare_rows", [0, 1, 91])
@pytest.mark.parametrize("txt_len", [0, 3, 40])
def test_a_table_as_long_as_the_image_or_longer_serves_any_text(
    txt_len: int, spare_rows: int, backend: str, serve: Callable[..., Any], device: str
) -> None:
    inputs = replace(PACK, txt_len=txt_len, spare_rows=spare_rows).build(device)
    expected = pack_reference(*(x.contiguous() for x in inputs.tensors))
    for plane, right in zip(serve(pack, backend, **inputs.arguments), expected, strict=True):
        assert torch.equal(plane, right)


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        *(({"h_q": h_q}, "h_q-multiple-of-64") for h_q in (0, 1, 16, 24, 32, 63, 65, 96, 127)),
        *(({"topk": topk}, "topk-multiple-of-128") for topk in (0, 1, 64, 100, 127, 192)),
        *(({"d_qk": d_qk}, "d_qk-width") for d_qk in (64, 448, 511, 513, 560, 640)),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", [None, "reference", "triton"])
def test_a_size_that_no_kernel_is_built_for_is_named(
    sizes: dict[str, int], rule: str, backend: str | None, device: str
) -> None:
    """On every backend, though the reference could compute it: a contract is the op's."""
    arguments = replace(ATTEND, **sizes).build(device).arguments
    ((axis, size),) = sizes.items()
    (fault,) = refusal(attend, arguments, backend).violations
    assert fault.rule == rule
    assert f"{axis} is {size}, from " in f"{fault.origin}"
    assert refusal(attend, arguments).violations == (fault,)


@pytest.mark.parametrize("backend", ATTEND_BACKENDS)
@pytest.mark.parametrize("sizes", [{"h_q": 192}, {"topk": 384, "d_qk": 512}], ids=str)
def test_multiples_that_no_tile_matches_are_served(
    sizes: dict[str, int],
    backend: str,
    serve: Callable[..., Any],
    assert_attention: Callable[..., None],
    device: str,
) -> None:
    case = replace(ATTEND, s_q=1, **sizes)
    inputs = case.build(device)
    results = serve(attend, backend, **inputs.arguments)
    assert_attention(case, inputs, results, backend)


@pytest.mark.parametrize(
    ("name", "axis", "size"),
    [
        ("indices", 0, 1),
        ("indices", 0, 3),
        ("indices", 1, 2),
        ("kv", 1, 2),
        ("kv", 2, 512),
        ("attn_sink", 0, 1),
        ("attn_sink", 0, 128),
        ("topk_length", 0, 1),
        ("topk_length", 0, 3),
    ],
)
def test_sizes_of_the_attention_inputs_that_disagree(
    name: str, axis: int, size: int, device: str
) -> None:
    arguments = replace(ATTEND, attn_sink=0.5, topk_length=(100, 7)).build(device).arguments
    arguments[name] = resized(arguments[name], axis, size).contiguous()
    faults = refusal(attend, arguments).violations
    assert name in {fault.argument for fault in faults}
    assert {fault.axis for fault in faults} == {axis}


# -- what does not group heads must not divide them


@contract()
def norm_heads(
    q: BFloat16[Tensor, "num_tokens num_q_heads head_dim"],
    k: BFloat16[Tensor, "num_tokens num_kv_heads head_dim"],
) -> tuple[Tensor, Tensor]:
    return q.square(), k.square()


@contract("num_q_heads % num_kv_heads == 0")
def group_heads(
    q: BFloat16[Tensor, "num_tokens num_q_heads head_dim"],
    k: BFloat16[Tensor, "num_tokens num_kv_heads head_dim"],
) -> int:
    return q.shape[1] // k.shape[1]


@pytest.mark.parametrize(("q_heads", "k_heads"), [(33, 2), (3, 2), (1, 7), (0, 1)])
def test_heads_are_grouped_only_where_the_contract_says_so(q_heads: int, k_heads: int) -> None:
    q, k = (torch.ones(5, heads, 8, dtype=torch.bfloat16) for heads in (q_heads, k_heads))
    assert [x.shape[1] for x in norm_heads(q, k)] == [q_heads, k_heads]
    if q_heads % k_heads:
        with pytest.raises(ContractError, match="num_q_heads % num_kv_heads == 0"):
            group_heads(q, k)


def test_no_key_heads_at_all_are_refused_not_divided_by() -> None:
    q, none = torch.ones(5, 4, 8).bfloat16(), torch.ones(5, 0, 8).bfloat16()
    with pytest.raises(ContractError, match="num_kv_heads"):
        group_heads(q, none)
