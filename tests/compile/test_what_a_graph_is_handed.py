"""A graph is handed what rules on addresses read, and nothing that would become a constant."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractError, aligned, contract, custom, no_overlap, when

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ["eager", "aot_eager", "inductor"]
Row = Float32[Tensor, "n"]


def misaligned(n: int = 8) -> Tensor:
    return torch.ones(n + 1)[1:]


@contract(aligned(16, "x"), no_overlap("y"))
@dataclass
class Batch:
    x: Row
    y: Row
    rest: list[int] = field(default_factory=list)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_default_factory_leaves_no_rule_out(backend: str) -> None:
    torch._dynamo.reset()

    def make(x: Tensor, y: Tensor) -> Tensor:
        return Batch(x, y).x * 2

    compiled = torch.compile(make, backend=backend, fullgraph=True)
    assert compiled(torch.ones(8), torch.ones(8)).tolist() == [2] * 8
    for call in (compiled, make):
        with pytest.raises(ContractError, match="16"):
            call(misaligned(), torch.ones(8))
        with pytest.raises(ContractError, match="overlap"):
            both = torch.ones(8)
            call(both, both)


def graphs_of(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> int:
    """How many graphs some calls are compiled to."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for call in calls:
        compiled(*call)
    return int(counter.frame_count)


def scaled(x: Row, scale: float, name: str = "") -> Tensor:
    if not isinstance(name, str):  # to some releases a text that is looked at is a constant
        raise TypeError
    return x * scale


@pytest.mark.parametrize(
    "calls",
    [
        [(torch.ones(8), 0.5 + step) for step in range(12)],
        [(torch.ones(8), 0.5, f"layer {step}") for step in range(6)],
        [(torch.ones(8 + step), (8 + step) ** -0.5) for step in range(12)],
    ],
    ids=["scales", "names", "scales of sizes"],
)
def test_numbers_and_texts_stay_as_dynamic_as_the_caller_left_them(calls: list[Any]) -> None:
    checked = contract(aligned(16, "x"))(scaled)
    assert graphs_of(checked, calls) <= max(2, graphs_of(scaled, calls))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_that_such_a_rule_reads_is_handed_on(backend: str) -> None:
    @contract(when("scale > 1.0", aligned(16, "x")))
    def checked(x: Row, scale: float) -> Tensor:
        return x * scale

    torch._dynamo.reset()
    compiled = torch.compile(checked, backend=backend, fullgraph=True)
    for scale in (0.5, 0.75, 2.0):
        assert compiled(torch.ones(8), scale).tolist() == [scale] * 8
    assert compiled(misaligned(), 0.5).tolist() == [0.5] * 8
    with pytest.raises(ContractError, match="16"):
        compiled(misaligned(), 2.0)


@dataclass
class Config:
    dim: int
    names: tuple[str, ...] = ("q", "k")


@pytest.mark.parametrize("backend", BACKENDS)
def test_objects_that_other_rules_read_stay_outside(backend: str) -> None:
    @contract(custom(lambda config: config.dim == 8, "config.dim is 8"), aligned(16, "x"))
    def checked(x: Row, config: Config) -> Tensor:
        return x * config.dim

    torch._dynamo.reset()
    compiled = torch.compile(checked, backend=backend, fullgraph=True)
    assert compiled(torch.ones(8), Config(8)).tolist() == [8] * 8
    with pytest.raises(ContractError, match="16"):
        compiled(misaligned(), Config(8))
    with pytest.raises(ContractError, match="dim"):
        compiled(torch.ones(8), Config(4))


FIRST_CALL = """
import torch, backends
from torch import Tensor
class Pack(torch.nn.Module):
    def forward(self, *given: Tensor):
        return backends.hunyuan_qkv_rope_pack(*given)
given = *(torch.randn(1, n, 2, 8).bfloat16() for n in (6, 6, 6, 2, 2, 2)), *torch.rand(2, 6, 4)
program = torch.export.export(Pack(), given, strict={strict}).module()
assert all(map(torch.equal, program(*given), backends.hunyuan_qkv_rope_pack(*given)))
"""


@pytest.mark.parametrize("strict", [True, False])
def test_an_export_may_be_the_first_call_of_a_process(strict: bool) -> None:
    program = FIRST_CALL.format(strict=strict)
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]


@contract(no_overlap("x", "y"))
def both(x: Row, y: Row) -> Tensor:
    return x + y


MERGED = {
    "zeros": lambda x: both(torch.zeros(8), torch.zeros(8)),
    "clones": lambda x: both(x.clone(), x.clone()),
    "sums": lambda x: both(x + 1, x + 1),
    "a clone": lambda x: both(x, x.clone()),
}


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("made", MERGED)
def test_tensors_that_a_compiler_makes_one_of_are_two(made: str, backend: str, grad: bool) -> None:
    torch._dynamo.reset()
    weight = torch.ones(8, requires_grad=grad)

    def call(x: Tensor) -> Tensor:
        return MERGED[made](x) * weight

    compiled = torch.compile(call, backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(8)), call(torch.ones(8)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_tensor_given_twice_is_one(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(both, backend=backend, fullgraph=True)
    whole = torch.ones(12)
    assert compiled(whole[:6], whole[6:]).tolist() == [2] * 6
    for x, y in (whole, whole), (whole[:6], whole[:6]), (whole[:6], whole[3:9]):
        with pytest.raises(ContractError, match="overlap"):
            compiled(x, y)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_may_be_given_one_tensor_twice(strict: bool) -> None:
    class Both(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return both(x, y)

    given = torch.ones(8), torch.ones(8)
    program = torch.export.export(Both(), given, strict=strict).module()
    assert program(*given).tolist() == [2] * 8
    with pytest.raises(ContractError, match="overlap"):
        program(given[0], given[0])
