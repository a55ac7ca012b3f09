"""A gradient is never cut in silence: it flows, or the call is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import backends
import contracts
from contracts import (
    ContractError,
    contiguous,
    contract,
    no_grad,
    same_device,
    unit_stride,
    when,
)

MODES = ["static", "debug", "async", "off"]


def pack_inputs() -> dict[str, Tensor]:
    torch.manual_seed(5)
    names = ("img_q", "img_k", "img_v", "txt_q", "txt_k", "txt_v")
    lengths = (6, 6, 6, 2, 2, 2)
    given = {n: torch.randn(2, s, 3, 8).bfloat16() for n, s in zip(names, lengths, strict=True)}
    angle = torch.randn(6, 4)
    return {**given, "cos": angle.cos(), "sin": angle.sin()}


def gradients(function: Callable[..., Any], given: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    q, k, v = function(**leaves)
    torch.manual_seed(6)
    loss = sum((x.float() * torch.randn(x.shape)).sum() for x in (q, k, v))
    loss.backward()
    return {name: x.grad for name, x in leaves.items()}


def plain_rotation(
    img_q: Any, img_k: Any, img_v: Any, txt_q: Any, txt_k: Any, txt_v: Any, cos: Any, sin: Any
) -> Any:
    """The operation's maths in torch alone, differentiated by torch."""

    def turn(x: Tensor) -> Tensor:
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        c, s = cos[: x.shape[1], None], sin[: x.shape[1], None]
        return torch.stack((even * c - odd * s, odd * c + even * s), -1).flatten(-2).bfloat16()

    return (
        torch.cat((turn(img_q), txt_q), 1),
        torch.cat((turn(img_k), txt_k), 1),
        torch.cat((img_v, txt_v), 1),
    )


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_the_op_are_those_of_its_maths(mode: str) -> None:
    given = pack_inputs()
    with contracts.mode(mode):
        mine = gradients(backends.hunyuan_qkv_rope_pack, given)
    for name, wanted in gradients(plain_rotation, given).items():
        torch.testing.assert_close(mine[name], wanted, rtol=2e-2, atol=2e-2, msg=name)


def test_gradients_flow_through_a_compiled_op() -> None:
    given = pack_inputs()
    torch._dynamo.reset()
    compiled = torch.compile(backends.hunyuan_qkv_rope_pack, backend="aot_eager", fullgraph=True)
    eager = gradients(backends.hunyuan_qkv_rope_pack, given)
    for name, mine in gradients(compiled, given).items():
        torch.testing.assert_close(mine, eager[name], rtol=1e-5, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", ["img_q", "txt_v", "cos", "sin"])
def test_any_one_argument_may_need_a_gradient(name: str) -> None:
    given = pack_inputs()
    given[name].requires_grad_()
    assert any(x.requires_grad for x in backends.hunyuan_qkv_rope_pack(**given))
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert not any(x.requires_grad for x in backends.hunyuan_qkv_rope_pack(**given))


def mla_inputs() -> dict[str, Any]:
    one = torch.ones(1)
    return {
        "q": torch.zeros(2, 64, 512).to(torch.float8_e4m3fn),
        "kv": torch.zeros(9, 1, 512).to(torch.float8_e4m3fn),
        "indices": torch.zeros(2, 1, 128, dtype=torch.int32),
        "sm_scale": 0.05,
        "q_scale": one,
        "kv_scale": one,
        "attn_sink": torch.zeros(64),
        "topk_length": torch.full((2,), 128, dtype=torch.int32),
    }


@pytest.mark.parametrize("name", ["q_scale", "kv_scale", "attn_sink"])
@pytest.mark.parametrize("backend", [None, "reference"])
def test_an_op_without_a_backward_refuses_to_cut_one(name: str, backend: str | None) -> None:
    given = mla_inputs()
    given[name] = torch.nn.Parameter(given[name])
    op = backends.sparse_mla_q8kv8_prefill_fwd
    with pytest.raises(ContractError) as caught:
        op(**given, backend=backend)
    assert [violation.rule for violation in caught.value.violations] == ["no-gradient"]
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            op(**given, backend=backend)


def test_a_compiled_op_without_a_backward_refuses_too() -> None:
    torch._dynamo.reset()
    op = backends.sparse_mla_q8kv8_prefill_fwd
    compiled = torch.compile(lambda **given: op(**given)[0], backend="aot_eager", fullgraph=True)
    given = mla_inputs()
    compiled(**given)
    given["attn_sink"] = torch.nn.Parameter(given["attn_sink"])
    with pytest.raises(ContractError, match="no-gradient"):
        compiled(**given)
    with torch.no_grad():
        compiled(**given)


@contract
def scaled(x: Float32[Tensor, "n"], by: Float32[Tensor, ""]) -> Float32[Tensor, "n"]:
    return x * by


@pytest.mark.parametrize("mode", MODES)
def test_a_decorated_function_is_differentiable_as_it_is(mode: str) -> None:
    by = torch.nn.Parameter(torch.tensor(3.0))
    x = torch.ones(4, requires_grad=True)
    with contracts.mode(mode):
        scaled(x, by).sum().backward()
        checkpoint(scaled, x, by, use_reentrant=False).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0] * 4
    assert by.grad is not None
    assert by.grad.item() == 8


