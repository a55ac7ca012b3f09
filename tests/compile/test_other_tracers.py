"""What traces a graph without Dynamo: torch.export, make_fx, AOTAutograd and torch.jit."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, nop
from jaxtyping import Float32
from torch import Tensor
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

import contracts
from contracts import ContractError, aligned, contiguous, contract, no_overlap, unit_stride, values

Row = Float32[Tensor, "n"]
RULES = ("n % 2 == 0", aligned(16, "x"), no_overlap("x"), values("x >= 0"))


@contract(*RULES)
def scale(x: Row, y: Row) -> Row:
    return x * y


@contract(*RULES)
def scale_many(x: Row, y: Row, z: Row, w: Row) -> Row:
    return x * y * z * w


@contract(*RULES, mode="debug")
def always_debug(x: Row, y: Row) -> Row:
    return x * y


class Call(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y) + 1


def four(x: Tensor, y: Tensor) -> Tensor:
    return scale_many(x, y, y + 1, y + 2)


def exported(function: Callable[..., Tensor], *, strict: bool = False) -> Any:
    return export(Call(function), (torch.ones(4), torch.ones(4)), strict=strict)


def saved_and_loaded(function: Callable[..., Tensor]) -> Any:
    file = io.BytesIO()
    torch.export.save(exported(function).run_decompositions(), file)
    file.seek(0)
    return torch.export.load(file).module()


TRACERS: dict[str, Callable[[Callable[..., Tensor]], Any]] = {
    "export": lambda function: exported(function).module(),
    "strict export": lambda function: exported(function, strict=True).module(),
    "export, saved": saved_and_loaded,
    **{
        f"make_fx, {kind}": lambda function, kind=kind: make_fx(function, tracing_mode=kind)(
            torch.ones(4), torch.ones(4)
        )
        for kind in ("real", "fake", "symbolic")
    },
    "make_fx, before dispatch": lambda function: make_fx(
        function, tracing_mode="fake", pre_dispatch=True
    )(torch.ones(4), torch.ones(4)),
    "aot_function": lambda function: aot_function(function, nop),
}


def broken(program: Any) -> list[str]:
    """The rule that each of four calls breaks: none, alignment, overlap, contents."""
    buffer, found = torch.ones(100), []
    calls = [buffer[:4], buffer[8:12]], [buffer[1:5], buffer[8:12]], [buffer[:4], buffer[2:6]]
    for call in (*calls, [-torch.ones(4), torch.ones(4)]):
        try:
            program(*call)
            contracts.synchronize()
            found.append("")
        except ContractError as error:
            found.append(error.violations[0].rule)
    return found


@pytest.mark.parametrize("mode", ["static", "debug", "async"])
@pytest.mark.parametrize("function", [scale, four], ids=["two tensors", "four tensors"])
@pytest.mark.parametrize("tracer", TRACERS.values(), ids=TRACERS)
def test_addresses_and_contents_are_judged_when_the_graph_runs(
    tracer: Callable[..., Any], function: Callable[..., Tensor], mode: str
) -> None:
    for _ in range(3):  # what the check learns of usual calls says nothing of traced ones
        function(torch.ones(4), torch.ones(4))
    with contracts.mode(mode):
        program = tracer(function)
        program(torch.ones(4), torch.ones(4))  # some trace at the first call
    contents = "" if mode == "static" else "x>=0"
    assert broken(program) == ["", "aligned(16,x)", "no_overlap(x)", contents]


@pytest.mark.parametrize("tracer", TRACERS.values(), ids=TRACERS)
def test_a_contract_with_a_mode_of_its_own(tracer: Callable[..., Any]) -> None:
    program = tracer(always_debug)
    assert broken(program) == ["", "aligned(16,x)", "no_overlap(x)", "x>=0"]


@pytest.mark.parametrize("mode", ["debug", "async"])
@pytest.mark.parametrize("strict", [True, False])
def test_sizes_that_stay_open_are_judged_when_the_program_runs(strict: bool, mode: str) -> None:
    half = Dim("half", min=2, max=64)
    shapes = ({0: 2 * half}, {0: 2 * half})
    with contracts.mode(mode):
        arguments = (torch.ones(8), torch.ones(8))
        program = export(Call(scale), arguments, dynamic_shapes=shapes, strict=strict).module()
    program(torch.ones(12), torch.ones(12))
    with pytest.raises(ContractError, match="n % 2 == 0 does not hold"):
        program(torch.ones(11), torch.ones(11))


@pytest.mark.parametrize("mode", ["static", "debug", "async"])
@pytest.mark.parametrize("tracer", TRACERS.values(), ids=TRACERS)
def test_a_bad_call_is_refused_while_it_is_traced(tracer: Callable[..., Any], mode: str) -> None:
    def odd(x: Tensor, y: Tensor) -> Tensor:
        return scale(x[1:], y[1:])

    with contracts.mode(mode), pytest.raises(ContractError, match="n % 2 == 0 does not hold"):
        tracer(odd)(torch.ones(4), torch.ones(4))


@pytest.mark.parametrize("strict", [True, False])
def test_debug_judges_results_of_an_exported_program(strict: bool) -> None:
    @contract(mode="debug")
    def rest(x: Row, y: Row) -> Float32[Tensor, "m"]:
        return x[x > 0]

    @contract(mode="debug")
    def wrong(x: Row, y: Row) -> Row:
        return x[:-1]

    exported(rest, strict=strict).module()(torch.ones(4), torch.ones(4))
    with pytest.raises(ContractError, match=r"return axis 0 \(n\) is 3, expected 4"):
        exported(wrong, strict=strict).module()(torch.ones(4), torch.ones(4))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.grad(lambda x, y: f(x, y).sum()),
        lambda f: lambda x, y: torch.func.vjp(f, x, y)[0],
        torch.func.functionalize,
    ],
    ids=["grad", "vjp", "functionalize"],
)
def test_transforms_inside_make_fx(transform: Callable[..., Any]) -> None:
    program = make_fx(transform(scale))(torch.ones(4), torch.ones(4))
    assert broken(program) == ["", "aligned(16,x)", "no_overlap(x)", ""]


def test_vmap_inside_make_fx_excuses_addresses() -> None:
    program = make_fx(torch.vmap(scale))(torch.ones(3, 4), torch.ones(3, 4))
    program(torch.ones(13)[1:].view(3, 4), torch.ones(3, 4))
    with contracts.mode("debug"), pytest.raises(ContractError, match="n % 2 == 0"):
        make_fx(torch.vmap(scale))(torch.ones(3, 5), torch.ones(3, 5))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_jit_keeps_no_rule() -> None:
    """A trace of torch.jit holds what the function computed, and nothing of what was checked."""
    program = torch.jit.trace(lambda x, y: scale(x, y), (torch.ones(4), torch.ones(4)))
    assert broken(program) == [""] * 4
    with pytest.raises(ContractError, match="n % 2 == 0"):
        torch.jit.trace(lambda x, y: scale(x, y), (torch.ones(5), torch.ones(5)))


@pytest.mark.parametrize("tracer", TRACERS.values(), ids=TRACERS)
def test_layouts_are_judged_while_they_are_traced(tracer: Callable[..., Any]) -> None:
    @contract("n % 2 == 0", contiguous("x"), unit_stride())
    def dense(x: Row, y: Row) -> Row:
        return x * y

    def stepped(x: Tensor, y: Tensor) -> Tensor:
        return dense(x[::2], y[:2])

    program = tracer(dense)
    assert program(torch.ones(4), torch.ones(4)) is not None
    with pytest.raises(ContractError, match="x is not contiguous"):
        tracer(stepped)(torch.ones(4), torch.ones(4))


def test_a_default_factory_leaves_no_rule_out() -> None:
    @contract(aligned(16, "x"))
    @dataclasses.dataclass
    class Batch:
        x: Row
        rest: list[int] = dataclasses.field(default_factory=list)

    graph = make_fx(lambda x: Batch(x).x * 2)(torch.ones(8))
    assert graph(torch.ones(8)).tolist() == [2] * 8
    with pytest.raises(ContractError, match="16"):
        graph(torch.ones(9)[1:])
