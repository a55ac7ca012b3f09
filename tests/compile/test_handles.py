"""How a graph means a contract: by a handle that never comes to mean another one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Float32, Int32
from torch import Tensor

import contracts
from contracts import (
    ContractError,
    aligned,
    contract,
    custom,
    device,
    dtype,
    no_overlap,
    same_device,
    values,
    when,
)

Row = Float32[Tensor, "n"]


def declared(*rules: Any, mode: str | None = None, **annotations: Any) -> Any:
    """A contract of one name, whatever it demands."""

    def f(x: Any, k: Any = None) -> Any:
        return 2 * x

    f.__annotations__ = {"x": Row, **annotations}
    return contract(*rules, mode=mode)(f)


DIFFERENT: dict[str, Callable[[], Any]] = {
    "plain": lambda: declared(),
    "aligned 4": lambda: declared(aligned(4, "x")),
    "aligned 64": lambda: declared(aligned(64, "x")),
    "one id": lambda: declared(aligned(4, "x", id="here")),
    "the same id": lambda: declared(aligned(64, "x", id="here")),
    "overlap": lambda: declared(no_overlap("x")),
    "an expression": lambda: declared("n % 2 == 0"),
    "another": lambda: declared("n % 4 == 0"),
    "conditional": lambda: declared(when("n > 2", aligned(4, "x"))),
    "another condition": lambda: declared(when("n > 3", aligned(4, "x"))),
    "contents": lambda: declared(values("x >= 0")),
    "other contents": lambda: declared(values("x > 0")),
    "a device": lambda: declared(device("cuda")),
    "another device": lambda: declared(device("cuda:1")),
    "dtypes": lambda: declared(dtype((torch.float32, torch.int8), "x")),
    "a mode": lambda: declared(mode="debug"),
    "another mode": lambda: declared(mode="async"),
    "axes": lambda: declared(x=Float32[Tensor, "n m"]),
    "another dtype": lambda: declared(x=Int32[Tensor, "n"]),
    "two dtypes": lambda: declared(x=Row | Int32[Tensor, "n"]),
    "optional": lambda: declared(x=Row | None),
    "a scalar": lambda: declared(k=int),
    "a literal": lambda: declared(k=Literal["a"]),
    "another literal": lambda: declared(k=Literal["b"]),
    "a container": lambda: declared(x=list[Row]),
    "a result": lambda: declared(**{"return": Row}),
    "another result": lambda: declared(**{"return": Float32[Tensor, "m"]}),
}


def test_contracts_that_demand_different_things_have_different_handles() -> None:
    kept = {name: make() for name, make in DIFFERENT.items()}
    handles = {name: f.contract.handle for name, f in kept.items()}
    assert len(set(handles.values())) == len(handles)
    assert {handle.partition("@")[0] for handle in handles.values()} == {
        f"{__name__}:declared.<locals>.f"
    }
    again = {name: make().contract.handle for name, make in DIFFERENT.items()}
    assert again == handles


def test_words_that_demand_nothing_make_no_difference() -> None:
    plain, worded = aligned(4, "x"), aligned(4, "x", hint="pad it", note="with views")
    assert declared(plain).contract.handle == declared(worded).contract.handle


def test_what_a_digest_cannot_tell_apart_is_numbered_for_good() -> None:
    def below(limit: int) -> Any:
        return declared(custom(lambda n: n < limit, "small"))

    first = below(3).contract.handle
    gc.collect()
    second = below(5).contract.handle
    assert first != second
    assert second.partition("#")[0] == first.partition("#")[0]


class Call(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def program_of(function: Any) -> Any:
    return torch.export.export(Call(function), (torch.ones(4),)).module()


def off_by(bytes_: int) -> Tensor:
    """Four floats that start so many bytes past a 64-byte boundary."""
    buffer = torch.ones(64)
    start = -(buffer.data_ptr() // 4) % 16 + bytes_ // 4
    return buffer[start : start + 4]


def test_a_program_of_a_contract_that_is_gone_is_judged_by_no_other() -> None:
    program = program_of(declared(aligned(64, "x")))
    gc.collect()
    with pytest.raises(
        RuntimeError, match=r"or nothing holds any more: call [\w.]*declared, which"
    ):
        program(off_by(16))
    other = declared(aligned(4, "x"))
    with pytest.raises(RuntimeError, match="is declared otherwise in this process: trace anew"):
        program(off_by(16))
    equal = declared(aligned(64, "x"))
    with pytest.raises(ContractError, match="starts 16 bytes past a 64-byte boundary"):
        program(off_by(16))
    program(off_by(0))
    assert other.contract.handle != equal.contract.handle


def test_equal_contracts_answer_for_each_other() -> None:
    kept, other = declared(aligned(64, "x")), declared(aligned(64, "x"))
    program = program_of(kept)
    del kept
    gc.collect()
    with pytest.raises(ContractError, match="64-byte boundary"):
        program(off_by(16))
    assert other is not None


def test_a_function_that_nothing_imported_is_named() -> None:
    from contracts.tracing import judge_of

    with pytest.raises(RuntimeError, match=r"'some\.module:f', which nothing .* import some\.mod"):
        judge_of("some.module:f@0123456789ab")


SCRIPT = """
from typing import Literal
import torch, backends
from contracts import aligned, contract, custom, dtype, same_device, values, when
from jaxtyping import Float32
from torch import Tensor

@contract("n % 2 == 0", same_device(), values("0 <= x < n"), when("n > 2 and m > n", aligned(16)))
def f(x: Float32[Tensor, "n"], y: dict[str, Float32[Tensor, "*rest m"]] | None,
      k: Literal["a", "b"] = "a", u: int | str = 1) -> Float32[Tensor, "n"]: ...

@contract(custom(lambda n: n < 4, "small"), dtype((torch.float32, torch.float16), "x"))
def g(x: Float32[Tensor, "n"]): ...

for op in (f, g, backends.hunyuan_qkv_rope_pack, backends.sparse_mla_q8kv8_prefill_fwd):
    print(op.contract.handle)
"""


def test_every_process_spells_a_handle_in_the_same_way() -> None:
    root = str(Path(contracts.__file__).parents[1])
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        command = [sys.executable, "-c", SCRIPT]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(run.stdout)
    (handles,) = found
    assert len(set(handles.split())) == 4


def test_a_compiled_graph_outlives_no_contract() -> None:
    """Dynamo keeps the function that it traced, and with it the contract."""
    compiled = torch.compile(declared(aligned(64, "x"), same_device()), backend="eager")
    compiled(off_by(0))
    gc.collect()
    with pytest.raises(ContractError, match="64-byte boundary"):
        compiled(off_by(16))
