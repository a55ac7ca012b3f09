"""Fake and meta tensors, torch.export, functorch transforms, subclasses, and sizes nobody knows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from jaxtyping import BFloat16, Float, Float32, Int32
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export

import contracts
from contracts import ContractError, aligned, contract, no_overlap, unit_stride


@contract("head_dim % 2 == 0", "table_len >= seq_len", unit_stride())
def rotate(
    x: Float32[Tensor, "seq_len num_heads head_dim"], cos: Float32[Tensor, "table_len head_dim/2"]
) -> Float32[Tensor, "seq_len num_heads head_dim"]:
    return x * cos[: x.shape[0], None].repeat_interleave(2, -1)


def inputs(seq_len: int = 6, table_len: int = 40, head_dim: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(seq_len, 3, head_dim), torch.randn(table_len, head_dim // 2)


class Rotate(torch.nn.Module):
    def forward(self, x: Tensor, cos: Tensor) -> Tensor:
        return rotate(x, cos) + 1


class Into(torch.nn.Module):
    @contract(aligned(16, "x"), no_overlap("out"))
    def into(self, x: Float32[Tensor, "n"], out: Float32[Tensor, "n"]) -> None:
        out.copy_(2 * x)

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        self.into(x, out)
        return x + 1


@pytest.mark.parametrize("device", ["meta", "cpu", "cuda", "cuda:1"])
def test_metadata_is_judged_where_there_is_no_memory(device: str) -> None:
    mode = FakeTensorMode()

    def imagined(x: Tensor) -> Tensor:
        if device == "meta":
            return x.to("meta")
        with mode:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)

    x, cos = map(imagined, inputs())
    assert rotate.contract.accepts(x, cos)
    assert not rotate.contract.accepts(x, imagined(inputs(table_len=5)[1]))
    assert not rotate.contract.accepts(imagined(inputs(head_dim=7)[0]), cos)
    assert not rotate.contract.accepts(x.transpose(0, 2), cos)
    with pytest.raises(ContractError, match="dtype"):
        rotate.contract.check(x.double(), cos)


def test_fake_tensors_have_no_address_to_judge() -> None:
    with FakeTensorMode():
        buffer = torch.empty(12)
        Into()(buffer[1:9], torch.empty(8))
        Into()(buffer[:8], buffer[4:12])


@pytest.mark.parametrize("strict", [True, False])
def test_export_with_dynamic_sizes(strict: bool) -> None:
    shapes = {"x": {0: Dim("seq_len", min=2, max=40)}, "cos": None}
    program = export(Rotate(), inputs(), dynamic_shapes=shapes, strict=strict)
    for seq_len in (2, 6, 40):
        given = inputs(seq_len)
        torch.testing.assert_close(program.module()(*given), Rotate()(*given))


@pytest.mark.parametrize("strict", [True, False])
def test_export_with_a_derived_size(strict: bool) -> None:
    half = Dim("half", min=2, max=64)
    shapes = {"x": {2: 2 * half}, "cos": {1: half}}
    program = export(Rotate(), inputs(), dynamic_shapes=shapes, strict=strict)
    given = inputs(head_dim=12)
    torch.testing.assert_close(program.module()(*given), Rotate()(*given))


@pytest.mark.parametrize("strict", [True, False])
def test_export_refuses_a_bad_call(strict: bool) -> None:
    with pytest.raises(ContractError, match="table_len >= seq_len does not hold"):
        export(Rotate(), inputs(table_len=5), strict=strict)


@pytest.mark.parametrize("strict", [True, False])
def test_rules_on_addresses_act_when_an_exported_program_runs(strict: bool) -> None:
    program = export(Into(), (torch.zeros(8), torch.zeros(8)), strict=strict).module()
    out = torch.zeros(8)
    program(torch.arange(8.0), out)
    assert out.tolist() == list(range(0, 16, 2))
    buffer = torch.zeros(12)
    with pytest.raises(ContractError, match="starts 4 bytes past a 16-byte boundary"):
        program(buffer[1:9], out)
    with pytest.raises(ContractError, match="overlap"):
        program(buffer[:8], buffer[4:])


def test_a_program_of_a_contract_that_is_gone_says_what_to_import() -> None:
    from contracts.tracing import judge_of

    with pytest.raises(RuntimeError, match="import some.module before running it"):
        judge_of("some.module:function")


def test_vmap_hides_the_axis_it_maps() -> None:
    x, cos = torch.randn(5, 6, 3, 8), torch.randn(40, 4)
    mapped = torch.vmap(rotate, (0, None))(x, cos)
    torch.testing.assert_close(mapped[2], rotate(x[2], cos))
    with pytest.raises(ContractError, match="rank|axes"):
        torch.vmap(rotate, (0, None))(x[0], cos)


def test_gradients_and_tangents_flow() -> None:
    x, cos = inputs()
    grad = torch.func.grad(lambda x: rotate(x, cos).sum())(x)
    torch.testing.assert_close(grad, cos[:6, None].repeat_interleave(2, -1).expand_as(x))
    _, tangent = torch.func.jvp(lambda x: rotate(x, cos), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, grad)
    jacobian = torch.func.jacrev(lambda x: rotate(x, cos).sum((1, 2)))(x)
    assert jacobian.shape == (6, 6, 3, 8)
    hessian = torch.func.hessian(lambda x: rotate(x, cos).square().sum())(x[:1])
    assert hessian.shape == (1, 3, 8, 1, 3, 8)
    with pytest.raises(ContractError, match="table_len >= seq_len"):
        torch.func.grad(lambda x: rotate(x, cos[:3]).sum())(x)


def test_functional_call_and_ensembles() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 3))

        @contract
        def forward(self, x: Float32[Tensor, "n 4"]) -> Float32[Tensor, "n 3"]:
            return self.scale(x, self.weight)

        @contract
        def scale(
            self, x: Float32[Tensor, "n m"], weight: Float32[Tensor, "m k"]
        ) -> Float32[Tensor, "n k"]:
            return x @ weight

    layers = [Layer() for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(layers)

    def call(own: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(layers[0], own, (x,))

    result = torch.vmap(call, (0, None))(parameters, torch.ones(5, 4))
    assert result.shape == (3, 5, 3)
    assert copy.deepcopy(layers[0])(torch.ones(5, 4)).shape == (5, 3)


class Logged(Tensor):
    """A subclass with a say in every operation."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_and_parameters_are_tensors() -> None:
    x, cos = inputs()
    assert type(rotate(x.as_subclass(Logged), cos)) is Logged
    rotate(torch.nn.Parameter(x), torch.nn.Buffer(cos))
    with pytest.raises(ContractError):
        rotate(x.as_subclass(Logged), cos[:3])


