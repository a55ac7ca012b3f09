"""The operations under torch.compile, torch.export, on fake and on meta tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export

import backends
import contracts
from contracts import ContractError

pack = backends.hunyuan_qkv_rope_pack
attend = backends.sparse_mla_q8kv8_prefill_fwd


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    contracts.synchronize()


def pack_inputs(img_len: int = 20, txt_len: int = 7, table_len: int = 100) -> tuple[Tensor, ...]:
    def tokens(length: int) -> Tensor:
        return torch.randn(2, length, 3, 8).bfloat16()

    angle = torch.randn(table_len, 4)
    image, text = (tokens(img_len) for _ in range(3)), (tokens(txt_len) for _ in range(3))
    return (*image, *text, angle.cos(), angle.sin())


def attend_inputs(s_q: int = 3, topk: int = 128) -> dict[str, Any]:
    one = torch.ones(1)
    return {
        "q": torch.randn(s_q, 64, 512).to(torch.float8_e4m3fn),
        "kv": torch.randn(9, 1, 512).to(torch.float8_e4m3fn),
        "indices": torch.randint(-1, 9, (s_q, 1, topk), dtype=torch.int32),
        "sm_scale": 0.05,
        "q_scale": one,
        "kv_scale": one + 1,
        "topk_length": torch.full((s_q,), topk, dtype=torch.int32),
    }


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_sweep_of_lengths_is_two_graphs(backend: str, dynamic: bool | None) -> None:
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(pack, backend=counter, fullgraph=True, dynamic=dynamic)
    for turn, img_len in enumerate((20, 21, 16, 33, 64, 65, 80, 97)):
        given = pack_inputs(img_len, (7, 9, 24)[turn % 3])
        for result, wanted in zip(compiled(*given), pack(*given), strict=True):
            assert torch.equal(result, wanted)
    assert counter.frame_count <= 2
    with pytest.raises(ContractError, match="table-covers-image"):
        compiled(*pack_inputs(40, 7, table_len=39))


def test_inductor() -> None:
    compiled = torch.compile(lambda *x: pack(*x)[0] + 1, backend="inductor", fullgraph=True)
    for img_len in (20, 21):
        given = pack_inputs(img_len)
        assert torch.equal(compiled(*given), pack(*given)[0] + 1)
    with pytest.raises(ContractError, match="table-covers-image"):
        compiled(*pack_inputs(40, 7, table_len=39))


def test_results_that_nothing_uses_do_not_spare_a_bad_call() -> None:
    def forgetful(*given: Tensor) -> Tensor:
        pack(*given)
        return given[0] + 1

    compiled = torch.compile(forgetful, backend="aot_eager", fullgraph=True)
    compiled(*pack_inputs())
    with pytest.raises(ContractError, match="table-covers-image"):
        compiled(*pack_inputs(40, 7, table_len=39))


def test_the_callers_buffers_are_written_and_rules_on_them_act_when_the_graph_runs() -> None:
    def into(buffer: Tensor, lse: Tensor, given: dict[str, Any]) -> Any:
        return attend(**given, out=buffer, lse=lse)

    compiled = torch.compile(into, backend="aot_eager", fullgraph=True)
    given = attend_inputs()
    memory = torch.full((4 * 64 * 512,), float("nan")).bfloat16()
    buffer, lse = memory[: 3 * 64 * 512].view(3, 64, 512), torch.zeros(3, 64)
    result = compiled(buffer, lse, given)
    wanted = attend(**given)
    assert result[0].data_ptr() == buffer.data_ptr()
    torch.testing.assert_close(buffer, wanted[0])
    torch.testing.assert_close(lse, wanted[2])
    inside = memory.view(torch.float32)[: 3 * 64].view(3, 64)
    with pytest.raises(ContractError, match="buffers-disjoint"):
        compiled(buffer, inside, given)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_equal_buffers_of_a_training_graph_are_not_taken_for_one(backend: str) -> None:
    """Its compiler makes both zeros once; the op, which writes them, gets two."""
    weight = torch.ones(64, requires_grad=True)

    def step(given: dict[str, Any]) -> tuple[Tensor, ...]:
        results = attend(**given, max_logits=torch.zeros(3, 64), lse=torch.zeros(3, 64))
        return (results[2].detach() * weight).sum(), *results

    given = attend_inputs()
    compiled = torch.compile(step, backend=backend, fullgraph=True)(given)
    for result, wanted in zip(compiled, step(given), strict=True):
        torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("mode", ["debug", "async"])
def test_contents_are_judged_in_graphs(mode: str) -> None:
    compiled = torch.compile(lambda **given: attend(**given)[0], backend="aot_eager")
    given = attend_inputs()
    with contracts.mode(mode):
        compiled(**given)
        given["topk_length"][1] = 129
        with pytest.raises(ContractError, match=r"topk_length\[1\] is 129"):
            compiled(**given)
            contracts.synchronize()


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict: bool) -> None:
    class Pack(torch.nn.Module):
        def forward(self, *given: Tensor) -> Any:
            return pack(*given)

    img_len, txt_len = Dim("img_len", min=2, max=100), Dim("txt_len", min=2, max=100)
    shapes = ((({1: img_len},) * 3 + ({1: txt_len},) * 3 + (None, None)),)
    program = export(Pack(), pack_inputs(), dynamic_shapes=shapes, strict=strict).module()
    given = pack_inputs(33, 5)
    for result, wanted in zip(program(*given), pack(*given), strict=True):
        assert torch.equal(result, wanted)


def test_on_fake_tensors_results_have_the_strides_of_real_ones() -> None:
    real = pack(*pack_inputs())
    mode = FakeTensorMode()
    given = [mode.from_tensor(x) for x in pack_inputs()]
    for imagined, result in zip(pack(*given), real, strict=True):
        assert imagined.shape == result.shape
        assert imagined.stride() == result.stride()
    with pytest.raises(ContractError, match="table-covers-image"):
        pack(*(mode.from_tensor(x) for x in pack_inputs(40, 7, table_len=39)))


def test_on_meta_tensors() -> None:
    result = pack(*(x.to("meta") for x in pack_inputs()))
    assert [x.device.type for x in result] == ["meta"] * 3
    given = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in attend_inputs().items()}
    assert attend(**given)[0].shape == (3, 64, 512)
