"""A refusal lists the rules that are broken, all of them, and no rule that holds."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float32, Int32
from torch import Tensor

from contracts import contract, requires, rule, unit_stride, when

DEMANDS = {
    "d-width": (lambda s, h, d, k, v, g: d in (16, 24), "d in (16, 24)"),
    "h-multiple": (lambda s, h, d, k, v, g: h > 0 and h % 4 == 0, "h > 0 and h % 4 == 0"),
    "k-multiple": (lambda s, h, d, k, v, g: k % 8 == 0, "k % 8 == 0"),
    "range": (lambda s, h, d, k, v, g: 0 < s <= 4, "0 < s <= 4"),
    "order": (lambda s, h, d, k, v, g: s * h >= k, "s * h >= k"),
    "either": (lambda s, h, d, k, v, g: s == 3 or v < 9, "s == 3 or v < 9"),
    "not": (lambda s, h, d, k, v, g: s != 2, "not s == 2"),
    "power": (lambda s, h, d, k, v, g: v > 0 and v & (v - 1) == 0, "is_power_of_2(v)"),
    "elements": (lambda s, h, d, k, v, g: s * h * d % 32 == 0, "numel(q) % 32 == 0"),
    "groups": (lambda s, h, d, k, v, g: g is None or h % g == 0, "h % g == 0"),
}


@contract(
    *(rule(text, id=name) for name, (_, text) in DEMANDS.items()),
    when("v > 8", "h > 4", id="when"),
    unit_stride("q", id="stride"),
    requires("length", when="sink", id="needs-length"),
)
def attend(
    q: Float32[Tensor, "s h d"],
    indices: Int32[Tensor, "s k"],
    v: int = 8,
    groups: Int32[Tensor, "g"] | None = None,
    sink: Float32[Tensor, "h"] | None = None,
    length: Int32[Tensor, "s"] | None = None,
) -> None: ...


def call(
    s: int, h: int, d: int, k: int, v: int, g: int | None, strided: bool, sink: bool, length: bool
) -> dict[str, Any]:
    def empty(*sizes: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device="meta")

    q = empty(s, h, 2 * d, dtype=torch.float32)[..., ::2] if strided else empty(s, h, d).float()
    return {
        "q": q,
        "indices": empty(s, k),
        "v": v,
        "groups": None if g is None else empty(g),
        "sink": empty(h).float() if sink else None,
        "length": empty(s) if length else None,
    }


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 6),
    st.integers(0, 9),
    st.sampled_from([0, 8, 16, 20, 24]),
    st.sampled_from([0, 4, 8, 12, 16]),
    st.integers(0, 17),
    st.none() | st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_exactly_the_broken_rules_in_the_order_of_the_contract(
    s: int, h: int, d: int, k: int, v: int, g: int | None, strided: bool, sink: bool, length: bool
) -> None:
    arguments = call(s, h, d, k, v, g, strided, sink, length)
    broken = [name for name, (holds, _) in DEMANDS.items() if not holds(s, h, d, k, v, g)]
    if v > 8 and not h > 4:
        broken.append("when")
    if not (arguments["q"].numel() <= 1 or arguments["q"].stride(-1) == 1 or d == 1):
        broken.append("stride")
    if sink and not length:
        broken.append("needs-length")
    faults = attend.contract.violations(**arguments)
    assert [fault.rule for fault in faults] == broken
    assert attend.contract.accepts(**arguments) == (not broken)
    for fault in faults:
        if fault.rule in DEMANDS:
            assert fault.message.startswith(f"{DEMANDS[fault.rule][1]} does not hold")


@pytest.mark.parametrize(
    ("sizes", "broken"),
    [
        ({"h": 6}, {"h-multiple": "h is 6, from q axis 1"}),
        ({"k": 4}, {"k-multiple": "k is 4, from indices axis 1"}),
        ({"d": 20}, {"d-width": "d is 20, from q axis 2"}),
        ({"h": 6, "k": 4}, {"h-multiple": "h is 6", "k-multiple": "k is 4"}),
    ],
)
def test_the_actual_values_stand_beside_the_broken_rule(
    sizes: dict[str, int], broken: dict[str, str]
) -> None:
    right = {"s": 4, "h": 8, "d": 16, "k": 8, "v": 8, "g": None}
    arguments = call(**{**right, **sizes}, strided=False, sink=False, length=False)
    faults = attend.contract.violations(**arguments)
    assert [fault.rule for fault in faults] == list(broken)
    assert all(broken[fault.rule] in (fault.origin or "") for fault in faults)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.sampled_from(sorted(DEMANDS)))
def test_sizes_that_a_message_recommends_are_accepted(size: int, name: str) -> None:
    text = DEMANDS[name][1]
    if name in ("elements", "either", "power", "groups", "order"):
        return
    (axis,) = {axis for axis in "shdk" if axis in text.replace("and", "").replace("not", "")}

    scope: dict[str, Any] = {"T": Float32[Tensor, axis]}
    exec("def f(x: T): ...", scope)
    f = contract(text)(scope["f"])
    for fault in f.contract.violations(torch.zeros(size)):
        for recommended in fault.message.partition(": ")[2].split(" or "):
            assert f.contract.accepts(torch.zeros(int(recommended)))
