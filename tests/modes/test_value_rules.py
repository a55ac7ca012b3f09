"""Rules on contents: what may be written, and how `debug` judges it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Float, Float8e4m3fn, Float32, Int32, Shaped
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import contracts
from contracts import ContractDefinitionError, ContractError, contract, values, when


@contract(
    values("0 <= topk_length <= topk", id="topk_length-range", hint="lengths count lanes"),
    values("-1 <= indices < s_kv", id="indices-range"),
)
def attend(
    indices: Int32[Tensor, "s_q topk"],
    kv: Float[Tensor, "s_kv width"],
    topk_length: Int32[Tensor, "s_q"] | None = None,
) -> Float[Tensor, "s_q width"]:
    return kv[indices.clamp(0).long()].sum(1)


def lanes(*rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def debug(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with contracts.mode("debug"):
        return function(*args, **kwargs)


def refused(function: Callable[..., Any], *args: Any, **kwargs: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        debug(function, *args, **kwargs)
    return caught.value


def one_rule(text: str, **annotations: Any) -> Callable[..., Any]:
    """A function of x and y whose only rule is this one."""

    def function(x, y=None, n=3): ...

    function.__annotations__ = {"x": Shaped[Tensor, "..."], "y": Shaped[Tensor, "..."] | None}
    function.__annotations__ |= {"n": float | int, **annotations}
    return contract(values(text))(function)


def test_the_first_element_that_breaks_a_rule_is_named_with_its_value_and_the_count() -> None:
    indices = torch.zeros(8, 256, dtype=torch.int32)
    lengths = lanes(256, 0, 7, 300, 1, -1, 2, 3)
    error = refused(attend, indices, torch.zeros(9, 4), lengths)
    (violation,) = error.violations
    assert violation.rule == "topk_length-range"
    assert violation.argument == "topk_length"
    assert violation.hint == "lengths count lanes"
    assert str(violation).startswith(
        "topk_length[3] is 300, breaks 0 <= topk_length <= topk: topk is 256"
    )
    assert "2 of 8 elements break it" in str(error)


def test_every_broken_rule_is_listed() -> None:
    error = refused(attend, lanes(0, 9).view(1, 2), torch.zeros(9, 4), lanes(3))
    assert [violation.rule for violation in error.violations] == [
        "topk_length-range",
        "indices-range",
    ]
    assert error.violations[1].actual == "indices[0, 1]=9"
    assert "1 of 2 elements breaks it" not in str(error)


def test_a_rule_without_one_of_its_names_is_skipped() -> None:
    assert debug(attend, lanes(0, -1).view(1, 2), torch.zeros(9, 4)).shape == (1, 4)


def test_contents_are_read_in_debug_alone() -> None:
    for mode in ("static", "off"):
        with contracts.mode(mode):
            attend(lanes(0, -5).view(1, 2), torch.zeros(9, 4), lanes(77))
    assert attend.contract.accepts(lanes(0, -5).view(1, 2), torch.zeros(9, 4), lanes(77))


def test_contents_are_judged_only_where_metadata_holds() -> None:
    error = refused(attend, lanes(9, 9).view(1, 2).long(), torch.zeros(3, 4), lanes(3))
    assert [violation.rule for violation in error.violations] == ["indices-dtype"]


RULES: dict[str, tuple[str, Any, Any, str]] = {
    # rule, arguments that pass, arguments that do not, the element that is named
    "float": ("isfinite(x)", [torch.ones(3)], [torch.tensor([1, float("inf")])], "x[1] is inf"),
    "nan": ("not isnan(x)", [torch.ones(3)], [torch.tensor([float("nan")])], "x[0] is nan"),
    "integers are finite": ("isfinite(x)", [lanes(1)], None, ""),
    "0-d": ("x > 0", [torch.tensor(1.0)], [torch.tensor(-0.5)], "x is -0.5"),
    "bool": ("x", [torch.tensor([True])], [torch.tensor([True, False])], "x[1] is False"),
    "bool compared": ("x == True", [torch.tensor([True])], [torch.tensor([False])], "x[0] is"),
    "fp8": (
        "x < 100",
        [torch.ones(2).to(torch.float8_e4m3fn)],
        [torch.tensor([1, 112.0]).to(torch.float8_e4m3fn)],
        "x[1] is 112",
    ),
    "uint8 does not wrap": (
        "x - 1 < 5",
        [torch.tensor([0, 5], dtype=torch.uint8)],
        [torch.tensor([6], dtype=torch.uint8)],
        "x[0] is 6",
    ),
    "int32 does not wrap": (
        "x * 4 > 0",
        [lanes(2**30)],
        [lanes(-(2**30))],
        "x[0] is -1073741824",
    ),
    "int8 exactly": (
        "x > -129",
        [torch.tensor([-128], dtype=torch.int8)],
        None,
        "",
    ),
    "bfloat16": ("x <= 2", [torch.ones(1).bfloat16()], [torch.full((1,), 2.5).bfloat16()], "2.5"),
    "float32 meets numbers as float32": ("x <= 0.1", [torch.tensor([0.1])], None, ""),
    "broadcast": (
        "x <= y",
        [torch.ones(2, 3), torch.ones(3)],
        [torch.tensor([[1, 1, 1], [1, 1, 5.0]]), torch.ones(3)],
        "x[1, 2] is 5 and y[2] is 1",
    ),
    "broadcast ones": (
        "x + y < 9",
        [torch.ones(2, 1), torch.ones(1, 2)],
        [torch.tensor([[1.0], [5]]), torch.tensor([[1.0, 4]])],
        "x[1, 0] is 5 and y[0, 1] is 4",
    ),
    "scalar argument": ("x < n", [lanes(2)], [lanes(3)], "n is 3"),
    "expression of numbers": ("x < 2 * n", [lanes(5)], [lanes(6)], "n is 3"),
    "in": ("x in (0, 1, n)", [lanes(0, 3)], [lanes(0, 2)], "x[1] is 2"),
    "not in": ("x not in (0, n)", [lanes(1, 2)], [lanes(1, 3)], "x[1] is 3"),
    "or": ("x == -1 or x >= n", [lanes(-1, 3)], [lanes(-1, 0)], "x[1] is 0"),
    "division rounds down": ("x // 4 > -2", [lanes(-4)], [lanes(-5)], "x[0] is -5"),
    "remainder is python's": ("x % 4 < 3", [lanes(-2)], [lanes(-1)], "x[0] is -1"),
    "true division of numbers": ("x < n / 2 + 1/2", [lanes(1)], [lanes(2)], "n is 3"),
    "as many digits as it needs": (
        "x <= 1",
        [torch.ones(1)],
        [torch.tensor([1.0000001])],
        "x[0] is 1.0000001, breaks",
    ),
    "digits of float64": (
        "x <= 0.1",
        [torch.tensor([0.1], dtype=torch.float64)],
        [torch.tensor([0.1], dtype=torch.float64) + 1e-16],
        "x[0] is 0.1000000000000001, breaks",
    ),
    "digits of large numbers": (
        "x < 16777218",
        [torch.tensor([16777216.0])],
        [torch.tensor([16777218.0])],
        "x[0] is 16777218, breaks",
    ),
    "true division": ("x / 2 < 1", [lanes(1)], [lanes(2)], "x[0] is 2"),
    "power": ("x ** 2 < 10", [lanes(-3)], [lanes(4)], "x[0] is 4"),
    "minimum": ("min(x, y) < 2", [lanes(1), lanes(7)], [lanes(2), lanes(7)], "y[0] is 7"),
    "maximum with a number": ("max(x, n) < 5", [lanes(4)], [lanes(5)], "x[0] is 5"),
    "abs": ("abs(x) <= n", [lanes(-3)], [lanes(-4)], "x[0] is -4"),
    "ceiling": ("cdiv(x, 4) < 2", [lanes(4)], [lanes(5)], "x[0] is 5"),
    "sorted": ("sorted(x)", [lanes(1, 1, 2)], [lanes(1, 3, 2)], "x[2] is 2"),
    "sorted rows": ("sorted(x)", [lanes(3, 4, 1, 2).view(2, 2)], None, ""),
    "sorted refuses nan": ("sorted(x)", [torch.ones(2)], [torch.tensor([1, float("nan")])], "nan"),
    "unique": ("unique(x)", [lanes(3, 1, 2)], [lanes(3, 1, 3)], "x[2] is 3"),
    "unique rows": ("unique(x)", [lanes(1, 2, 1, 2).view(2, 2)], None, ""),
    "unique or unused": ("unique(x) or x == -1", [lanes(-1, -1, 4)], [lanes(4, -1, 4)], "x[2] is"),
    "metadata of tensors": ("x < size(y, 0)", [lanes(1), lanes(0, 0)], [lanes(2), lanes(0, 0)], ""),
    "no elements": ("x > 0", [lanes()], None, ""),
    "negative view": (
        "x > 0",
        [torch.tensor([1 - 2j]).conj().imag],
        [torch.tensor([1 + 2j]).conj().imag],
        "x[0] is -2",
    ),
    "needs a gradient": (
        "x > 0",
        [torch.ones(1, requires_grad=True)],
        [torch.zeros(1, requires_grad=True)],
        "x[0] is 0",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_the_language_of_values(name: str) -> None:
    text, right, wrong, named = RULES[name]
    function = one_rule(text)
    debug(function, *right)
    if wrong is not None:
        assert named in str(refused(function, *wrong).violations[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x <", "cannot read"),
        ("x + 1", "is not a condition"),
        ("n < 3", "reads the contents of no tensor"),
        ("numel(x) < 3", "reads the contents of no tensor"),
        ("x < missing", "'missing' is neither an axis nor an argument"),
        ("exp(x) < 1", "unknown function 'exp'"),
        ("is_power_of_2(x)", "is_power_of_2 does not take elements"),
        ("sorted(x + 1)", "sorted takes a tensor's name"),
        ("sorted(n) and x > 0", "sorted(n) is not about elements"),
        ("unique(x, 1)", "unique takes 1 operands"),
        ("x ** n > 0", "a power of elements is a constant"),
        ("x.shape > 0", "outside the rule language"),
        ("x < 2 ** 70", "2 ** 70 is out of range"),
        ("x < 7 ** (7 ** 8)", "a power is too large"),
        ("x < 2.0 ** 5000", "2.0 ** 5000 has no value"),
        ("x < 1e308 * 10", "1e+308 * 10 is out of range"),
        ("x < 1 % 0", "1 % 0 has no value: it divides by zero"),
        ("x < 1 // 0", "it divides by zero"),
        ("x in (None, 1)", "None is no number"),
        ("x < (-8) ** 0.5", "is no number"),
        (" + ".join(["x"] * 600) + " > 0", "is nested too deeply"),
        ("not " * 3000 + "x", "is nested too deeply"),
        ("(" * 3000 + "x" + ")" * 3000, "cannot read"),
        ("x < " + "9" * 5000, "cannot read"),
        ("x == None", "None is no number"),
        ("x[0] > 1", "outside the rule language"),
        ("__import__('os')", "unknown function"),
    ],
)
def test_what_cannot_be_judged_is_an_error_at_decoration(text: str, said: str) -> None:
    with pytest.raises(ContractDefinitionError) as caught:
        one_rule(text)
    assert said in str(caught.value)


def test_a_container_has_no_contents_to_name() -> None:
    with pytest.raises(ContractDefinitionError, match="'xs' holds several tensors"):

        @contract(values("xs > 0"))
        def f(xs: list[Float32[Tensor, "n"]]): ...


def test_dtypes_without_an_order_are_refused_at_decoration() -> None:
    from jaxtyping import Complex64

    with pytest.raises(ContractDefinitionError, match="complex"):
        one_rule("x > 0", x=Complex64[Tensor, "m"])


def test_dtypes_that_nothing_computes_with_are_refused_at_decoration() -> None:
    from jaxtyping import UInt, UInt64

    with pytest.raises(ContractDefinitionError, match="'x' is uint64"):
        one_rule("x > 0", x=UInt64[Tensor, "m"])
    one_rule("x > 0", x=UInt[Tensor, "m"])


def test_shapes_that_never_broadcast_are_refused_at_decoration() -> None:
    with pytest.raises(ContractDefinitionError, match="do not broadcast"):
        one_rule("x < y", x=Float32[Tensor, "m 3"], y=Float32[Tensor, "4"])
    one_rule("x < y", x=Float32[Tensor, "m 1"], y=Float32[Tensor, "4"])


def test_shapes_that_do_not_broadcast_in_a_call_break_the_rule() -> None:
    error = refused(one_rule("x < y"), torch.ones(3), torch.ones(4))
    assert "cannot be judged" in str(error)


def test_values_under_a_condition() -> None:
    @contract(when("n > 8", values("x > 0")))
    def f(x: Float32[Tensor, "n"]): ...

    debug(f, torch.zeros(8))
    error = refused(f, torch.zeros(9))
    assert "(when n > 8)" in str(error)
    assert "9 of 9 elements break it" in str(error)


def test_a_fix_is_filled_in() -> None:
    @contract(values("x < n", id="range", fix="x = x.clamp(max={n} - 1)"))
    def f(x: Int32[Tensor, "m"], y: Int32[Tensor, "n"]): ...

    assert refused(f, lanes(5), lanes(1, 2)).violations[0].fix == "x = x.clamp(max=2 - 1)"


def test_fake_and_meta_tensors_have_no_contents() -> None:
    function = one_rule("x > 0")
    debug(function, torch.zeros(3, device="meta"))
    with FakeTensorMode():
        debug(function, torch.empty(3))


def test_inside_vmap_contents_are_not_judged() -> None:
    function = contract(values("x > 0"))(scale)
    with contracts.mode("debug"):
        assert torch.vmap(function)(torch.zeros(3, 2)).shape == (3, 2)
        with pytest.raises(ContractError):
            torch.func.grad(lambda x: function(x).sum())(torch.zeros(2))


def scale(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return 2 * x


def test_methods_and_default_arguments() -> None:
    class Layer:
        @contract(values("x < limit"))
        def forward(self, x: Int32[Tensor, "n"], limit: int = 3): ...

    debug(Layer().forward, lanes(2))
    assert "x[0] is 3" in str(refused(Layer().forward, lanes(3)))
    debug(Layer().forward, lanes(3), limit=4)


def test_results_are_judged_in_debug() -> None:
    @contract
    def wrong(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return x[1:]

    wrong(torch.ones(3))
    error = refused(wrong, torch.ones(3))
    assert "return axis 0 (n) is 2, expected 3" in str(error)


def test_masks_may_be_judged_by_name() -> None:
    @contract(values("mask or x > 0"))
    def f(mask: Bool[Tensor, "n"], x: Float8e4m3fn[Tensor, "n"]): ...

    zeros = torch.zeros(2).to(torch.float8_e4m3fn)
    debug(f, torch.tensor([True, True]), zeros)
    assert "mask[1] is False and x[1] is 0" in str(refused(f, torch.tensor([True, False]), zeros))
