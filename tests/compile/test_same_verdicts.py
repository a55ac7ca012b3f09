"""The calls that a contract generates for itself get the verdicts in a graph that they get outside:
the same accepted, the same refused, for the same reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from jaxtyping import Float32, Int32
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import backends
from contracts import ContractError, aligned, contract, no_overlap, requires, same_dtype, values
from contracts.testing.verdict import subject

PER_SUITE = 40
"""Cases of one contract that are compiled, spread over all of them."""


@contract(
    "rows % 2 == 0 or rows == 1",
    requires("bias", when="gate"),
    same_dtype("x", "gate"),
    aligned(16, "x"),
    no_overlap("out"),
    values("index < rows"),
)
def mix(
    x: Float32[Tensor, "*batch rows columns"],
    index: Int32[Tensor, "n"],
    out: Float32[Tensor, "rows*columns"] | None = None,
    gate: Float32[Tensor, "#rows columns"] | None = None,
    bias: list[Float32[Tensor, "columns"]] | None = None,
    scale: float = 1.0,
) -> None: ...


SUBJECTS = {
    "mix": mix,
    "hunyuan_qkv_rope_pack": backends.hunyuan_qkv_rope_pack.contract,
    "sparse_mla_q8kv8_prefill_fwd": backends.sparse_mla_q8kv8_prefill_fwd.contract,
}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def reasons(function: Any, call: dict[str, Any]) -> list[str]:
    try:
        function(**call)
    except ContractError as error:
        return [violation.rule for violation in error.violations]
    return []


def spread(cases: Any) -> list[Any]:
    """Lazy negative views are told apart by no trace; the next test shows what becomes of them."""
    cases = [case for case in cases if not case.plan.fake and "lazy negative" not in case.text]
    step = max(1, len(cases) // PER_SUITE)
    return cases[::step]


@pytest.mark.parametrize("name", SUBJECTS)
def test_in_a_graph_as_outside(name: str) -> None:
    subject_ = subject(SUBJECTS[name])
    guarded = subject_.contract.guard(lambda *args, **kwargs: None)
    signature = subject_.contract.declaration.signature
    differing = {}
    refused = 0
    for case in spread(subject_.suite.cases):
        torch._dynamo.reset()
        call = {k: v for k, v in case.plan.build().items() if k in signature.parameters}
        graph = torch.compile(guarded, backend="eager", fullgraph=True)
        inside, outside = reasons(graph, call), reasons(guarded, call)
        refused += bool(outside)
        if inside != outside:
            differing[case.id] = (inside, outside)
    assert not differing
    assert refused > PER_SUITE // 4


def test_a_lazy_negative_view_is_resolved_on_its_way_into_an_op() -> None:
    given = [torch.randn(1, 3, 2, 8).bfloat16() for _ in range(6)]
    sin = torch.randn(3, 4)
    lazy = torch.complex(sin, sin).conj().imag
    assert lazy.is_neg()
    with pytest.raises(ContractError, match="lazy negative view"):
        backends.hunyuan_qkv_rope_pack(*given, sin, lazy)
    compiled = torch.compile(backends.hunyuan_qkv_rope_pack, backend="aot_eager", fullgraph=True)
    wanted = backends.hunyuan_qkv_rope_pack(*given, sin, -sin)
    for result, same in zip(compiled(*given, sin, lazy), wanted, strict=True):
        assert torch.equal(result, same)


@pytest.mark.parametrize("name", SUBJECTS)
def test_on_fake_tensors_as_on_real_ones(name: str) -> None:
    contract_ = subject(SUBJECTS[name]).contract
    pointers = {rule.id for rule in contract_.rules if rule.pointers}
    for case in subject(SUBJECTS[name]).suite.cases:
        real = {v.rule for v in contract_.violations(**case.plan.build())}
        fake = {v.rule for v in contract_.violations(**case.plan.build(fake=True))}
        assert fake - pointers == real - pointers, case.id


def test_a_cuda_contract_is_judged_without_a_gpu() -> None:
    """FakeTensorMode makes tensors of devices that this machine lacks."""
    from contracts import device

    @contract(device("cuda"), "n % 8 == 0")
    def launch(x: Float32[Tensor, "m n"]) -> None: ...

    with FakeTensorMode():
        launch(torch.empty(3, 16, device="cuda"))
        launch(torch.empty(3, 16, device="cuda:1"))
        with pytest.raises(ContractError, match="n % 8 == 0"):
            launch(torch.empty(3, 17, device="cuda"))
        with pytest.raises(ContractError, match="cuda"):
            launch(torch.empty(3, 16))
