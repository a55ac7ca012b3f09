"""An optional argument that a backend does not know is never dropped: another backend serves the
call, or the one that was demanded refuses it by that argument's name, on every path of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from jaxtyping import Float32, Int32
from torch import Tensor

import backends
from backends import NoBackendError, Op
from backends.ops.sparse_mla_prefill.cases import Case, Results
from contracts import ContractError, contract, no_grad

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter

attend = backends.sparse_mla_q8kv8_prefill_fwd
CASE = Case("", s_q=1, s_kv=40, h_q=64, topk=128, d_qk=512, topk_length=(70,), attn_sink=1.0)
every_backend = pytest.mark.parametrize(
    "backend", ["reference", "triton", pytest.param("gluon", marks=pytest.mark.gpu)]
)

Row = Float32[Tensor, "n"]


@contract(no_grad(), name="soften")
def soften_(
    x: Row, sink: Row | None = None, length: Int32[Tensor, "1"] | None = None, *, scale: float = 1.0
) -> Row:
    """Weights of a softmax with a sink."""


def soften_reference(x: Tensor, sink: Tensor | None, length: Tensor | None, scale: float) -> Tensor:
    x = x * scale
    if length is not None:
        x = x.masked_fill(torch.arange(len(x)) >= length, -torch.inf)
    return x.softmax(0) if sink is None else x.exp() / (x.exp().sum() + sink.exp())


def soften_plain(x: Tensor, sink: Tensor | None, length: Tensor | None, scale: float) -> Tensor:
    """Knows neither: it would give weights that add up to one."""
    return (x * scale).softmax(0)


soften = Op(soften_, reference=soften_reference)
soften.backend("sinkless", rules=["sink is None"], priority=2)(soften_reference)
soften.backend("plain", rules=["sink is None", "length is None"], priority=3)(soften_plain)

X = torch.zeros(4)
SINK, LENGTH = torch.zeros(4), torch.tensor([2], dtype=torch.int32)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def warm(call: Callable[..., Tensor], *args: Any) -> Tensor:
    """After calls that the sinkless backends serve."""
    call(X, None, None)
    call(X, None, None)
    return call(*args)


PATHS: dict[str, Callable[..., Tensor]] = {
    "by position": soften,
    "by name": lambda x, sink, length: soften(x=x, length=length, sink=sink),
    "with another option": lambda x, sink, length: soften(x, sink, length, scale=1.0),
    "without a demand": lambda x, sink, length: soften(x, sink, length, backend=None),
    "compiled": torch.compile(
        lambda x, sink, length: soften(x, sink, length) + 0, fullgraph=True, backend="aot_eager"
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("sink", "length", "weights", "choice"),
    [
        (None, None, [0.25] * 4, "plain"),
        (None, LENGTH, [0.5, 0.5, 0, 0], "sinkless"),
        (SINK, None, [0.2] * 4, "reference"),
        (SINK, LENGTH, [1 / 3, 1 / 3, 0, 0], "reference"),
    ],
    ids=["neither", "length", "sink", "both"],
)
def test_the_effect_shows_on_every_path(
    sink: Tensor | None, length: Tensor | None, weights: list[float], choice: str, path: str
) -> None:
    torch.testing.assert_close(warm(PATHS[path], X, sink, length), torch.tensor(weights))
    assert soften.explain(X, sink, length).choice == choice


@pytest.mark.parametrize(
    ("backend", "sink", "length", "missing"),
    [
        ("plain", SINK, None, ["sink"]),
        ("plain", None, LENGTH, ["length"]),
        ("plain", SINK, LENGTH, ["sink", "length"]),
        ("sinkless", SINK, LENGTH, ["sink"]),
    ],
)
@pytest.mark.parametrize("way", ["in the call", "in a block", "compiled"])
def test_a_demanded_backend_refuses_by_the_arguments_name(
    way: str, backend: str, sink: Tensor | None, length: Tensor | None, missing: list[str]
) -> None:
    def call() -> Tensor:
        if way == "in a block":
            with backends.use(backend):
                return soften(X, sink, length)
        return soften(X, sink, length, backend=backend)

    if way == "compiled":
        call = torch.compile(call, fullgraph=True, backend="eager")
    with pytest.raises(NoBackendError) as refusal:
        call()
    found = [reason.text for reason in refusal.value.reasons if reason.backend == backend]
    assert found == [f"does not support {name}" for name in missing]


@every_backend
def test_sink_and_length_have_their_effect_on_every_kernel(
    backend: str, serve: Callable[..., Any], assert_attention: Callable[..., None], device: str
) -> None:
    inputs = CASE.build(device)
    plain = replace(inputs, attn_sink=None, topk_length=None)
    cut = replace(inputs, attn_sink=None)
    results = {
        name: Results(*serve(attend, backend, **given.arguments))
        for name, given in (("both", inputs), ("length", cut), ("neither", plain))
    }
    assert_attention(CASE, inputs, results["both"].buffers, backend)
    assert not torch.equal(results["neither"].lse, results["length"].lse)
    assert torch.equal(results["length"].lse, results["both"].lse)
    norms = {name: result.out.float().norm() for name, result in results.items()}
    assert norms["both"] < 0.999 * norms["length"]


def test_by_position_as_upstream_is_called(device: str) -> None:
    inputs = CASE.build(device)
    by_position = attend(*inputs.operands[:6], 512, inputs.attn_sink, inputs.topk_length)
    by_name = attend(**inputs.arguments)
    assert Results(*by_position).same_bits(Results(*by_name))


@pytest.mark.parametrize("backend", [None, "reference", "triton"])
def test_a_sink_without_lengths_is_refused_alike_everywhere(
    backend: str | None, device: str
) -> None:
    inputs = replace(CASE.build(device), topk_length=None)
    with pytest.raises(ContractError) as refusal:
        attend(**inputs.arguments, backend=backend)
    (fault,) = refusal.value.violations
    assert fault.rule == "attn_sink-needs-topk_length"
    assert fault.fix is not None
    scope = {"torch": torch, "q": inputs.q}
    exec(fault.fix, scope)
    attend(**replace(inputs, topk_length=scope["topk_length"]).arguments)
