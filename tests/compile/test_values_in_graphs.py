"""Contents in compiled graphs: judged each time the graph runs, in `debug` and in `async`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import torch
from jaxtyping import Float32, Int32
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import contracts
from contracts import ContractError, contract, values


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    contracts.synchronize()


@contract("n > 1", values("0 <= slots < n"))
def pick(x: Float32[Tensor, "n"], slots: Int32[Tensor, "m"]) -> Float32[Tensor, "m"]:
    return x[slots.long()]


def caller(x: Tensor, slots: Tensor) -> Tensor:
    return pick(x, slots).sum() + 1


def unused(x: Tensor, slots: Tensor) -> Tensor:
    pick(x, slots)
    return 2 * x


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_debug_refuses_when_the_graph_runs(backend: str) -> None:
    compiled = torch.compile(caller, backend=backend, fullgraph=True)
    x = torch.ones(4)
    with contracts.mode("debug"):
        assert compiled(x, ints(0, 3)).item() == 3
        with pytest.raises(ContractError, match=r"slots\[1\] is -1, breaks 0 <= slots < n"):
            compiled(x, ints(0, -1))
        assert compiled(x, ints(0, 3)).item() == 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_debug_refuses_where_nothing_uses_the_result(backend: str) -> None:
    compiled = torch.compile(unused, backend=backend, fullgraph=True)
    with contracts.mode("debug"), pytest.raises(ContractError, match=r"slots\[0\] is -9"):
        compiled(torch.ones(4), ints(-9))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_async_raises_later_and_names_the_call_of_the_graph(backend: str) -> None:
    compiled = torch.compile(caller, backend=backend, fullgraph=True)
    with contracts.mode("async"):
        compiled(torch.ones(4), ints(0, 3))
        contracts.synchronize()
        compiled(torch.ones(4), ints(0, -1))
        line = inspect.currentframe().f_lineno - 1
    with pytest.raises(ContractError, match=r"slots\[1\] is -1") as caught:
        contracts.synchronize()
    assert caught.value.site.endswith(f"test_values_in_graphs.py:{line}")


@pytest.mark.parametrize("mode", ["debug", "async"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_metadata_is_judged_in_every_mode(backend: str, mode: str) -> None:
    compiled = torch.compile(caller, backend=backend, fullgraph=True)
    with contracts.mode(mode):
        with pytest.raises(ContractError, match="n > 1 does not hold"):
            compiled(torch.ones(1), ints(0))
        compiled(torch.ones(4), ints(0, 3))
        with pytest.raises(ContractError, match="n > 1 does not hold"):
            compiled(torch.ones(1), ints(0))


def test_a_size_that_only_the_run_knows_is_judged_there() -> None:
    """Eight lengths in two graphs: the third to come is judged without being traced."""
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(caller, backend=counter, fullgraph=True)
    with contracts.mode("debug"):
        for n in range(4, 12):
            compiled(torch.ones(n), ints(n - 1, 0))
        with pytest.raises(ContractError, match="slots\\[1\\] is 5"):
            compiled(torch.ones(5), ints(4, 5))
    assert counter.frame_count <= 2


def test_debug_judges_results_in_graphs() -> None:
    @contract
    def wrong(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return x[1:]

    compiled = torch.compile(lambda x: wrong(x) + 1, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(4))
    with contracts.mode("debug"), pytest.raises(ContractError, match=r"return axis 0 \(n\) is 3"):
        compiled(torch.ones(4))


def test_static_reads_no_contents_in_a_graph() -> None:
    torch.compile(caller, backend="eager", fullgraph=True)(torch.ones(4), ints(-1))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_debug_refuses_inside_a_gradient_that_is_compiled(backend: str) -> None:
    """torch 2.11 puts an error of its own over whatever an operator of such a graph raises, where
    the backend is `eager`: what was raised is its context."""

    def loss(x: Tensor, slots: Tensor) -> Tensor:
        return pick(x, slots).sum()

    compiled = torch.compile(torch.func.grad(loss), backend=backend, fullgraph=True)
    with contracts.mode("debug"):
        assert compiled(torch.ones(4), ints(0, 3)).tolist() == [1, 0, 0, 1]
        with pytest.raises((ContractError, RuntimeError)) as caught:
            compiled(torch.ones(4), ints(0, -1))
        hidden = backend == "eager" and torch.__version__ < "2.12"
        error = caught.value.__context__ if hidden else caught.value
        assert isinstance(error, ContractError)
        assert "slots[1] is -1" in str(error)
        assert compiled(torch.ones(4), ints(0, 3)).tolist() == [1, 0, 0, 1]
