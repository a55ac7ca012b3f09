"""The generated check and the explaining path agree on every call of every contract.

Contracts are drawn from a pool of annotations and rules, then called several times in a row, with
right arguments and with wrong ones: what one call leaves behind may not change the next verdict.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jaxtyping import BFloat16, Float, Float32, Int, Shaped
from torch import Tensor

from contracts import (
    ContractDefinitionError,
    ContractError,
    aligned,
    contiguous,
    contract,
    custom,
    device,
    dtype,
    explain,
    no_grad,
    no_overlap,
    requires,
    same_device,
    same_dtype,
    unit_stride,
    when,
)

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")

FORMS = [
    *["", "a", "b", "a b", "b a", "a a", "a b c", "... a", "a ...", "*r", "*r a", "a *r b", "..."],
    *["#a", "#a #b", "*#r", "*#r a", "a #c", "_ a", "_", "3 a", "h=3", "#3", "a=2 _"],
    *["a+b", "a*2 b", "a/2", "b/2 a", "a//2", "2*a-b", "a b/2", "min(a,b)", "#a+1", "... a/2"],
    *["{k}", "{k}+a", "k", "len(r)", "a%2 c"],
]
KINDS = [Float32, Float32, Float, BFloat16, Int, Shaped]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]
NAMES = ("x", "y", "z", "w")


def annotation(form: str, kind: Any, wrapper: str) -> Any:
    tensor = kind[Tensor, form]
    match wrapper:
        case "optional":
            return tensor | None
        case "list":
            return list[tensor]
        case "dict":
            return dict[str, tensor] | None
        case "pair":
            return tuple[int, tensor]
        case "shapes":
            return tensor | Float32[Tensor, "a b"]
        case "value":
            return tensor | float | None
        case "dtypes":
            return tensor | Int[Tensor, form]
        case "items":
            return list[tensor | None]
    return tensor


RULES: dict[str, Any] = {
    text: lambda text=text: text
    for text in [
        *["a > 1", "a % 2 == 0", "a == b", "a < b <= 3", "a in (1, 2)", "b / 2 > 0", "c != 1"],
        *["a > 1 or b > 1", "not a == 3", "k > 0", "k is None or a > 1", "len(r) < 2", "flag"],
        *["z is None or k > 1", "numel(x) > 1", "size(x, 0) > 1", "stride(y, 0) >= 1"],
        *["is_contiguous(x)", "dtype(x) == dtype(y)", "ndim(y) == 2", "nbytes(x) % 8 == 0"],
        *["data_ptr(x) % 16 == 0", "a + b * 2 - c // 2 > 1", "2 ** a > b"],
    ]
} | {
    "contiguous": contiguous,
    "contiguous(x)": lambda: contiguous("x"),
    "unit_stride": unit_stride,
    "unit_stride(y)": lambda: unit_stride("y", dim=0),
    "aligned": lambda: aligned(16),
    "device": lambda: device("cpu"),
    "same_device": same_device,
    "same_dtype": same_dtype,
    "same_dtype(x, y)": lambda: same_dtype("x", "y"),
    "dtype": lambda: dtype((torch.float32, torch.bfloat16), "x"),
    "no_grad": no_grad,
    "no_overlap(x)": lambda: no_overlap("x"),
    "no_overlap(x, y)": lambda: no_overlap("x", "y"),
    "requires": lambda: requires("z", when="y"),
    "when": lambda: when("a > 1", "b > 1"),
    "when not": lambda: when("not flag", contiguous("x")),
    "when given": lambda: when("k is not None and k > 1", same_dtype()),
    "when stride": lambda: when("a > 1", unit_stride()),
    "custom": lambda: custom(lambda a, b: (a or 0) <= (b or 3), "a <= b"),
}


@dataclass(frozen=True)
class Parameter:
    form: str
    kind: Any
    wrapper: str
    default: bool


parameters = st.builds(
    Parameter,
    st.sampled_from(FORMS),
    st.sampled_from(KINDS),
    st.sampled_from(
        ["", "", "", "optional", "list", "dict", "pair", "shapes", "value", "dtypes", "items"]
    ),
    st.booleans(),
)
plain = st.builds(
    Parameter, st.sampled_from(FORMS), st.sampled_from(KINDS), st.just(""), st.booleans()
)
contracts = st.tuples(
    st.one_of(
        st.lists(parameters, min_size=1, max_size=4), st.lists(plain, min_size=3, max_size=4)
    ),
    st.lists(st.sampled_from(sorted(RULES)), max_size=3, unique=True),
)


def build(parameters: list[Parameter], rules: list[str]) -> Any:
    def f(*args: Any, **kwargs: Any) -> str:
        return "accepted"

    free, fixed = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    arguments = [
        inspect.Parameter(name, fixed, default=None)
        if item.default
        else inspect.Parameter(name, free)
        for name, item in sorted(zip(NAMES, parameters, strict=False), key=lambda p: p[1].default)
    ]
    for name, default in (("k", 2), ("flag", True)):
        arguments.append(inspect.Parameter(name, fixed, default=default))
    f.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    f.__annotations__ = {
        name: annotation(item.form, item.kind, item.wrapper)
        for name, item in zip(NAMES, parameters, strict=False)
    } | {"k": int | None if "k is" in "".join(rules) else int, "flag": bool}
    return contract(*(RULES[rule]() for rule in rules))(f)


def sizes_of(form: str, env: dict[str, Any], draw: Any) -> list[int]:
    sizes: list[int] = []
    for token in form.split():
        bare = token.rpartition("=")[2]
        if bare in ("...", "*r", "*#r"):
            rest = env["r"] if "*" in bare else draw(st.sampled_from([(), (2,), (1, 2)]))
            if "#" in bare:
                rest = tuple(draw(st.sampled_from([1, size])) for size in rest)
            sizes += rest
        elif bare == "_":
            sizes.append(draw(st.integers(0, 3)))
        elif bare.startswith("#") and draw(st.booleans()):
            sizes.append(1)
        else:
            text = bare.lstrip("#").replace("{k}", "k").replace("/", "//").replace("////", "//")
            sizes.append(max(0, eval(text, {"min": min, "len": len}, dict(env))))
    return sizes


def tensor(item: Parameter, env: dict[str, Any], draw: Any, flaw: str) -> Any:
    sizes = sizes_of(item.form, env, draw)
    if flaw == "size" and sizes:
        index = draw(st.integers(0, len(sizes) - 1))
        sizes[index] = draw(st.integers(0, 4))
    if flaw == "rank":
        sizes = [*sizes, 1] if draw(st.booleans()) else sizes[:-1]
    kinds = item.kind.dtypes if isinstance(item.kind.dtypes, list | tuple) else ("float32",)
    wanted = [d for d in DTYPES if str(d).rpartition(".")[2] in kinds]
    kind = draw(st.sampled_from(DTYPES)) if flaw == "dtype" else (wanted or DTYPES)[0]
    if flaw == "strides" and sizes:
        return torch.zeros([*sizes[:-1], 2 * sizes[-1]], dtype=kind)[..., ::2]
    if flaw == "expanded" and sizes:
        return torch.zeros([1, *sizes[1:]], dtype=kind).expand(sizes)
    x = torch.zeros(sizes, dtype=kind, device="meta" if flaw == "device" else "cpu")
    if flaw == "grad" and kind.is_floating_point:
        x.requires_grad_()
    if flaw == "negative" and kind.is_floating_point:
        return x._neg_view()
    if flaw == "sparse" and flaw != "grad":
        return x.to_sparse() if sizes else x
    if flaw == "offset" and x.numel():
        return torch.zeros(x.numel() + 1, dtype=kind)[1:].view(sizes)
    return x


FLAWS = ["", "", "size", "rank", "dtype", "strides", "expanded", "device", "grad", "negative"]
FLAWS += ["sparse", "offset", "None", "value", "nested"]


def argument(item: Parameter, env: dict[str, Any], draw: Any, flaw: str) -> Any:
    if flaw == "None":
        return None
    if flaw == "value":
        return draw(st.sampled_from([1, 1.5, "x", [], (), {}, [None], (1, 2)]))
    if flaw == "nested":
        x = [torch.zeros(1, 2), torch.zeros(2, 2)]
        return torch.nested.nested_tensor(
            x, layout=draw(st.sampled_from([torch.strided, torch.jagged]))
        )

    def make(flaw: str = "") -> Any:
        return tensor(item, env, draw, flaw)

    match item.wrapper:
        case "list" | "items":
            items = [make() for _ in range(draw(st.integers(0, 2)))] + [make(flaw)]
            return items if draw(st.integers(0, 5)) else []
        case "dict":
            return {"p": make(), "q": make(flaw)} if draw(st.integers(0, 5)) else None
        case "pair":
            return (1, make(flaw))
        case "shapes" if draw(st.booleans()):
            return torch.zeros(env["a"], env["b"])
        case "value" if draw(st.booleans()):
            return draw(st.sampled_from([1.0, None]))
    if (item.wrapper == "optional" or item.default) and not draw(st.integers(0, 3)):
        return None
    return make(flaw)


def calls(parameters: list[Parameter], draw: Any) -> dict[str, Any]:
    size = st.integers(0, 4)
    env: dict[str, Any] = {"a": draw(size), "b": draw(size), "c": draw(size)}
    env |= {"k": draw(st.integers(1, 3)), "r": draw(st.sampled_from([(), (2,), (2, 3), (1, 2)]))}
    flawed = draw(st.sets(st.integers(0, len(parameters) - 1), max_size=2))
    values = {
        name: argument(item, env, draw, draw(st.sampled_from(FLAWS)) if index in flawed else "")
        for index, (name, item) in enumerate(zip(NAMES, parameters, strict=False))
    }
    tensors = [value for value in values.values() if isinstance(value, Tensor)]
    if len(tensors) > 1 and not draw(st.integers(0, 4)):
        values[next(iter(values))] = tensors[-1]
    if draw(st.booleans()):
        values["k"] = env["k"]
    if not draw(st.integers(0, 5)):
        values["flag"] = draw(st.sampled_from([False, 1, None]))
    return values


@settings(max_examples=80, deadline=None)
@given(contracts, st.data())
def test_both_paths_give_one_verdict(drawn: tuple[list[Parameter], list[str]], data: Any) -> None:
    parameters, rules = drawn
    try:
        f = build(parameters, rules)
    except ContractDefinitionError:
        assume(False)
    for _ in range(5):
        values = calls(parameters, data.draw)
        bound = f.contract.bind(**values)
        faults = f.contract.violations(**values)
        for _ in range(3):  # new to the check, then learnt, then known
            assert f.contract.passes(*bound.values()) == (not faults), (f.contract.source, faults)
        assert f.contract.accepts(**values) == (not faults)
        try:
            assert f(**values) == "accepted"
            assert not faults
            assert f.contract.check(**values) == explain.sizes(f.contract.declaration, bound)
        except ContractError as error:
            assert error.violations == faults != ()
