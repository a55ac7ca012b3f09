"""Sizes past what a launch or 32 bits can count: more tokens, batches or heads than a grid's second
and third axes hold, and views of few elements whose stride alone passes 2^31.

Device code runs at such sizes on a GPU alone; how it is launched is host code, and offsets can be
followed anywhere, as memory that nobody touches costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import backends
from backends import NoBackendError, assume_target
from backends.ops.hunyuan_qkv_rope_pack import triton_launch as pack_launch
from backends.ops.hunyuan_qkv_rope_pack.cases import LARGE
from backends.ops.hunyuan_qkv_rope_pack.cases import Case as PackCase
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from backends.ops.sparse_mla_prefill import triton_launch as attend_launch
from backends.ops.sparse_mla_prefill.cases import Case as AttendCase
from backends.ops.sparse_mla_prefill.cases import Results, exact_results, mismatches

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter

pack = backends.hunyuan_qkv_rope_pack
attend = backends.sparse_mla_q8kv8_prefill_fwd

PAST_16_BITS = [case for case in LARGE if "65535" in case.name]
GRID_LIMITS = (2**31 - 1, 65_535, 65_535)


class Spy:
    """Stands for a kernel: `spy[grid](*arguments)` notes the grid."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grids.append(grid)
        return lambda *arguments: None

    @property
    def fits(self) -> bool:
        return bool(self.grids) and all(
            size <= limit
            for grid in self.grids
            for size, limit in zip(grid, GRID_LIMITS, strict=True)
        )


@pytest.mark.parametrize("case", PAST_16_BITS[:4], ids=lambda case: case.name)
def test_no_axis_of_a_packing_launch_is_past_its_limit(
    case: PackCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy()
    load = pack_launch.load_kernel
    monkeypatch.setattr(pack_launch, "load_kernel", lambda *key: replace(load(*key), run=spy))
    monkeypatch.setattr(pack_launch, "INTERPRETED", True)
    pack_launch.launch(*case.build("cpu").tensors)
    assert spy.fits
    tile = pack_launch.choose_tile(case.num_heads, case.head_dim)
    covered = spy.grids[0][0] * tile.tokens * tile.heads
    assert covered >= case.batch * (case.img_len + case.txt_len) * case.num_heads


@pytest.mark.parametrize(
    "sizes",
    [{"s_q": 65_600}, {"s_q": 1, "h_q": 65_600 - 65_600 % 64 + 64}, {"s_q": 1, "topk": 1 << 20}],
    ids=str,
)
def test_no_axis_of_an_attending_launch_is_past_its_limit(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy()
    monkeypatch.setattr(attend_launch, "load_kernel", lambda *key: spy)
    monkeypatch.setattr(attend_launch, "device_facts", lambda index: (90, 132))
    monkeypatch.setattr(attend_launch, "INTERPRETED", True)
    small = AttendCase("", s_q=1, s_kv=40, h_q=64, topk=128, d_qk=512).build("cpu")
    case = replace(AttendCase("", 1, 40, 64, 128, 512), **sizes)
    inputs = replace(
        small,
        q=small.q[:, :1].expand(case.s_q, case.h_q, 512),
        indices=small.indices[..., :1].expand(case.s_q, 1, case.topk),
    )
    out = torch.empty(1, dtype=torch.bfloat16).expand(case.s_q, case.h_q, 512)
    stats = torch.empty(1).expand(case.s_q, case.h_q)
    attend_launch.launch(*inputs.operands, out, stats, stats)
    assert spy.fits


@pytest.mark.gpu
@pytest.mark.parametrize("case", PAST_16_BITS, ids=lambda case: case.name)
def test_packed_past_a_grids_second_axis(case: PackCase) -> None:
    """Through the op; the memory that the result gets is NaN before."""
    inputs = case.build("cuda")
    expected = pack_reference(*inputs.tensors)
    poison = torch.full_like(expected, float("nan"))
    address = poison.data_ptr()
    del poison
    planes = pack(**inputs.arguments, backend="triton")
    assert planes[0].data_ptr() == address
    for plane, right in zip(planes, expected, strict=True):
        assert torch.equal(plane, right)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "gluon", "reference"])
def test_attended_past_a_grids_second_axis(
    backend: str, serve: Callable[..., Any], device: str
) -> None:
    case = AttendCase("", 65_600, 300, 64, 128, 512)
    inputs, given = case.build(device), case.new_results(device)
    results = Results(*serve(attend, backend, **inputs.arguments, **vars(given)))
    assert all(x.isfinite().all() for x in results.buffers)
    last = slice(65_530, 65_600)
    part = replace(inputs, q=inputs.q[last], indices=inputs.indices[last])
    written = Results(*(x[last] for x in results.buffers))
    assert not list(mismatches(written, exact_results(part), case.tolerance(backend)))


FAR = 2**31 + 64


def far_apart(x: Tensor, axis: int) -> Tensor:
    """The two slices along `axis`, more than 2^31 elements apart: none lies between."""
    strides = list(x.contiguous().stride())
    strides[axis] = FAR
    storage = torch.empty(FAR + x.numel(), dtype=x.dtype, device=x.device)
    far = storage.as_strided(x.shape, strides)
    far.view(torch.uint8).copy_(x.contiguous().view(torch.uint8))
    return far


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize(("name", "axis"), [("img_q", 0), ("img_v", 1), ("txt_k", 2)])
def test_packed_from_a_stride_past_two_to_the_31(
    name: str, axis: int, backend: str, serve: Callable[..., Any], device: str
) -> None:
    inputs = PackCase("", 2, 2, 2, 2, 16).build(device)
    expected = pack_reference(*inputs.tensors)
    arguments = inputs.arguments
    arguments[name] = far_apart(arguments[name], axis)
    for plane, right in zip(serve(pack, backend, **arguments), expected, strict=True):
        assert torch.equal(plane, right)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_attended_to_rows_a_stride_past_two_to_the_31_apart(
    backend: str, serve: Callable[..., Any], assert_attention: Callable[..., None], device: str
) -> None:
    case = AttendCase("", 1, 2, 64, 128, 512)
    inputs = case.build(device)
    far = replace(inputs, kv=far_apart(inputs.kv, 0))
    results = serve(attend, backend, **far.arguments)
    assert_attention(case, inputs, results, backend)


def test_a_kernel_of_32_bit_strides_says_so_by_a_rule() -> None:
    with FakeTensorMode(), assume_target("cuda", sm=90):
        new = {"device": "cuda"}
        arguments = {
            "q": torch.empty(1, 64, 512, dtype=torch.float8_e4m3fn, **new),
            "kv": torch.empty_strided((2, 1, 512), (FAR, 512, 1), dtype=torch.float8_e4m3fn, **new),
            "indices": torch.empty(1, 1, 128, dtype=torch.int32, **new),
            "sm_scale": 1.0,
            "q_scale": torch.empty(1, **new),
            "kv_scale": torch.empty(1, **new),
        }
        assert attend.explain(**arguments).choice == "triton"
        with pytest.raises(NoBackendError, match=r"stride\(kv, 0\) < 2\*\*31") as refusal:
            attend(**arguments, backend="gluon")
    assert str(FAR) in str(refusal.value)
