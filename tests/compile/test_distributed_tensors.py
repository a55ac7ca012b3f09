"""DTensors, on a mesh of one process: sizes are those of the whole tensor, and rules on memory or
contents refuse them by name, since a kernel can be given a shard only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from jaxtyping import Float32
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import contracts
from contracts import ContractError, aligned, contract, no_overlap, same_device, unit_stride, values


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@contract("rows % 2 == 0", same_device())
def scale(
    x: Float32[Tensor, "rows columns"], by: Float32[Tensor, "columns"]
) -> Float32[Tensor, "rows columns"]:
    return x * by


def sharded(mesh: DeviceMesh, *shape: int) -> DTensor:
    return distribute_tensor(torch.ones(*shape), mesh, [Shard(0)])


def test_annotations_and_sizes_are_those_of_the_whole(mesh: DeviceMesh) -> None:
    x, by = sharded(mesh, 4, 6), sharded(mesh, 6)
    assert scale(x, by).shape == (4, 6)
    with pytest.raises(ContractError, match="rows % 2 == 0"):
        scale(sharded(mesh, 3, 6), by)
    with pytest.raises(ContractError, match="expected 6"):
        scale(x, sharded(mesh, 5))


@pytest.mark.parametrize("rule", [unit_stride("x"), aligned(16, "x"), no_overlap("x")])
def test_rules_on_memory_refuse_them_and_show_the_way(mesh: DeviceMesh, rule: object) -> None:
    def function(x: Float32[Tensor, "rows columns"]) -> None: ...

    guarded = contract(rule)(function)
    with pytest.raises(ContractError, match="a DTensor, whose elements lie in other") as caught:
        guarded(sharded(mesh, 4, 6))
    assert caught.value.violations[0].fix == "x = x.to_local()"
    guarded(sharded(mesh, 4, 6).to_local())


@pytest.mark.parametrize("mode", ["debug", "async"])
def test_contents_are_refused_by_name(mesh: DeviceMesh, mode: str) -> None:
    def function(x: Float32[Tensor, "rows columns"]) -> None: ...

    guarded = contract(values("x > 0"))(function)
    with contracts.mode(mode):
        with pytest.raises(ContractError, match="cannot be judged: x is a DTensor"):
            guarded(sharded(mesh, 4, 6))
        guarded(sharded(mesh, 4, 6).to_local())
    contracts.synchronize()


def test_an_op_refuses_them(mesh: DeviceMesh) -> None:
    import backends

    image = [sharded(mesh, 1, 3, 2, 8).bfloat16() for _ in range(3)]
    text = [sharded(mesh, 1, 2, 2, 8).bfloat16() for _ in range(3)]
    table = sharded(mesh, 3, 4)
    with pytest.raises(ContractError, match="a DTensor"):
        backends.hunyuan_qkv_rope_pack(*image, *text, table, table)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])
Matrix = Float32[Tensor, "rows columns"]


@BACKENDS
@pytest.mark.parametrize("mode", ["static", "debug", "async"])
@pytest.mark.usefixtures("fresh_compiler")
def test_in_a_graph_sizes_are_judged_as_outside(mesh: DeviceMesh, mode: str, backend: str) -> None:
    compiled = torch.compile(lambda x, by: scale(x, by) + 1, backend=backend, fullgraph=True)
    by = sharded(mesh, 6)
    with contracts.mode(mode):
        for rows in (4, 6, 8, 10):
            assert compiled(sharded(mesh, rows, 6), by).shape == (rows, 6)
            with pytest.raises(ContractError, match="rows % 2 == 0 does not hold") as caught:
                compiled(sharded(mesh, rows - 1, 6), by)
        assert "DTensor float32[9, 6] cpu" in caught.value.arguments[0]
        with pytest.raises(ContractError, match="expected 6"):
            compiled(sharded(mesh, 4, 6), sharded(mesh, 5))
    contracts.synchronize()


@BACKENDS
@pytest.mark.parametrize("rule", [unit_stride("x"), aligned(16, "x"), no_overlap("x")])
@pytest.mark.parametrize("mode", ["static", "debug"])
@pytest.mark.usefixtures("fresh_compiler")
def test_in_a_graph_rules_on_memory_refuse_them(
    mesh: DeviceMesh, mode: str, rule: object, backend: str
) -> None:
    def function(x: Matrix, y: Matrix) -> Matrix:
        return x * y

    guarded = contract(rule)(function)
    compiled = torch.compile(guarded, backend=backend, fullgraph=True)
    with contracts.mode(mode):
        with pytest.raises(ContractError, match="a DTensor, whose elements lie in other") as caught:
            compiled(sharded(mesh, 4, 6), torch.ones(4, 6))
        assert caught.value.violations[0].fix == "x = x.to_local()"
        compiled(sharded(mesh, 4, 6).to_local(), torch.ones(4, 6))


@BACKENDS
@pytest.mark.usefixtures("fresh_compiler")
def test_in_a_graph_contents_are_refused_by_name(mesh: DeviceMesh, backend: str) -> None:
    @contract(values("x > 0"))
    def positive(x: Matrix) -> Matrix:
        return x + 1

    compiled = torch.compile(positive, backend=backend, fullgraph=True)
    compiled(-sharded(mesh, 4, 6))
    for mode in ("debug", "async"):
        with contracts.mode(mode), pytest.raises(ContractError, match="judged: x is a DTensor"):
            compiled(sharded(mesh, 4, 6))
            contracts.synchronize()


@BACKENDS
@pytest.mark.usefixtures("fresh_compiler")
def test_with_graph_breaks_the_refusal_is_the_same(mesh: DeviceMesh, backend: str) -> None:
    @contract("rows % 2 == 0", aligned(16, "x"), no_overlap("x"))
    def function(x: Matrix, y: Matrix) -> Matrix:
        return x * y

    compiled = torch.compile(lambda x, y: function(x, y), backend=backend)
    with pytest.raises(ContractError, match="a DTensor, whose elements lie in other"):
        compiled(sharded(mesh, 4, 6), torch.ones(4, 6))
