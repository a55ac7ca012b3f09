"""jaxtyping with beartype is the oracle wherever it can express the same thing.

It reads arguments from left to right, so computed axes come after the axes that they need and
unions come last; it looks at one random item of a container, so containers have one item; and it
leaves a name that only ever broadcast without a size, so such a name stands in no computed axis.
"""

from __future__ import annotations

from typing import Any

import torch
from beartype import beartype
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import BFloat16, Float, Float32, Int, Shaped, TypeCheckError, jaxtyped
from torch import Tensor

from contracts import ContractError, contract

FIRST = ["a b", "b a", "a b ...", "*r a b", "a *r b", "a b _", "a b 3", "h=2 a b", "a b a"]
LATER = [
    *["", "a", "b", "a b", "b a", "... a", "b ...", "*r", "*r a", "...", "#a", "#a #b", "*#s"],
    *["*#s a", "_ a", "3 a", "#3", "c", "c c", "a c", "a+b", "a*2 b", "a//2", "2*a-b", "min(a,b)"],
    *["#a+1", "... a+1", "a/2", "b/2 a", "{k}", "{k}+a", "(a+b)/2", "a**2", "a%2"],
]
BRANCHES = [form for form in LATER if "*#" not in form]
KINDS = [Float32, Float32, Float, BFloat16, Int, Shaped]
DTYPES = [torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int32]
WRAPPERS = {
    "plain": lambda t: t,
    "optional": lambda t: t | None,
    "list": lambda t: list[t],
    "pair": lambda t: tuple[int, t],
    "dict": lambda t: dict[str, t],
}

annotations = st.tuples(
    st.sampled_from(KINDS), st.sampled_from(LATER), st.sampled_from(sorted(WRAPPERS))
)
shapes = st.lists(st.integers(0, 3), max_size=4)
tensors = st.builds(
    lambda shape, dtype: torch.zeros(shape, dtype=dtype), shapes, st.sampled_from(DTYPES)
)


def refused(function: Any, arguments: list[Any], error: type[Exception]) -> bool:
    try:
        function(*arguments)
    except error:
        return True
    return False


def sizes(form: str, env: dict[str, Any], draw: Any) -> list[int]:
    """A shape that fits, as far as the axes are known."""
    found: list[int] = []
    for token in form.split():
        bare = token.rpartition("=")[2].replace("#", "").replace("{k}", "k").replace("/", "//")
        if bare in ("...", "*r", "*s"):
            found += env.get(bare[1:], (2,))
        elif bare == "_":
            found.append(2)
        else:
            found.append(max(0, eval(bare.replace("////", "//"), {"min": min}, env)))
    if found and draw(st.integers(0, 3)) == 0:
        found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 3))
    return found


def value(kind: Any, form: str, wrapper: str, env: dict[str, Any], draw: Any) -> Any:
    names = kind.dtypes if isinstance(kind.dtypes, list | tuple) else ("float32",)
    right = [dtype for dtype in DTYPES if str(dtype).rpartition(".")[2] in names]
    x = torch.zeros(sizes(form, env, draw), dtype=right[0])
    if draw(st.integers(0, 7)) == 0:
        x = draw(tensors)
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from([None, 1, "x", x, [x], (1, x), {"a": x}, (), [None]]))
    return {"list": [x], "pair": (1, x), "dict": {"a": x}}.get(wrapper, x)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(FIRST),
    st.lists(annotations, max_size=3),
    st.lists(st.sampled_from(BRANCHES), min_size=2, max_size=2, unique=True),
    st.data(),
)
def test_one_verdict(
    first: str, drawn: list[tuple[Any, str, str]], branches: list[str], data: Any
) -> None:
    names = ["first", "k", *"xyz"[: len(drawn)], "last"]
    union = Float32[Tensor, branches[0]] | Int[Tensor, branches[1]] | None
    kinds = [WRAPPERS[wrapper](kind[Tensor, form]) for kind, form, wrapper in drawn]
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(names)}): return 1", scope)
    scope["f"].__annotations__ = dict(
        zip(names, [Float32[Tensor, first], int, *kinds, union], strict=True)
    )
    ours, theirs = contract(scope["f"]), jaxtyped(typechecker=beartype)(scope["f"])
    for _ in range(4):
        env: dict[str, Any] = {name: data.draw(st.integers(0, 3)) for name in "abck"}
        env |= {"r": data.draw(st.sampled_from([(), (2,), (1, 2)])), "s": (2, 1)}
        arguments = [
            torch.zeros(sizes(first, env, data.draw)),
            env["k"],
            *(value(kind, form, wrapper, env, data.draw) for kind, form, wrapper in drawn),
            value(Float32, branches[0], "plain", env, data.draw),
        ]
        verdict = refused(ours, arguments, ContractError)
        assert verdict == refused(theirs, arguments, TypeCheckError), (ours.contract, arguments)
