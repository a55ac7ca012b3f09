"""A gradient flows as torch's own would, or the call is refused: a result without a history trains
everything around it, and nobody notices what stays frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import backends
from backends.ops.hunyuan_qkv_rope_pack.cases import NAMES
from backends.ops.hunyuan_qkv_rope_pack.cases import Case as PackCase
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from backends.ops.sparse_mla_prefill.cases import Case as AttendCase
from contracts import ContractError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter

pack = backends.hunyuan_qkv_rope_pack
attend = backends.sparse_mla_q8kv8_prefill_fwd

PACK = PackCase("", 2, 5, 3, 3, 16, spare_rows=2)
ATTEND = AttendCase("", 1, 40, 64, 128, 512, topk_length=(100,), attn_sink=0.5)
DIFFERENTIABLE = ("q", "kv", "q_scale", "kv_scale", "attn_sink")
OFF = [torch.no_grad, torch.inference_mode]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("name", NAMES)
def test_one_packed_argument_trains_as_through_the_reference(
    name: str, backend: str, serve: Callable[..., Any], device: str
) -> None:
    """A projection of queries alone, an image alone, learnt tables."""
    arguments = PACK.build(device).arguments
    grads = []
    weight = torch.randn(3, 2, 8, 3, 16, device=device).bfloat16()
    for run in (lambda **given: serve(pack, backend, **given), lambda **given: reference(given)):
        leaf = arguments[name].clone().requires_grad_()
        planes = run(**{**arguments, name: 1 * leaf})
        torch.autograd.backward(
            [x for x in planes if x.requires_grad],
            [w for x, w in zip(planes, weight, strict=True) if x.requires_grad],
        )
        assert leaf.grad is not None
        assert leaf.grad.abs().sum() > 0
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, rtol=1e-2, atol=1e-2)


def reference(arguments: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return pack_reference(*arguments.values()).unbind(0)


@pytest.mark.parametrize("backend", [None, "reference", "triton"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_an_argument_of_attention_that_wants_a_gradient_is_refused(
    name: str, backend: str | None, device: str
) -> None:
    inputs = ATTEND.build(device)
    wanting = replace(inputs, **{name: getattr(inputs, name).detach().requires_grad_()})
    with pytest.raises(ContractError) as refusal:
        attend(**wanting.arguments, backend=backend)
    (fault,) = refusal.value.violations
    assert (fault.argument, fault.rule) == (name, "no-gradient")


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_it_is_refused_within_a_graph_too(compiler: str, device: str) -> None:
    """Warm, with a parameter in place of a tensor that has none of its history."""
    inputs = ATTEND.build(device)
    compiled = torch.compile(attend, fullgraph=True, backend=compiler)
    compiled(**inputs.arguments)
    assert inputs.attn_sink is not None
    wanting = replace(inputs, attn_sink=torch.nn.Parameter(inputs.attn_sink))
    with pytest.raises(ContractError, match="no-gradient"):
        compiled(**wanting.arguments)
    with torch.no_grad():
        compiled(**wanting.arguments)


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_without_grad_mode_nothing_is_refused_and_no_history_kept(
    backend: str, off: Callable[[], Any], serve: Callable[..., Any], device: str
) -> None:
    inputs = ATTEND.build(device)
    wanting = {name: getattr(inputs, name).detach().requires_grad_() for name in DIFFERENTIABLE}
    packed = {name: x.requires_grad_() for name, x in PACK.build(device).arguments.items()}
    with off():
        attended = serve(attend, backend, **replace(inputs, **wanting).arguments)
        planes = serve(pack, backend, **packed)
    assert not any(x.requires_grad for x in (*attended, *planes))


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_inference_tensors_are_inputs_like_any_other(
    backend: str, serve: Callable[..., Any], device: str
) -> None:
    with torch.inference_mode():
        arguments = PACK.build(device).arguments
    for plane, right in zip(serve(pack, backend, **arguments), reference(arguments), strict=True):
        assert torch.equal(plane, right)


@pytest.mark.parametrize("backend", [None, "reference", "triton"])
@pytest.mark.parametrize("name", ["out", "max_logits", "lse"])
def test_a_buffer_that_wants_a_gradient_is_refused(
    name: str, backend: str | None, device: str
) -> None:
    inputs = ATTEND.build(device)
    buffers = dict(zip(("out", "max_logits", "lse"), attend(**inputs.arguments), strict=True))
    buffer = buffers[name].requires_grad_()
    before = buffer.detach().clone()
    with pytest.raises(ContractError, match="no-gradient"):
        attend(**{**inputs.arguments, name: buffer}, backend=backend)
    assert torch.equal(buffer.detach(), before)
