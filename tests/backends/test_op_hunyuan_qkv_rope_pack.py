"""`backends.hunyuan_qkv_rope_pack` as a user meets it: values, gradients, graphs, fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import backends
from backends import NoBackendError, assume_target
from backends.ops.hunyuan_qkv_rope_pack import op as assembled
from backends.ops.hunyuan_qkv_rope_pack.cases import SMALL, Case
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference
from contracts import ContractError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("img_q", "img_k", "img_v", "txt_q", "txt_k", "txt_v", "cos", "sin")
BACKENDS = ("reference", "triton")
LAYOUTS = [
    case
    for case in SMALL
    if case.name
    in (
        "separate",
        "transposed",
        "slice-of-wider-heads",
        "expanded-batch",
        "no-text",
        "no-image",
        "no-batch",
        "nothing",
        "one-of-everything",
        "longer-tables",
    )
]

OPCHECKED = ("separate", "transposed", "slice-of-wider-heads", "no-text", "nothing")

pack = backends.hunyuan_qkv_rope_pack
every_layout = pytest.mark.parametrize("case", LAYOUTS, ids=lambda case: case.name)
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def inputs(case: Case = SMALL[0]) -> tuple[Tensor, ...]:
    return case.build(DEVICE).tensors


def same_bits(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


@every_backend
@every_layout
def test_three_views_of_one_buffer_that_hold_what_the_reference_says(
    case: Case, backend: str
) -> None:
    tensors = inputs(case)
    planes = pack(*tensors, backend=backend)
    expected = pack_reference(*tensors)
    shape = (case.batch, case.img_len + case.txt_len, case.num_heads, case.head_dim)
    for index, plane in enumerate(planes):
        assert plane.shape == shape
        assert plane.is_contiguous()
        assert same_bits(plane, expected[index])
    if planes[0].numel():
        step = planes[0].numel() * 2
        assert [plane.data_ptr() - planes[0].data_ptr() for plane in planes] == [0, step, 2 * step]
    inner = {x.untyped_storage().data_ptr() for x in tensors if x.numel()}
    assert planes[0].untyped_storage().data_ptr() not in inner


def test_a_cpu_tensor_goes_to_the_reference_by_default() -> None:
    tensors = tuple(x.cpu() for x in inputs())
    assert pack.explain(*tensors).choice == "reference"
    assert pack.backends == ("triton", "reference")


@pytest.mark.parametrize("sm", [75, 80, 90, 120])
def test_triton_serves_ampere_and_later(sm: int) -> None:
    with FakeTensorMode(), assume_target("cuda", sm=sm):
        tensors = [torch.empty_like(x, device="cuda") for x in SMALL[0].build("cpu").tensors]
        assert pack.explain(*tensors).choice == ("triton" if sm >= 80 else "reference")


# -- gradients


def leaves(case: Case = SMALL[0]) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in inputs(case)]


@every_backend
@every_layout
def test_gradients_of_every_input_are_those_of_the_reference(case: Case, backend: str) -> None:
    mine, theirs = leaves(case), leaves(case)
    packed = pack_reference(*theirs)
    weight = torch.randn_like(packed)
    (packed * weight).sum().backward()
    torch.autograd.backward(pack(*mine, backend=backend), weight.unbind(0))
    for name, x, y in zip(NAMES, mine, theirs, strict=True):
        assert x.grad is not None, name
        assert y.grad is not None, name
        if name in ("cos", "sin"):  # a sum, in float32, in an order of its own
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)
        else:
            assert same_bits(x.grad, y.grad), name


@every_backend
@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_of_one_input_is_never_cut(name: str, backend: str) -> None:
    tensors = list(inputs())
    position = NAMES.index(name)
    tensors[position] = tensors[position].clone().requires_grad_()
    q, k, v = pack(*tensors, backend=backend)
    (q.float().square() + k.float().square() + v.float()).sum().backward()
    gradient = tensors[position].grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


@every_backend
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_no_graph_is_kept_where_none_is_wanted(off: Callable[[], Any], backend: str) -> None:
    tensors = leaves()
    with off():
        assert not any(x.requires_grad for x in pack(*tensors, backend=backend))


def test_second_derivatives() -> None:
    tensors = leaves()
    q, _, _ = pack(*tensors, backend="triton")
    (gradient,) = torch.autograd.grad(q.float().pow(3).sum(), tensors[0], create_graph=True)
    (second,) = torch.autograd.grad(gradient.float().sum(), tensors[0])
    assert second.isfinite().all()
    assert second.abs().sum() > 0


def test_vmap_and_grad_transforms_are_served_by_the_reference() -> None:
    tensors = inputs()
    batched = [torch.stack((x, x)) for x in tensors]
    for plane, expected in zip(torch.vmap(pack)(*batched), pack(*tensors), strict=True):
        assert same_bits(plane[1], expected)
    gradient = torch.func.grad(lambda x: pack(x, *tensors[1:])[0].float().sum())(tensors[0])
    assert gradient.shape == tensors[0].shape

    def demanding(*args: Tensor) -> Any:
        return pack(*args, backend="triton")

    with pytest.raises(NoBackendError, match="triton: a functorch transform or forward-mode AD"):
        torch.vmap(demanding)(*batched)


def test_a_tangent_is_never_cut() -> None:
    tensors = inputs()
    fwd = torch.autograd.forward_ad
    with fwd.dual_level():
        dual = fwd.make_dual(tensors[2], torch.ones_like(tensors[2]))
        _, _, v = pack(*tensors[:2], dual, *tensors[3:])
        assert fwd.unpack_dual(v).tangent is not None
        with pytest.raises(NoBackendError, match="forward-mode AD"):
            pack(*tensors, backend="triton")


# -- graphs


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@every_backend
def test_compiled_in_one_graph(backend: str, compiler: str, dynamic: bool) -> None:
    def call(*tensors: Tensor) -> Any:
        q, k, v = pack(*tensors, backend=backend)
        return q + 1, k, v

    compiled = torch.compile(call, fullgraph=True, backend=compiler, dynamic=dynamic)
    for case in LAYOUTS[:2]:
        tensors = inputs(case)
        for x, y in zip(compiled(*tensors), call(*tensors), strict=True):
            assert same_bits(x, y)
            assert x.stride() == y.stride()


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@every_backend
def test_gradients_through_a_compiled_graph(backend: str, compiler: str) -> None:
    mine, theirs = leaves(), leaves()
    call = torch.compile(lambda *x: pack(*x, backend=backend), fullgraph=True, backend=compiler)
    torch.autograd.backward(call(*mine), [torch.ones_like(x) for x in pack(*mine)])
    torch.autograd.backward(pack(*theirs), [torch.ones_like(x) for x in pack(*theirs)])
    for x, y in zip(mine, theirs, strict=True):
        assert x.grad is not None
        assert y.grad is not None
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)


def test_a_sweep_of_lengths_makes_two_graphs() -> None:
    """One for the first sizes, and one for all others once torch.compile has seen them change."""
    graphs = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(pack, fullgraph=True, backend=count)
    for step, img_len in enumerate(range(3, 11)):
        tensors = inputs(Case("", 2, img_len, (2, 4, 7)[step % 3], 2, 16))
        for x, y in zip(compiled(*tensors), pack(*tensors), strict=True):
            assert same_bits(x, y)
    assert len(graphs) == 2


def test_a_graph_follows_the_demand_of_its_thread() -> None:
    chosen = []

    def spy(graph: torch.fx.GraphModule, _: Any) -> Any:
        chosen.extend(node.args[8] for node in graph.graph.nodes if len(node.args) == 10)
        return graph

    compiled = torch.compile(pack, fullgraph=True, backend=spy)
    tensors = inputs()
    automatic = "triton" if DEVICE == "cuda" else "reference"
    compiled(*tensors)
    with backends.use("triton"):
        compiled(*tensors)
    with backends.use(hunyuan_qkv_rope_pack="reference"):
        compiled(*tensors)
    compiled(*tensors)
    assert chosen == [automatic, "triton", "reference"]


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_wrong_call_is_refused_on_a_warm_graph(compiler: str) -> None:
    compiled = torch.compile(pack, fullgraph=True, backend=compiler)
    *qkv, cos, sin = inputs()
    compiled(*qkv, cos, sin)
    with pytest.raises(ContractError, match="table-covers-image"):
        compiled(*qkv, cos[:3], sin[:3])
    compiled(*qkv, cos, sin)


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_transforms_within_a_graph(compiler: str) -> None:
    tensors = inputs()

    def gradient(x: Tensor, *others: Tensor) -> Tensor:
        return torch.func.grad(lambda x: pack(x, *others)[0].float().square().sum())(x)

    compiled = torch.compile(gradient, fullgraph=True, backend=compiler)
    assert same_bits(compiled(*tensors), gradient(*tensors))
    batched = [torch.stack((x, x)) for x in tensors]
    mapped = torch.compile(torch.vmap(pack), fullgraph=True, backend=compiler)
    assert same_bits(mapped(*batched)[0][1], pack(*tensors)[0])


def test_a_demand_that_cannot_be_met_is_refused_in_a_graph() -> None:
    compiled = torch.compile(
        lambda *x: pack(*x, backend="cutlass"), fullgraph=True, backend="eager"
    )
    with pytest.raises(NoBackendError, match="it has triton, reference"):
        compiled(*inputs())


# -- the library op, and fakes


@every_backend
@pytest.mark.parametrize(
    "case",
    [case for case in LAYOUTS if case.name in OPCHECKED],
    ids=lambda case: case.name,
)
def test_the_library_op_passes_opcheck(case: Case, backend: str) -> None:
    tensors = tuple(x.detach().requires_grad_(i != 6) for i, x in enumerate(inputs(case)))
    torch.library.opcheck(pack.inner, (*tensors, backend, True))


@every_backend
@every_layout
def test_fakes_have_the_layout_of_real_results(case: Case, backend: str) -> None:
    tensors = inputs(case)
    real = pack(*tensors, backend=backend)
    with FakeTensorMode() as mode:
        fake = pack(*(mode.from_tensor(x) for x in tensors), backend=backend)
    for x, y in zip(fake, real, strict=True):
        assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
        assert x.storage_offset() == y.storage_offset()


def test_meta_tensors_give_meta_results() -> None:
    planes = pack(*(x.to("meta") for x in inputs()))
    assert [plane.device.type for plane in planes] == ["meta"] * 3


def test_exported() -> None:
    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return pack(*tensors)

    tensors = inputs()
    for strict in (True, False):
        program = torch.export.export(Module(), tensors, strict=strict)
        for x, y in zip(program.module()(*tensors), pack(*tensors), strict=True):
            assert same_bits(x, y)


def test_parameters_are_plain_tensors() -> None:
    tensors = list(inputs())
    tensors[0] = torch.nn.Parameter(tensors[0])
    assert same_bits(pack(*tensors, backend="triton")[0], pack(*inputs())[0])


def test_a_subclass_is_told_of_the_op() -> None:
    seen: list[Any] = []

    class Told(Tensor):
        @staticmethod
        def __new__(cls, inner: Tensor) -> Any:
            told = Tensor._make_subclass(cls, inner)  # shares its memory
            told.inner = inner
            return told

        @classmethod
        def __torch_dispatch__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            unwrapped = [x.inner if isinstance(x, cls) else x for x in args]
            return function(*unwrapped, **(kwargs or {}))

    tensors = list(inputs())
    told = [Told(tensors[0]), *tensors[1:]]
    with torch.no_grad():
        q, _, _ = pack(*told, backend="triton")
    assert seen == [pack.inner]
    assert same_bits(q, pack(*tensors)[0])


def test_a_subclass_without_memory_is_refused_by_name() -> None:
    class Wrapper(Tensor):
        @staticmethod
        def __new__(cls, inner: Tensor) -> Any:
            return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, function: Any, *call: Any) -> Any:
            raise AssertionError(f"{function} was reached")

    first, *rest = inputs()
    with pytest.raises(ContractError, match="img_q is a Wrapper without memory of its own"):
        pack(Wrapper(first), *rest)


def test_table_gradients_sum_over_what_shares_an_angle() -> None:
    x = torch.tensor([[[[1.0, 2.0]]], [[[3.0, 4.0]]]])
    grad = torch.tensor([[[[1.0, 10.0]]], [[[1.0, 10.0]]]])
    cos = torch.zeros(3, 1)
    grad_cos, grad_sin = assembled.table_gradients([x], (grad,), cos)
    assert grad_cos.tolist() == [[1 + 20 + 3 + 40], [0], [0]]
    assert grad_sin.tolist() == [[10 - 2 + 30 - 4], [0], [0]]