def test_wrapper_subclasses_have_shapes_and_no_memory() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    @contract("n > 2")
    def twice(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return 2 * x

    def two(n: int) -> TwoTensor:
        return TwoTensor(torch.ones(n), torch.zeros(n))

    assert type(twice(two(3))) is TwoTensor
    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True)
    assert type(compiled(two(3))) is TwoTensor
    for call in (twice, compiled):
        with pytest.raises(ContractError, match="n > 2"):
            call(two(2))
    dense = contract(unit_stride("x"))(strided)
    with pytest.raises(ContractError, match="a TwoTensor, whose elements lie in other tensors"):
        dense(two(3))
    taken_apart = torch.compile(dense, backend="aot_eager", fullgraph=True)(two(3))
    assert taken_apart.a.tolist() == [2, 2, 2]


def strided(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return x + 1


@contract("n % 2 == 0")
def double(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return 2 * x


def some(count: int) -> Tensor:
    return torch.tensor([1.0] * count + [-1.0] * (8 - count))


def test_torch_asks_for_what_a_size_that_only_the_run_knows_has_to_be() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def caller(x: Tensor) -> Tensor:
        return double(x[x > 0]).sum()

    patched = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with patched, pytest.raises(Exception, match=r"torch\._check.*Mod\(u0, 2\)"):
        caller(some(4))


def test_torch_check_tells_the_contract_what_a_size_is() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def caller(x: Tensor) -> Tensor:
        y = x[x > 0]
        torch._check(y.shape[0] % 2 == 0)
        return double(y).sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert caller(some(4)).item() == 8
        assert caller(some(6)).item() == 12
        with pytest.raises(RuntimeError, match=r"Mod\(u0, 2\)"):
            caller(some(3))


def test_debug_judges_a_size_that_only_the_run_knows() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def caller(x: Tensor) -> Tensor:
        return double(x[x > 0]).sum()

    patched = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with patched, contracts.mode("debug"):
        assert caller(some(4)).item() == 8
        with pytest.raises(ContractError, match="n % 2 == 0 does not hold"):
            caller(some(3))


def test_numbers_of_a_fake_shape_may_be_arguments() -> None:
    @contract("0 < rows <= n")
    def head(x: Float[Tensor, "n"], rows: int) -> Float[Tensor, "rows"]:
        return x[:rows]

    class Head(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return head(x, x.shape[0] - 1)

    shapes = {"x": {0: Dim("n", min=4, max=64)}}
    for strict in (True, False):
        program = export(Head(), (torch.ones(8),), dynamic_shapes=shapes, strict=strict).module()
        assert program(torch.ones(30)).shape == (29,)


def test_outputs_are_imagined_from_imagined_arguments() -> None:
    with FakeTensorMode():
        x = torch.empty(6, 3, 8, device="cuda")
        result = rotate.contract.empty_outputs(x, torch.empty(40, 4, device="cuda"))
    assert (result.shape, result.device.type, result.dtype) == ((6, 3, 8), "cuda", torch.float32)


def test_debug_and_async_ask_nothing_of_imagined_contents() -> None:
    @contract(contracts.values("0 <= slots < n"))
    def pick(x: BFloat16[Tensor, "n"], slots: Int32[Tensor, "m"]) -> BFloat16[Tensor, "m"]:
        return x[slots]

    for mode in ("debug", "async"):
        with contracts.mode(mode), FakeTensorMode():
            pick(torch.empty(4).bfloat16(), torch.empty(3, dtype=torch.int32))
    contracts.synchronize()
