"""A fix is one line of Python that works: run it, and the violation is gone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import BFloat16, Complex64, Float8e4m3fn, Float32, Int32, Shaped
from torch import Tensor

from contracts import (
    ContractError,
    aligned,
    contiguous,
    contract,
    device,
    dtype,
    no_grad,
    no_overlap,
    requires,
    rule,
    same_device,
    same_dtype,
    unit_stride,
)


def mended(f: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments after every fix of a refusal has been run, in order."""
    scope = {"torch": torch, **arguments}
    for fault in f.contract.violations(**arguments):
        assert fault.fix is not None, fault
        assert "\n" not in fault.fix
        exec(fault.fix, scope)
    return {name: scope[name] for name in f.contract.declaration.signature.parameters}


def shifted() -> Tensor:
    storage = torch.zeros(64)
    return storage[-storage.data_ptr() // 4 % 16 + 1 :][:24]


def conjugate() -> Tensor:
    return torch.zeros(4, dtype=torch.complex64).conj()


Flat = Float32[Tensor, "n"]
SHARED = torch.zeros(24)
CASES: list[tuple[str, Any, tuple[Any, ...], Callable[[], dict[str, Any]]]] = [
    ("numpy", {"x": Flat}, (), lambda: {"x": np.zeros(3, dtype=np.float32)}),
    ("dtype", {"x": Flat}, (), lambda: {"x": torch.zeros(3).double()}),
    ("bits", {"x": Float8e4m3fn[Tensor, "n"]}, (), lambda: {"x": torch.zeros(3).byte()}),
    ("index", {"x": Int32[Tensor, "n"]}, (), lambda: {"x": torch.zeros(3).long()}),
    (
        "heads",
        {"x": Float32[Tensor, "num_heads d"], "y": Float32[Tensor, "num_heads d"]},
        (),
        lambda: {"x": torch.zeros(6, 2), "y": torch.zeros(2, 2)},
    ),
    (
        "heads of an item",
        {"x": Float32[Tensor, "num_heads"], "y": list[Float32[Tensor, "num_heads"]]},
        (),
        lambda: {"x": torch.zeros(6), "y": [torch.zeros(6), torch.zeros(2)]},
    ),
    ("stride", {"x": Flat}, (unit_stride(),), lambda: {"x": torch.zeros(6)[::2]}),
    ("contiguous", {"x": Tensor}, (contiguous(),), lambda: {"x": torch.zeros(4, 6).T}),
    (
        "item",
        {"x": dict[str, list[Flat]]},
        (contiguous(),),
        lambda: {"x": {"a": [torch.zeros(6)[::2]]}},
    ),
    ("aligned", {"x": Flat}, (aligned(64),), lambda: {"x": shifted()}),
    ("overlap", {"x": Flat, "y": Flat}, (no_overlap("x"),), lambda: {"x": SHARED, "y": SHARED}),
    ("device", {"x": Tensor}, (device("meta"),), lambda: {"x": torch.zeros(3)}),
    (
        "devices",
        {"x": Tensor, "y": Tensor},
        (same_device(),),
        lambda: {"x": torch.zeros(3, device="meta"), "y": torch.zeros(3)},
    ),
    ("rule on dtype", {"x": Tensor}, (dtype(torch.half),), lambda: {"x": torch.zeros(3)}),
    (
        "dtypes",
        {"x": Tensor, "y": Tensor},
        (same_dtype(),),
        lambda: {"x": torch.zeros(3).half(), "y": torch.zeros(3)},
    ),
    ("gradient", {"x": Flat}, (no_grad(),), lambda: {"x": torch.zeros(3, requires_grad=True)}),
    ("conjugate", {"x": Complex64[Tensor, "n"]}, (contiguous(),), lambda: {"x": conjugate()}),
    ("negative", {"x": Flat}, (unit_stride(),), lambda: {"x": torch.zeros(3)._neg_view()}),
    ("both", {"x": Tensor}, (contiguous(),), lambda: {"x": conjugate()._neg_view()}),
    (
        "size",
        {"x": Flat},
        (rule("n % 8 == 0", fix="x = torch.nn.functional.pad(x, (0, {extra}))"),),
        lambda: {"x": torch.zeros(13)},
    ),
    ("value", {"x": Flat, "k": int}, (rule("k == 2", fix="k = 2"),), lambda: {"x": SHARED, "k": 3}),
    (
        "missing",
        {"x": Flat, "y": Flat | None},
        (requires("y", fix="y = torch.zeros({n})"),),
        lambda: {"x": torch.zeros(3), "y": None},
    ),
]


@pytest.mark.parametrize(
    ("annotations", "rules", "make"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_fix_mends(annotations: dict[str, Any], rules: tuple[Any, ...], make: Any) -> None:
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(annotations)}): ...", scope)
    scope["f"].__annotations__ = annotations
    f = contract(*rules)(scope["f"])
    arguments = make()
    with pytest.raises(ContractError):
        f(**arguments)
    assert f.contract.violations(**mended(f, arguments)) == ()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Int32[Tensor, "n"], torch.zeros(3)),
        (Int32[Tensor, "n"], torch.zeros(3, dtype=torch.complex64)),
        (Float32[Tensor, "n"], torch.zeros(3, dtype=torch.int32)),
        (Float32[Tensor, "n"], torch.zeros(3, dtype=torch.complex64)),
        (Float32[Tensor, "n"], torch.zeros(3).byte()),
        (Float32[Tensor, "n"] | BFloat16[Tensor, "n"], torch.zeros(3).double()),
        (Float32[Tensor, "n"], [1.0]),
        (Float32[Tensor, "3"], torch.zeros(4)),
        (tuple[Float32[Tensor, "n"], int], (torch.zeros(3).double(), 1)),
    ],
    ids=str,
)
def test_no_fix_where_none_is_certain(annotation: Any, value: Any) -> None:
    def f(x): ...

    f.__annotations__ = {"x": annotation}
    (fault,) = contract(f).contract.violations(value)
    assert fault.fix is None


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([2, 3, 8, 64]), st.integers(1, 150), st.sampled_from(["n > 0 and ", "n>2 and "])
)
def test_the_nearest_size_is_the_nearest(by: int, size: int, also: str) -> None:
    text = f"{also}n % {by} == 0"

    @contract(rule(text, fix="{nearest} {extra}"))
    def f(x: Shaped[Tensor, "n"]) -> None: ...

    for fault in f.contract.violations(torch.empty(size, device="meta")):
        assert fault.fix is not None
        nearest, extra = map(int, fault.fix.split())
        assert nearest - size == extra > 0
        legal = [n for n in range(2 * size + by + 3) if f.contract.accepts(torch.empty(n))]
        assert nearest == min(n for n in legal if n > size)
        named = [int(n) for n in fault.message.partition(": ")[2].split(" or ")]
        below = [n for n in legal if n < size]
        assert named == [*below[-1:], nearest]
