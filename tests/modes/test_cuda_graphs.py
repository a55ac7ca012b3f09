"""Calls on a GPU: nothing waits, everything can be captured, and what is watched is found out."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

import backends
import contracts
from contracts import ContractError, contract, values
from contracts.contents.condition import condition, parse
from contracts.contents.torch_observer import TorchObserver

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda:0"


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")
    contracts.synchronize()


@contract(values("0 <= lengths <= topk"), values("-1 <= indices < s_kv"))
def attend(
    indices: Int32[Tensor, "s_q topk"],
    kv: Float[Tensor, "s_kv width"],
    lengths: Int32[Tensor, "s_q"],
) -> Tensor:
    return indices + 1


def arguments(s_q: int = 300, topk: int = 128) -> dict[str, Tensor]:
    return {
        "indices": torch.zeros(s_q, topk, dtype=torch.int32, device=DEVICE),
        "kv": torch.zeros(50, 4, device=DEVICE),
        "lengths": torch.full((s_q,), topk, dtype=torch.int32, device=DEVICE),
    }


def raised() -> ContractError:
    with pytest.raises(ContractError) as caught:
        contracts.synchronize()
    return caught.value


def hunyuan() -> dict[str, Tensor]:
    def image() -> Tensor:
        return torch.randn(2, 9, 3, 64, device=DEVICE).bfloat16()

    def text() -> Tensor:
        return torch.randn(2, 4, 3, 64, device=DEVICE).bfloat16()

    angle = torch.randn(9, 32, device=DEVICE)
    names = ("img_q", "img_k", "img_v", "txt_q", "txt_k", "txt_v")
    given = {name: image() if name.startswith("img") else text() for name in names}
    return {**given, "cos": angle.cos(), "sin": angle.sin()}


def sparse_mla() -> dict[str, Any]:
    fp8 = torch.float8_e4m3fn
    return {
        "q": torch.randn(5, 64, 576, device=DEVICE).to(fp8),
        "kv": torch.randn(300, 1, 576, device=DEVICE).to(fp8),
        "indices": torch.randint(-1, 300, (5, 1, 256), dtype=torch.int32, device=DEVICE),
        "sm_scale": 576**-0.5,
        "q_scale": torch.full((1,), 0.7, device=DEVICE),
        "kv_scale": torch.full((1,), 0.9, device=DEVICE),
        "attn_sink": torch.randn(64, device=DEVICE),
        "topk_length": torch.randint(0, 257, (5,), dtype=torch.int32, device=DEVICE),
    }


def sparse_mla_into_buffers() -> dict[str, Any]:
    nan = float("nan")
    return {
        **sparse_mla(),
        "out": torch.full((5, 64, 512), nan, dtype=torch.bfloat16, device=DEVICE),
        "max_logits": torch.full((5, 64), nan, device=DEVICE),
        "lse": torch.full((5, 64), nan, device=DEVICE),
    }


OPS = {
    "hunyuan_qkv_rope_pack": (backends.hunyuan_qkv_rope_pack, hunyuan),
    "sparse_mla_q8kv8_prefill_fwd": (backends.sparse_mla_q8kv8_prefill_fwd, sparse_mla),
}
CALLS = {
    **OPS,
    "into the caller's buffers": (backends.sparse_mla_q8kv8_prefill_fwd, sparse_mla_into_buffers),
}
SERVED = [(name, backend) for name, (op, _) in CALLS.items() for backend in op.backends]


def served(name: str, backend: str) -> tuple[Any, Any, dict[str, Any]]:
    """An op, what makes its arguments, and some that this backend serves."""
    op, make = CALLS[name]
    given = make()
    for answer in op.explain(**given).answers:
        if answer.backend == backend and answer.reasons:
            pytest.skip(f"{backend}: {answer.reasons[0].text}")
    return op, make, given


@pytest.mark.parametrize("mode", ["static", "async", "off"])
@pytest.mark.parametrize(("name", "backend"), SERVED)
def test_no_call_waits_for_the_device(name: str, backend: str, mode: str) -> None:
    op, _, given = served(name, backend)
    with contracts.mode(mode):
        op(**given, backend=backend)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        op(**given, backend=backend)
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", ["static", "async"])
@pytest.mark.parametrize(("name", "backend"), SERVED)
def test_a_captured_op_computes_with_what_its_inputs_hold_at_replay(
    name: str, backend: str, mode: str
) -> None:
    """Scales and the caller's buffers, which are NaN again, included."""
    op, make, given = served(name, backend)
    with contracts.mode(mode):
        op(**given, backend=backend)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = op(**given, backend=backend)
    for key, fresh in make().items():
        if isinstance(fresh, Tensor):
            given[key].copy_(fresh * 2 if key.endswith("_scale") else fresh)
    graph.replay()
    torch.cuda.synchronize()
    captured = [result.clone() for result in results]
    for tolerance, other in (0.0, backend), (2e-2, "reference"):
        for result, wanted in zip(captured, op(**given, backend=other), strict=True):
            torch.testing.assert_close(
                result, wanted, rtol=tolerance, atol=tolerance, equal_nan=True
            )
    contracts.synchronize()


@pytest.mark.parametrize("name", OPS)
def test_a_refusal_inside_a_capture_leaves_it_usable(name: str) -> None:
    op, make = OPS[name]
    given = make()
    op(**given)
    first = next(iter(given))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ContractError):
            op(**{**given, first: given[first].float()})
        results = op(**given)
    graph.replay()
    torch.cuda.synchronize()
    for result, wanted in zip(results, op(**given), strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0, equal_nan=True)


