"""What only a GPU can show: large sizes, alignment, memory, capture, streams."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from backends.ops.hunyuan_qkv_rope_pack.cases import LARGE, Case, fused, separate
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from backends.ops.hunyuan_qkv_rope_pack.triton_launch import launch

pytestmark = pytest.mark.gpu


def assert_same_bits(packed: Tensor, expected: Tensor) -> None:
    assert torch.equal(packed.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_large_sizes_write_every_element(case: Case) -> None:
    tensors = case.build("cuda").tensors
    expected = pack_reference(*tensors)
    poison = torch.full_like(expected, float("nan"))
    address = poison.data_ptr()
    del poison
    packed = launch(*tensors)
    assert packed.data_ptr() == address  # it was NaN before
    assert_same_bits(packed, expected)


@pytest.mark.parametrize("position", range(6))
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_strides_past_two_to_the_31(position: int, axis: int) -> None:
    """A view of few elements whose stride alone passes int32, over 4.3 GB of bfloat16."""
    shape = [1, 4, 2, 64]
    shape[axis] = 2
    tensors = list(Case("", *shape[:2], shape[1], *shape[2:]).build("cuda").tensors)
    strides = [512, 128, 64, 1]
    strides[axis] = 2**31 + 64
    storage = torch.empty(2**31 + 4096, dtype=torch.bfloat16, device="cuda")
    tensors[position] = storage.as_strided(shape, strides).copy_(tensors[position])
    packed = launch(*tensors)
    tensors[position] = tensors[position].contiguous()
    assert_same_bits(packed, pack_reference(*tensors))


def test_result_past_two_to_the_31_elements() -> None:
    """Planes of 0.8 G elements: the third begins within int32 and ends past it."""
    tensors = list(Case("", 1, 100, 28, 1, 128).build("cuda").tensors)
    images = [x[:, :1].expand(-1, 260_000, -1, -1).expand(-1, -1, 24, -1) for x in tensors[:3]]
    texts = [x[:, :28].expand(-1, -1, 24, -1) for x in tensors[3:6]]
    tables = [table[:1].expand(260_000, -1) for table in tensors[6:]]
    packed = launch(*images, *texts, *tables)
    expected = pack_reference(*(x[:, :5] for x in images), *texts, *(table[:5] for table in tables))
    assert packed.numel() > 2**31
    assert_same_bits(packed[:, :, 260_000:].contiguous(), expected[:, :, 5:].contiguous())
    assert (packed[:, :, :260_000] == expected[:, :, :1]).all()


@pytest.mark.parametrize("position", range(8))
def test_aligned_then_misaligned_then_aligned(position: int) -> None:
    """One shape, one argument in turn off its 16-byte boundary: the context has to survive."""
    case = Case("", 1, 33, 9, 8, 128)
    aligned = case.build("cuda").tensors
    odd = Case("", 1, 33, 9, 8, 128, image=partial(separate, skip=1)).build("cuda").tensors
    storage = torch.empty(aligned[position].numel() + 1, dtype=aligned[position].dtype).cuda()
    mixed = list(aligned)
    mixed[position] = storage[1:].view(aligned[position].shape).copy_(aligned[position])
    for tensors in (aligned, mixed, aligned, odd, aligned):
        assert_same_bits(launch(*tensors), pack_reference(*tensors))
    torch.cuda.synchronize()


def test_no_hidden_copies() -> None:
    """Views of a fused projection are read in place: the result is all that is allocated."""
    tensors = Case("", 1, 2048, 64, 24, 128, image=fused, text=fused).build("cuda").tensors
    launch(*tensors)  # so that the kernel is loaded
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    packed = launch(*tensors)
    assert torch.cuda.max_memory_allocated() - before <= packed.nbytes + 512


def test_captured_graph_replays_on_new_values() -> None:
    case = Case("", 1, 65, 9, 8, 128, image=fused)
    tensors, fresh = case.build("cuda", 0).tensors, case.build("cuda", 1).tensors
    launch(*tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packed = launch(*tensors)
    for x, values in zip(tensors, fresh, strict=True):
        x.copy_(values)
    graph.replay()
    assert_same_bits(packed, pack_reference(*fresh))


def test_call_does_not_synchronise() -> None:
    tensors = Case("", 1, 65, 9, 8, 128).build("cuda").tensors
    launch(*tensors)
    torch.cuda.set_sync_debug_mode("error")
    try:
        launch(*tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_runs_on_the_current_stream() -> None:
    tensors = Case("", 1, 4096, 64, 24, 128).build("cuda").tensors
    expected = pack_reference(*tensors)
    launch(*tensors)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # some 10 ms: whoever runs elsewhere reads the old values
        for x in tensors:
            x.mul_(2)
        packed = launch(*tensors)
    stream.synchronize()
    planes, doubled = packed.unbind(0), expected.unbind(0)
    assert_same_bits(planes[2], 2 * doubled[2])
    assert_same_bits(packed, pack_reference(*tensors))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_runs_on_the_tensors_device_whatever_the_current_one() -> None:
    tensors = Case("", 1, 65, 9, 8, 128).build("cuda:1").tensors
    with torch.cuda.device(0):
        packed = launch(*tensors)
        assert torch.cuda.current_device() == 0
    assert packed.device == torch.device("cuda:1")
    assert_same_bits(packed, pack_reference(*tensors))
