"""Random calls: legal ones are accepted, broken ones break their rule alone, and both shrink."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import HealthCheck, find, given, settings
from jaxtyping import Float32
from torch import Tensor

from contracts import contract
from contracts.testing import broken_calls, calls
from examples.test_my_op import my_op
from tests.testing.sample_contracts import SOUND

RANDOM = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
CONTRACTS = [function.contract for function in SOUND if not hasattr(function, "__self__")]


@pytest.mark.parametrize("checked", CONTRACTS, ids=lambda checked: checked.name)
def test_legal_calls_are_accepted(checked) -> None:
    @RANDOM
    @given(calls(checked))
    def accepted(call) -> None:
        assert call.breaks is None
        assert (
            checked.violations(*positional(checked, call)[0], **positional(checked, call)[1]) == ()
        )

    accepted()


@pytest.mark.parametrize("checked", CONTRACTS, ids=lambda checked: checked.name)
def test_broken_calls_break_one_rule(checked) -> None:
    @RANDOM
    @given(broken_calls(checked))
    def refused(call) -> None:
        args, kwargs = positional(checked, call)
        assert {fault.rule for fault in checked.violations(*args, **kwargs)} == {call.breaks}

    refused()


def positional(checked, call) -> tuple[tuple[object, ...], dict[str, object]]:
    """The call as Python makes it, `*args` and `**kwargs` unpacked."""
    bound = inspect.BoundArguments(checked.declaration.call_signature, dict(call))
    return bound.args, bound.kwargs


def test_broken_calls_are_of_many_kinds() -> None:
    drawn = set()

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(broken_calls(my_op.contract))
    def collect(call) -> None:
        drawn.add(call.breaks)

    collect()
    assert len(drawn) >= 8


def test_calls_shrink_to_small_sizes() -> None:
    @contract("rows % 4 == 0")
    def f(x: Float32[Tensor, "rows cols"], y: Float32[Tensor, "cols"] | None = None): ...

    alone = settings(derandomize=True, database=None)
    smallest = find(calls(f.contract), lambda call: call["x"].shape[0] > 4, settings=alone)
    assert smallest["x"].shape == (8, 0)
    assert smallest["y"] is None


def test_a_call_prints_as_the_code_that_makes_it() -> None:
    @contract
    def f(x: Float32[Tensor, "rows"]): ...

    call = find(calls(f.contract), lambda call: call["x"].shape[0] == 3)
    assert repr(call) == "import torch\n\nx = torch.zeros((3,), dtype=torch.float32)\nf(x=x)"
