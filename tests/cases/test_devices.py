"""The device of a call is its tensors', not the current one, and what it lacks is said in words.

A kernel launched into another device's context, or compiled for one that is too old, fails far
from the call and in somebody else's vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import backends
from backends import NoBackendError, assume_target
from backends.dispatch import registry
from backends.ops.hunyuan_qkv_rope_pack.cases import Case as PackCase
from backends.ops.sparse_mla_prefill.cases import Case as AttendCase
from contracts import ContractError

OPS = {
    "pack": (backends.hunyuan_qkv_rope_pack, PackCase("", 2, 5, 3, 3, 16)),
    "attend": (
        backends.sparse_mla_q8kv8_prefill_fwd,
        AttendCase("", 2, 40, 64, 128, topk_length=(100, 7), attn_sink=0.5),
    ),
}
every_op = pytest.mark.parametrize("name", OPS)


@pytest.fixture
def fakes() -> Iterator[Any]:
    """`fakes(name, device)`: arguments on a device that need not be there."""
    with FakeTensorMode():
        yield fake_arguments


def fake_arguments(name: str, device: str) -> dict[str, Any]:
    def move(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)

    with torch._C._DisableTorchDispatch():
        arguments = OPS[name][1].build("cpu").arguments
    return {key: move(x) for key, x in arguments.items()}


not_one_gpu = pytest.mark.skipif(
    torch.cuda.device_count() == 1, reason="with one CUDA device torch fakes no second"
)

TENSORS = [
    *(("pack", key) for key in ("img_k", "txt_q", "txt_v", "cos", "sin")),
    *(
        ("attend", key)
        for key in ("kv", "indices", "q_scale", "kv_scale", "attn_sink", "topk_length")
    ),
]


@pytest.mark.parametrize("other", ["cpu", pytest.param("cuda:1", marks=not_one_gpu), "meta"])
@pytest.mark.parametrize(("name", "key"), TENSORS)
def test_one_tensor_elsewhere_is_named(name: str, key: str, other: str, fakes: Any) -> None:
    """A scale left on the host would be read as an address of the device."""
    arguments = fakes(name, "cuda:0")
    arguments[key] = fakes(name, other)[key]
    with pytest.raises(ContractError) as refusal:
        OPS[name][0](**arguments)
    (fault,) = refusal.value.violations
    assert (fault.argument, fault.rule) == (key, "same-device")
    assert other in fault.message
    assert "cuda:0" in fault.message


class Chosen(TorchDispatchMode):
    """Notes which backend each call of an op is handed to."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is self.op.inner:
            self.names.append(args[-2])
        return function(*args, **(kwargs or {}))


@not_one_gpu
@every_op
@pytest.mark.filterwarnings("ignore::backends.BackendWarning")
def test_calls_go_by_the_capability_of_the_tensors_device(name: str, fakes: Any) -> None:
    """In turns, and twice each: what is remembered of one device serves no other."""
    op, _ = OPS[name]
    with assume_target("cuda:0", sm=90), assume_target("cuda:1", sm=75), Chosen(op) as chosen:
        for index in (0, 1, 0, 1):
            op(**fakes(name, f"cuda:{index}"))
    assert chosen.names == [op.backends[0], "reference"] * 2


@not_one_gpu
@every_op
def test_capability_is_that_of_the_tensors_device(name: str, fakes: Any) -> None:
    op, _ = OPS[name]
    with assume_target("cuda:0", sm=90), assume_target("cuda:1", sm=75):
        on_new, on_old = (op.explain(**fakes(name, f"cuda:{index}")) for index in (0, 1))
    assert on_new.choice == op.backends[0]
    assert (on_old.choice, on_old.target) == ("reference", "sm75")


@pytest.mark.parametrize("sm", [75, 80, 86])
def test_a_device_without_fp8_is_served_by_the_reference_or_named(sm: int, fakes: Any) -> None:
    op, _ = OPS["attend"]
    arguments = fakes("attend", "cuda:0")
    with assume_target("cuda:0", sm=sm):
        assert op.explain(**arguments).choice == "reference"
        with pytest.raises(NoBackendError) as refusal:
            op(**arguments, backend="triton")
    assert f"needs sm>=89 or interpreter, device is sm{sm}" in str(refusal.value)
    assert "torch.float8_e4m3fn" in str(refusal.value) or "float8_e4m3fn[" in str(refusal.value)
    assert "fp8e4" not in str(refusal.value)  # Triton's name for it


@every_op
def test_no_gpu_at_all(name: str) -> None:
    op, case = OPS[name]
    arguments = case.build("cpu").arguments
    with assume_target("cpu"):
        assert op.explain(**arguments).choice == "reference"
        op(**arguments)
        with pytest.raises(NoBackendError, match="triton: needs sm>=8.*, device is cpu"):
            op(**arguments, backend="triton")


@every_op
def test_without_triton_the_reference_serves(
    name: str, monkeypatch: pytest.MonkeyPatch, fakes: Any
) -> None:
    op, _ = OPS[name]
    monkeypatch.setattr(registry, "is_installed", lambda package: False)
    arguments = fakes(name, "cuda:0")
    with assume_target("cuda:0", sm=90):
        assert op.explain(**arguments).choice == "reference"
        with pytest.raises(NoBackendError, match="needs the package triton, which is not inst"):
            op(**arguments, backend="triton")


two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.mark.gpu
@two_gpus
@every_op
@pytest.mark.parametrize("backend", [None, "triton", "gluon", "reference"])
def test_tensors_of_a_device_that_is_not_current(name: str, backend: str | None) -> None:
    """On its current stream, which is none of the default ones, and in time."""
    op, case = OPS[name]
    if backend not in (None, *op.backends):
        pytest.skip(f"{op.__name__} has no backend {backend}")
    if backend and (missing := op.availability("cuda:1")[backend]):
        pytest.skip(missing[0].text)
    arguments = case.build("cuda:1").arguments
    on_one = {key: x.clone() if isinstance(x, Tensor) else x for key, x in arguments.items()}
    expected = op(**on_one, backend=backend)
    torch.cuda.synchronize("cuda:1")
    stream = torch.cuda.Stream("cuda:1")
    first = next(iter(arguments))
    values = arguments[first].clone()
    with torch.cuda.stream(stream), torch.cuda.device("cuda:0"):
        torch.cuda.synchronize("cuda:1")
        with torch.cuda.device("cuda:1"), torch.cuda.stream(stream):
            arguments[first].view(torch.uint8).zero_()
            torch.cuda._sleep(20_000_000)
            arguments[first].view(torch.uint8).copy_(values.view(torch.uint8))
        results = op(**arguments, backend=backend)
        assert torch.cuda.current_device() == 0
        with pytest.raises(ContractError):
            op(**{**arguments, first: arguments[first].cpu()}, backend=backend)
        assert torch.cuda.current_device() == 0
        assert torch.cuda.current_stream("cuda:1") == stream
    stream.synchronize()
    for result, right in zip(results, expected, strict=True):
        assert result.device == torch.device("cuda:1")
        assert torch.equal(result, right)


@pytest.mark.gpu
@every_op
def test_a_refusal_leaves_the_context_usable(name: str) -> None:
    op, case = OPS[name]
    arguments = case.build("cuda").arguments
    expected = op(**arguments)
    first = next(iter(arguments))
    with pytest.raises(ContractError):
        op(**{**arguments, first: arguments[first][:1].cpu()})
    torch.cuda.synchronize()
    for result, right in zip(op(**arguments), expected, strict=True):
        assert torch.equal(result, right)
