"""Contracts under torch.compile: no graph more, no break, and a bad call refused wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import contracts
from contracts import ContractError, aligned, contract, no_overlap, same_device, unit_stride

BACKENDS = ["eager", "aot_eager", "inductor"]
QUICK = ["eager", "aot_eager"]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@contract(
    "0 < head_dim <= 128",
    "head_dim % 2 == 0",
    "table_len >= img_len",
    same_device(),
    unit_stride(),
)
def pack(
    img: BFloat16[Tensor, "batch img_len num_heads head_dim"],
    txt: BFloat16[Tensor, "batch txt_len num_heads head_dim"],
    cos: Float32[Tensor, "table_len head_dim/2"],
    scale: float = 1.0,
) -> BFloat16[Tensor, "batch img_len+txt_len num_heads head_dim"]:
    turned = img * cos[: img.shape[1], None].repeat_interleave(2, -1).to(img.dtype)
    return torch.cat([turned, txt], 1)


def inputs(img_len: int = 20, txt_len: int = 7, table_len: int = 100, head_dim: int = 8) -> Any:
    """No two axes of one size: Dynamo takes sizes that are equal in its first call for one."""
    return (
        torch.ones(2, img_len, 3, head_dim).bfloat16(),
        torch.ones(2, txt_len, 3, head_dim).bfloat16(),
        torch.ones(table_len, head_dim // 2),
    )


def caller(*args: Any) -> Tensor:
    return pack(*args).float().sum() + 1


def unused(*args: Any) -> Tensor:
    """Calls, and uses nothing of the result."""
    pack(*args)
    return args[0] + 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", QUICK)
def test_eight_sequence_lengths_by_three_text_lengths_are_two_graphs(
    backend: str, dynamic: bool | None
) -> None:
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(caller, backend=counter, fullgraph=True, dynamic=dynamic)
    for turn, img_len in enumerate((20, 21, 16, 33, 64, 65, 80, 97) * 3):
        given = inputs(img_len, (7, 9, 24)[turn % 3])
        assert compiled(*given) == caller(*given)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_check_adds_no_graph(dynamic: bool | None) -> None:
    counts = []
    for function in (pack, pack.__wrapped__):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic)
        for img_len in (20, 9, 16, 33):
            for head_dim in (8, 16, 32):
                compiled(*inputs(img_len, head_dim=head_dim))
        counts.append(counter.frame_count)
    assert counts[0] <= counts[1]


BAD: dict[str, Callable[[], Any]] = {
    "table too short": lambda: inputs(img_len=40, table_len=39),
    "dtype": lambda: (inputs()[0].float(), *inputs()[1:]),
    "heads": lambda: (inputs()[0][:, :, :2], *inputs()[1:]),
    "odd head": lambda: tuple(x[..., :-1] for x in inputs()),
    "stride": lambda: (torch.ones(2, 20, 3, 16).bfloat16()[..., ::2], *inputs()[1:]),
    "type": lambda: (*inputs()[:2], [1.0]),
}


@pytest.mark.parametrize("function", [caller, unused])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("backend", QUICK)
def test_a_bad_call_is_refused_on_a_warm_graph(
    backend: str, bad: str, function: Callable[..., Any]
) -> None:
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for img_len in (20, 9, 16):
        compiled(*inputs(img_len))
    with pytest.raises(ContractError) as eager:
        function(*BAD[bad]())
    with pytest.raises(ContractError) as refused:
        compiled(*BAD[bad]())
    assert refused.value.violations == eager.value.violations
    assert type(refused.value).__name__ == "ContractError"
    assert str(refused.value).startswith("pack refused this call: ")
    assert compiled(*inputs(21)).shape == function(*inputs(21)).shape


@pytest.mark.parametrize("function", [caller, unused])
def test_inductor_refuses_too(function: Callable[..., Any]) -> None:
    compiled = torch.compile(function, backend="inductor", fullgraph=True)
    assert torch.equal(compiled(*inputs()), function(*inputs()))
    assert torch.equal(compiled(*inputs(21)), function(*inputs(21)))
    with pytest.raises(ContractError, match=r"^pack refused this call: 1 rule broken"):
        compiled(*inputs(img_len=40, table_len=39))
    assert torch.equal(compiled(*inputs(33)), function(*inputs(33)))


def test_a_first_call_that_is_bad_is_refused_and_a_good_one_compiles_after_it() -> None:
    compiled = torch.compile(caller, backend="aot_eager", fullgraph=True)
    with pytest.raises(ContractError, match="pack refused"):
        compiled(*inputs(img_len=40, table_len=39))
    assert compiled(*inputs()) == caller(*inputs())


def test_with_graph_breaks_the_error_is_the_same() -> None:
    def breaking(*args: Any) -> Tensor:
        x = args[0] + 1
        torch._dynamo.graph_break()
        return pack(x, *args[1:])

    compiled = torch.compile(breaking, backend="eager")
    compiled(*inputs())
    with pytest.raises(ContractError, match="table_len >= img_len"):
        compiled(*inputs(img_len=40, table_len=39))


def test_the_error_can_be_caught_inside_the_graph_breaking_caller() -> None:
    @torch.compile(backend="eager")
    def forgiving(*args: Any) -> Any:
        try:
            return pack(*args)
        except ContractError:
            return None

    assert forgiving(*inputs(img_len=40, table_len=39)) is None


def test_nothing_breaks_the_graph() -> None:
    torch.compile(caller, backend="eager", fullgraph=True)(*inputs())
    assert not counters["graph_break"]


def test_what_the_caller_left_dynamic_stays_so() -> None:
    given = inputs()
    for tensor, axis in ((given[0], 1), (given[1], 1), (given[2], 0)):
        torch._dynamo.mark_dynamic(tensor, axis)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(caller, backend=counter, fullgraph=True)
    compiled(*given)
    for img_len, txt_len, table_len in ((9, 4, 50), (30, 11, 64)):
        compiled(*inputs(img_len, txt_len, table_len))
    assert counter.frame_count == 1


def test_head_dim_and_its_half_may_be_dynamic_together() -> None:
    given = inputs(head_dim=16)
    for tensor, axis in ((given[0], 3), (given[1], 3), (given[2], 1)):
        torch._dynamo.maybe_mark_dynamic(tensor, axis)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(pack, backend=counter, fullgraph=True, dynamic=True)
    for head_dim in (16, 32, 48):
        compiled(*inputs(head_dim=head_dim))
    assert counter.frame_count <= 2
    with pytest.raises(ContractError):
        compiled(*inputs(head_dim=16)[:2], torch.ones(100, 9))


@contract(aligned(16, "x"), no_overlap("out"))
def into(x: Float32[Tensor, "n"], out: Float32[Tensor, "n"]) -> None:
    out.copy_(2 * x)


def into_and_on(x: Tensor, out: Tensor) -> Tensor:
    into(x, out)
    return x + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_rules_on_addresses_act_when_the_graph_runs(backend: str) -> None:
    compiled = torch.compile(into_and_on, backend=backend, fullgraph=True)
    x, out = torch.arange(8.0), torch.zeros(8)
    compiled(x, out)
    assert out.tolist() == (2 * x).tolist()
    buffer = torch.arange(12.0)
    with pytest.raises(ContractError, match="starts 4 bytes past a 16-byte boundary"):
        compiled(buffer[1:9], out)
    with pytest.raises(ContractError, match="out and x overlap"):
        compiled(buffer[:8], buffer[4:12])
    assert buffer.tolist() == torch.arange(12.0).tolist()
    compiled(buffer[4:12], out)
    assert out.tolist() == (2 * buffer[4:12]).tolist()


@pytest.mark.parametrize("backend", QUICK)
def test_rules_on_addresses_act_where_nothing_uses_the_call(backend: str) -> None:
    @contract(aligned(16, "x"))
    def look(x: Float32[Tensor, "n"]) -> Tensor:
        return x + 1

    def forgetful(x: Tensor) -> Tensor:
        look(x)
        return 3 * x

    compiled = torch.compile(forgetful, backend=backend, fullgraph=True)
    compiled(torch.zeros(8))
    with pytest.raises(ContractError, match="starts 4 bytes past"):
        compiled(torch.zeros(12)[1:9])


def test_rules_on_addresses_cost_nothing_where_their_arguments_are_left_out() -> None:
    @contract(no_overlap("out", "more"))
    def optional(
        x: Float32[Tensor, "n"],
        out: Float32[Tensor, "n"] | None = None,
        more: Float32[Tensor, "n"] | None = None,
    ) -> Tensor:
        return x + 1 if out is None else x + out

    graphs: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph.code)
        return graph

    compiled = torch.compile(optional, backend=keep, fullgraph=True)
    x = torch.zeros(8)
    compiled(x)
    assert "judge" not in graphs[-1]
    compiled(x, torch.zeros(8))
    assert "judge" in graphs[-1]
    with pytest.raises(ContractError, match="out and x overlap"):
        compiled(x, x)


def test_switching_the_mode_compiles_anew_and_back_it_does_not() -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(caller, backend=counter, fullgraph=True)
    compiled(*inputs())
    with contracts.mode("off"):
        compiled(*inputs())
        compiled(*inputs())
    assert counter.frame_count == 2
    compiled(*inputs())
    with contracts.mode("off"):
        compiled(*inputs())
    assert counter.frame_count == 2


def test_off_checks_nothing_in_a_graph() -> None:
    compiled = torch.compile(caller, backend="eager", fullgraph=True)
    with contracts.mode("off"):
        compiled(*inputs()[:2], torch.ones(100, 4).bfloat16())
    with pytest.raises(ContractError):
        compiled(*inputs()[:2], torch.ones(100, 4).bfloat16())


def test_methods_modules_and_keywords() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 3))

        @contract("n > 1")
        def forward(
            self, x: Float32[Tensor, "n 4"], *, scale: float = 1.0
        ) -> Float32[Tensor, "n 3"]:
            return x @ self.weight * scale

    layer = Layer()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(5, 4), scale=2.0).sum().backward()
    assert layer.weight.grad is not None
    with pytest.raises(ContractError, match="n > 1"):
        compiled(torch.ones(1, 4))
    with pytest.raises(ContractError, match="expected 4"):
        compiled(torch.ones(5, 3), scale=2.0)


def test_containers_optionals_and_unions() -> None:
    @contract
    def gather(
        xs: list[Float32[Tensor, "n"]],
        named: dict[str, Float32[Tensor, "n"]] | None = None,
        either: Float32[Tensor, "n"] | int = 0,
    ) -> Tensor:
        return torch.stack(xs).sum()

    compiled = torch.compile(gather, backend="eager", fullgraph=True)
    ones = torch.ones(4)
    compiled([ones, ones])
    compiled([ones], {"a": ones}, ones)
    compiled([ones], None, 3)
    for bad in ([ones, ones[1:]],), ([ones], {"a": ones[1:]}), ([ones], None, ones[1:]):
        with pytest.raises(ContractError) as eager:
            gather(*bad)
        with pytest.raises(ContractError) as traced:
            compiled(*bad)
        assert traced.value.violations == eager.value.violations


def test_sizes_given_as_numbers_may_be_symbolic() -> None:
    @contract("0 < rows <= n")
    def head(x: Float32[Tensor, "n"], rows: int) -> Float32[Tensor, "rows"]:
        return x[:rows]

    compiled = torch.compile(lambda x: head(x, x.shape[0] // 2), backend="eager", dynamic=True)
    assert compiled(torch.ones(8)).shape == (4,)
    assert compiled(torch.ones(11)).shape == (5,)
    with pytest.raises(ContractError, match="0 < rows <= n does not hold"):
        compiled(torch.ones(1))