FIRST_CALL = """
import sys, torch
sys.path.insert(0, {tests!r})
import test_cuda_graphs as tests
op, make = tests.OPS[{name!r}]
given = make()
x = torch.ones(3, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    try:
        op(**given)
    except RuntimeError as error:
        print(error)
    y = x + 1
graph.replay()
print("usable:", y.tolist() == [2, 2, 2])
op(**given)
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    op(**given)
print("alive:", bool(torch.ones(1, device="cuda").item()))
"""


@pytest.mark.parametrize("name", OPS)
def test_a_first_call_inside_a_capture_is_refused_and_leaves_it_usable(name: str) -> None:
    program = FIRST_CALL.format(tests=str(Path(__file__).parent), name=name)
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert "make the call once before capturing it" in run.stdout, run.stderr[-2000:]
    assert "usable: True" in run.stdout, run.stderr[-2000:]
    assert "alive: True" in run.stdout, run.stderr[-2000:]


def test_a_broken_call_is_found_with_the_context_alive() -> None:
    given = arguments()
    given["indices"][7, 3] = 50
    given["indices"][9] = -2
    given["lengths"][299] = 129
    with contracts.mode("async"):
        attend(**given)
        assert attend.contract.accepts(**given)
    error = raised()
    lengths, indices = error.violations
    assert lengths.message == "lengths[299] is 129, breaks 0 <= lengths <= topk"
    assert indices.message == "indices[7, 3] is 50, breaks -1 <= indices < s_kv"
    assert indices.origin == "s_kv is 50; 129 of 38400 elements break it"
    assert Path(__file__).name in str(error.site)
    assert torch.ones(3, device=DEVICE).sum().item() == 3


def test_a_broken_call_is_raised_by_a_later_one_without_waiting() -> None:
    good, bad = arguments(), arguments()
    bad["lengths"][0] = -1
    with contracts.mode("async"):
        attend(**good)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        attend(**bad)
        with pytest.raises(ContractError, match=r"lengths\[0\] is -1"):
            for _ in range(100_000):
                attend(**good)


def test_watched_calls_are_captured_and_report_at_every_replay() -> None:
    given = arguments()
    with contracts.mode("async"):
        attend(**given)
        contracts.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = attend(**given)
            result += 1
    for value, broken in ((3, False), (50, True), (4, False), (51, True)):
        given["indices"][5, 5] = value
        graph.replay()
        if broken:
            assert f"indices[5, 5] is {value}" in str(raised())
        contracts.synchronize()
        assert int(result[5, 5]) == value + 2


def test_replays_on_another_stream_do_not_mix_with_calls() -> None:
    captured, eager = arguments(), arguments()
    captured["indices"][0, 1] = 60
    eager["indices"][2, 2] = 61
    with contracts.mode("async"):
        attend(**eager)
        raised()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            attend(**captured)
        side = torch.cuda.Stream()
        found: list[str] = []
        for _ in range(20):
            with torch.cuda.stream(side):
                graph.replay()
            made = False
            while not made:  # a call that raises what was found before is not made
                try:
                    attend(**eager)
                    made = True
                except ContractError as error:
                    found.append(str(error))
    for _ in range(60):
        try:
            contracts.synchronize()
            break
        except ContractError as error:
            found.append(str(error))
    places = [("indices[0, 1] is 60", "1 of"), ("indices[2, 2] is 61", "1 of")]
    assert found
    assert all(any(a in text and b in text for a, b in places) for text in found)
    assert all(any(place[0] in text for text in found) for place in places)


def test_the_first_watched_call_of_a_kind_is_refused_inside_a_capture() -> None:
    @contract(values("x < 3 and y > 0"))
    def call(x: Int32[Tensor, "n"], y: Float32[Tensor, "n"]) -> Tensor:
        return x + 1

    x, y = torch.ones(5, dtype=torch.int32, device=DEVICE), torch.ones(5, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with contracts.mode("async"), torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="once before capturing"):
            call(x, y)
        z = x + 1
    graph.replay()
    assert z.tolist() == [2] * 5


def test_synchronize_inside_a_capture_is_refused() -> None:
    with contracts.mode("async"):
        attend(**arguments())
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(3, device=DEVICE)
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="capture"):
            contracts.synchronize()
        y = x + 1
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_sixteen_threads_and_their_streams() -> None:
    outcome: dict[int, list[str]] = {}

    def work(index: int) -> None:
        found = outcome[index] = []
        given = arguments(s_q=20 + index)
        bad = arguments(s_q=20 + index)
        bad["indices"][index, 0] = 100 + index
        with contracts.mode("async"), torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for turn in range(40):
                try:
                    attend(**(bad if turn == 20 and index % 4 == 0 else given))
                except ContractError as error:
                    found.append(error.violations[0].message)
            torch.cuda.current_stream().synchronize()
            try:
                attend(**given)
            except ContractError as error:
                found.append(error.violations[0].message)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, found in outcome.items():
        wanted = f"indices[{index}, 0] is {100 + index}, breaks -1 <= indices < s_kv"
        assert found == ([wanted] if index % 4 == 0 else [])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_tensors_of_a_device_that_is_not_current() -> None:
    given = {name: x.to("cuda:1") for name, x in arguments().items()}
    given["indices"][1, 1] = 99
    with contracts.mode("async"), torch.cuda.device(0):
        attend(**given)
        assert torch.cuda.current_device() == 0
    assert "indices[1, 1] is 99" in str(raised())


def test_without_kernels_torch_watches() -> None:
    class Call:
        thread = 0

    x = torch.arange(100, device=DEVICE, dtype=torch.int32)
    each = condition("x < n", parse("x < n"), ["x"])
    observer = TorchObserver()
    observer.judge_of((each,))([x], [40], Call())
    observer.wait()
    ((_, ((position, offence),)),) = observer.collect()
    assert (position, offence.count, offence.index, offence.values) == (0, 60, 40, (40,))