def test_forward_mode_flows() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(4), torch.full((4,), 2.0))
        tangent = forward_ad.unpack_dual(scaled(x, torch.tensor(3.0))).tangent
    assert tangent.tolist() == [6.0] * 4


def test_no_grad_is_a_rule_of_its_own() -> None:
    @contract(no_grad("x"))
    def kernel(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]) -> None: ...

    x = torch.ones(3, requires_grad=True)
    kernel(x.detach(), x)
    with pytest.raises(ContractError, match="requires grad|gradient"):
        kernel(x, x)
    with torch.no_grad():
        kernel(x, x)


def make(count: int, *rules: Any) -> Any:
    names = ["x", "a", "b", "c"][:count]
    scope: dict[str, Any] = {"Float32": Float32, "Tensor": Tensor}
    exec(f"def f({', '.join(names)}): return 2 * x", scope)
    scope["f"].__annotations__ = dict.fromkeys(names, Float32[Tensor, "n"])
    return contract("n > 0", contiguous(), same_device(), unit_stride(), *rules)(scope["f"])


def of_dual(f: Callable[[Tensor], Tensor]) -> None:
    with forward_ad.dual_level():
        f(forward_ad.make_dual(torch.ones(4), torch.ones(4)))


def of_dual_inside_grad(f: Callable[[Tensor], Tensor]) -> None:
    of_dual(lambda x: torch.func.grad(lambda y: (f(x) + y).sum())(ONES))


def of_mapped_dual(f: Callable[[Tensor], Tensor]) -> None:
    with forward_ad.dual_level():
        torch.vmap(f)(forward_ad.make_dual(torch.ones(3, 4), torch.ones(3, 4)))


ONES = torch.ones(4)
FORWARD: dict[str, Callable[[Callable[[Tensor], Tensor]], Any]] = {
    "dual": of_dual,
    "dual, grad": of_dual_inside_grad,
    "dual, vmap": of_mapped_dual,
    "jvp": lambda f: torch.func.jvp(f, (ONES,), (ONES,)),
    "jacfwd": lambda f: torch.func.jacfwd(f)(ONES),
    "jvp, vmap": lambda f: torch.func.jvp(torch.vmap(f), (ONES[None],), (ONES[None],)),
    "vmap, jvp": lambda f: torch.vmap(lambda x: torch.func.jvp(f, (x,), (x,)))(ONES[None]),
    "of the outer jvp": lambda f: torch.func.jvp(
        lambda x: torch.func.jvp(lambda y: f(x) + y, (ONES,), (ONES,)), (ONES,), (ONES,)
    ),
    "of jvp, in vmap": lambda f: torch.func.jvp(
        lambda x: torch.vmap(lambda y: f(x) + y)(torch.ones(3, 4)), (ONES,), (ONES,)
    ),
    "without grad mode": lambda f: of_dual(torch.no_grad()(f)),
}
NO_GRAD: dict[str, Callable[[], Any]] = {
    "two tensors": lambda: make(2, no_grad("x")),
    "four tensors": lambda: make(4, no_grad("x")),
    "all of four": lambda: make(4, no_grad()),
    "on a condition": lambda: make(4, when("n > 2", no_grad("x"))),
}


@pytest.mark.parametrize("transform", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("contracted", NO_GRAD.values(), ids=NO_GRAD)
def test_no_grad_refuses_tangents(
    contracted: Callable[[], Any], transform: Callable[[Any], Any]
) -> None:
    f = contracted()
    rest = [torch.ones(4) for _ in list(f.contract.declaration.arguments)[1:]]

    def agreed(x: Tensor) -> Tensor:
        assert not f.contract.passes(x, *rest)
        return f(x, *rest)

    for _ in range(4):  # a tangent shows in no layout that has been learnt
        f(torch.ones(4), *rest)
    with pytest.raises(ContractError, match="x carries a tangent of forward-mode AD") as caught:
        transform(agreed)
    assert caught.value.violations[0].fix == "x = x.detach()"
    transform(lambda x: f(x.detach(), *rest))
    for _ in range(3):
        f(torch.ones(4), *rest)


@pytest.mark.parametrize("transform", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("count", [2, 4])
def test_no_grad_lets_tensors_without_tangents_pass(
    count: int, transform: Callable[[Any], Any]
) -> None:
    f = make(count, no_grad(*["a", "b", "c"][: count - 1]))

    def call(x: Tensor) -> Tensor:
        rest = [torch.ones(4) * 2 for _ in range(count - 1)]
        assert f.contract.passes(x, *rest)
        return f(x, *rest)

    transform(call)


def test_a_tangent_that_nobody_carries_along_is_none() -> None:
    f = make(2, no_grad())
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(4), torch.ones(4))
        with torch.inference_mode(), forward_ad._set_fwd_grad_enabled(False):
            f(x, torch.ones(4))
        with pytest.raises(ContractError, match="tangent"):
            f(x, torch.ones(4))
    f(x, torch.ones(4))


def test_a_graph_does_not_ask_for_tangents() -> None:
    f = make(2, no_grad())
    torch._dynamo.reset()
    tangents = torch.compile(
        lambda x: torch.func.jvp(lambda x: f(x, ONES), (x,), (x,))[1], backend="eager"
    )
    assert tangents(ONES).tolist() == [2.0] * 4
