"""Compiled calls of the operations are judged like eager ones, and cost no graph more.

A check must neither vanish from a graph, nor tie it to the sizes of its first call, nor read
addresses that do not exist while it is traced; what depends on addresses acts when the graph runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import backends
from backends.ops.hunyuan_qkv_rope_pack.cases import Case as PackCase
from backends.ops.hunyuan_qkv_rope_pack.cases import separate
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from backends.ops.sparse_mla_prefill.cases import Case as AttendCase
from backends.ops.sparse_mla_prefill.cases import Results
from contracts import ContractError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter

pack = backends.hunyuan_qkv_rope_pack
attend = backends.sparse_mla_q8kv8_prefill_fwd

# No two sizes alike: Dynamo takes equal sizes of a first call for one.
PACK = PackCase("", batch=2, img_len=20, txt_len=7, num_heads=3, head_dim=16, spare_rows=91)
ATTEND = AttendCase("", s_q=3, s_kv=40, h_q=64, topk=128, d_qk=576)
IMG_LENS = (20, 21, 16, 33, 64, 65, 80, 97)
TXT_LENS = (7, 9, 24)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def caller(*tensors: Tensor, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """What stands around the op in a model."""
    q, k, v = pack(*tensors, backend=backend)
    return q + k, v


def packed(img_len: int, txt_len: int, device: str) -> tuple[Tensor, ...]:
    spare = 111 - img_len  # tables of one length, as a model keeps them
    return replace(PACK, img_len=img_len, txt_len=txt_len, spare_rows=spare).build(device).tensors


@pytest.mark.parametrize(
    ("backend", "dynamic", "compiler"), [(None, True, "aot_eager"), ("reference", None, "eager")]
)
def test_a_sweep_of_lengths_makes_two_graphs_at_most_and_bad_calls_are_refused_after_it(
    backend: str | None, dynamic: bool | None, compiler: str, device: str
) -> None:
    counter = CompileCounterWithBackend(compiler)
    call = partial(caller, backend=backend)
    compiled = torch.compile(call, backend=counter, fullgraph=True, dynamic=dynamic)
    for turn, img_len in enumerate(IMG_LENS):
        tensors = packed(img_len, TXT_LENS[turn % 3], device)
        for x, y in zip(compiled(*tensors), call(*tensors), strict=True):
            assert torch.equal(x, y)
    assert counter.frame_count <= 2
    *qkv, cos, sin = packed(33, 9, device)
    for wrong in (
        (*qkv, cos[:32], sin[:32]),
        (*qkv[:3], qkv[3][:1], *qkv[4:], cos, sin),
        (*qkv[:5], qkv[5].float(), cos, sin),
        (*qkv, cos[:, :4], sin[:, :4]),
        (*(x[..., ::2] for x in qkv), cos[:, :4].contiguous(), sin[:, :4].contiguous()),
    ):
        with pytest.raises(ContractError) as eager:
            call(*wrong)
        with pytest.raises(ContractError) as refused:
            compiled(*wrong)
        assert refused.value.violations == eager.value.violations
    assert torch.equal(compiled(*qkv, cos, sin)[0], call(*qkv, cos, sin)[0])


def test_compiled_by_inductor(device: str) -> None:
    compiled = torch.compile(caller, backend="inductor", fullgraph=True)
    tensors = packed(20, 9, device)
    for x, y in zip(compiled(*tensors), caller(*tensors), strict=True):
        torch.testing.assert_close(x, y)
    *qkv, cos, sin = tensors
    with pytest.raises(ContractError, match="table-covers-image"):
        compiled(*qkv, cos[:19], sin[:19])


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("name", ["image", "text"])
def test_a_graph_takes_addresses_that_it_was_not_traced_with(
    name: str, backend: str, serve: Callable[..., Any], device: str
) -> None:
    case = replace(PACK, img_len=5, spare_rows=0)
    aligned = case.build(device)
    odd = replace(case, **{name: partial(separate, skip=1)}).build(device)
    serve(pack, backend, **aligned.arguments)
    compiled = torch.compile(
        lambda *x: pack(*x, backend=backend), backend="aot_eager", fullgraph=True
    )
    for inputs in (aligned, odd, aligned):
        for plane, right in zip(
            compiled(*inputs.tensors), pack_reference(*inputs.tensors), strict=True
        ):
            assert torch.equal(plane, right)


def bytes_within(x: Tensor, like: Tensor) -> Tensor:
    """A tensor like `like` over the first bytes of another."""
    return x.view(-1).view(torch.uint8)[: like.nbytes].view(like.dtype).view(like.shape)


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_buffers_that_overlap_are_refused_when_a_graph_runs(compiler: str, device: str) -> None:
    """Traced with buffers apart; each overlapping call is refused and writes nothing."""

    def call(max_logits: Tensor, lse: Tensor, arguments: dict[str, Any]) -> Any:
        return attend(**arguments, max_logits=max_logits, lse=lse, backend="reference")

    inputs = replace(ATTEND, d_qk=512).build(device)
    given = ATTEND.new_results(device)
    compiled = torch.compile(call, backend=compiler, fullgraph=True)
    compiled(given.max_logits, given.lse, inputs.arguments)
    storage = torch.zeros(2 * given.lse.numel(), device=device)
    lower = bytes_within(storage, given.lse)
    shifted = bytes_within(storage[64:], given.lse)
    within_q = bytes_within(inputs.q, given.lse)
    q = inputs.q.view(torch.uint8).clone()
    for max_logits, lse in ((lower, lower), (lower, shifted), (given.max_logits, within_q)):
        with pytest.raises(ContractError, match="buffers-disjoint"):
            compiled(max_logits, lse, inputs.arguments)
    assert (storage == 0).all()
    assert torch.equal(inputs.q.view(torch.uint8), q)
    results = compiled(lower, given.lse, inputs.arguments)
    assert Results(*results).same_bits(Results(*attend(**inputs.arguments, backend="reference")))


class Attend(torch.nn.Module):
    def forward(
        self, q: Tensor, kv: Tensor, indices: Tensor, scale: Tensor, out: Tensor, lse: Tensor
    ) -> Any:
        return attend(q, kv, indices, 0.04, scale, scale, out=out, lse=lse, backend="reference")


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_still_refuses_buffers_that_overlap(strict: bool, device: str) -> None:
    inputs, given = ATTEND.build(device), ATTEND.new_results(device)
    operands = (inputs.q, inputs.kv, inputs.indices, torch.ones(1, device=device))
    program = torch.export.export(
        Attend(), (*operands, given.out, given.lse), strict=strict
    ).module()
    program(*operands, given.out, given.lse)
    assert given.lse.isfinite().all()
    held = given.out.clone()
    with pytest.raises(ContractError, match="buffers-disjoint"):
        program(*operands, given.out, bytes_within(given.out, given.lse))
    assert torch.equal(given.out, held)


WRONG_PACK: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "img_k-dtype": lambda given: {"img_k": given["img_k"].float()},
    "img_k-batch": lambda given: {"img_k": given["img_k"][:1]},
    "table-covers-image": lambda given: {"cos": given["cos"][:9], "sin": given["sin"][:9]},
    "last-axis-contiguous": lambda given: {"sin": given["sin"].mT.contiguous().mT},
}


@pytest.mark.parametrize("rule", WRONG_PACK)
@pytest.mark.parametrize("where", ["meta", "fake"])
def test_tensors_without_memory_are_judged_by_metadata(rule: str, where: str) -> None:
    real = PACK.build("cpu").arguments
    mode = FakeTensorMode()

    def imagined(x: Tensor) -> Tensor:
        return x.to("meta") if where == "meta" else mode.from_tensor(x)

    def call(given: dict[str, Tensor]) -> Any:
        if where == "meta":
            return pack(**given)
        with mode:
            return pack(**given)

    right = {name: imagined(x) for name, x in real.items()}
    assert [plane.shape for plane in call(right)] == [(2, 27, 3, 16)] * 3
    wrong = {name: imagined(x) for name, x in WRONG_PACK[rule](real).items()}
    with pytest.raises(ContractError) as refusal:
        call({**right, **wrong})
    assert {fault.rule for fault in refusal.value.violations} == {rule}
