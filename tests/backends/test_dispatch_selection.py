"""Which backend serves a call: priority, demands, refusals, and what is never a refusal."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import backends
from backends import BackendWarning, NoBackendError, Op
from contracts import ContractDefinitionError, ContractError, contract, no_grad

Row = Float32[Tensor, "n"]


@contract("n > 0", no_grad())
def scale_by(x: Row, factor: float = 2.0, offset: Row | None = None) -> Row:
    """`x * factor + offset`."""


def scale_reference(x: Tensor, factor: float, offset: Tensor | None) -> Tensor:
    return x * factor if offset is None else x * factor + offset


def scale_small(x: Tensor, factor: float, offset: Tensor | None) -> Tensor:
    return torch.full_like(x, 1.0)


def scale_plain(x: Tensor, factor: float, offset: Tensor | None) -> Tensor:
    return torch.full_like(x, 2.0)


scale = Op(scale_by, reference=scale_reference)
scale.backend("small", rules=["n <= 4", "factor == 2"], priority=2)(scale_small)
scale.backend("plain", rules=["offset is None"], priority=1)(scale_plain)

X4, X8 = torch.full((4,), 10.0), torch.full((8,), 10.0)


def value(x: Tensor) -> float:
    """1 of `small`, 2 of `plain`, anything else of the reference."""
    return float(x[0])


def test_backends_are_listed_by_falling_priority_and_the_reference_last() -> None:
    assert scale.backends == ("small", "plain", "reference")
    assert [backend.priority for backend in scale.registered] == [2, 1, float("-inf")]
    assert scale in backends.registered()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((X4,), 1),
        ((X8,), 2),
        ((X4, 3.0), 2),
        ((X8, 2.0, X8), 30),
        ((X4, 2.0, X4), 1),
        ((X4, 3.0, X4), 40),
    ],
)
def test_the_highest_priority_that_accepts_serves_the_call(
    arguments: tuple[Any, ...], expected: float
) -> None:
    for _ in range(3):  # cold, then warm
        assert value(scale(*arguments)) == expected
    assert scale.explain(*arguments).choice == {1: "small", 2: "plain"}.get(expected, "reference")


def test_arguments_go_by_position_or_name() -> None:
    assert value(scale(x=X8, factor=3.0, offset=X8)) == 40
    assert value(scale(X8, offset=X8)) == 30


def test_a_call_can_demand_any_eligible_backend() -> None:
    assert value(scale(X4, backend="plain")) == 2
    assert value(scale(X4, backend="reference")) == 20
    assert value(scale.reference(X4)) == 20


def test_a_demanded_backend_never_falls_back() -> None:
    for _ in range(2):
        with pytest.raises(NoBackendError) as refusal:
            scale(X8, 3.0, backend="small")
    error = refusal.value
    assert (error.op, error.demanded) == ("scale_by", "small")
    assert [reason.rule for reason in error.reasons] == ["n<=4", "factor==2"]
    assert error.eligible == ("plain", "reference")
    assert str(error) == (
        "scale_by: backend 'small' was demanded and cannot serve this call\n"
        "- small: n <= 4 does not hold; nearest size: 4: n is 8, from x axis 0\n"
        "- small: factor == 2 does not hold: factor is 3.0\n"
        "- not demanded, but would serve it: plain, reference\n"
        "got:\n"
        "  x       float32[8] cpu\n"
        "  factor  3.0\n"
        "  offset  None"
    )


def test_an_optional_tensor_is_never_dropped() -> None:
    with pytest.raises(NoBackendError, match="plain: does not support offset"):
        scale(X8, offset=X8, backend="plain")


def test_an_unknown_backend_lists_those_there_are() -> None:
    with pytest.raises(NoBackendError, match="this op has no such backend; it has small, plain, r"):
        scale(X4, backend="cutlass")


def test_a_wrong_call_is_the_callers_whatever_is_demanded() -> None:
    empty = torch.empty(0)
    for options in ({}, {"backend": "small"}, {"backend": "cutlass"}):
        with pytest.raises(ContractError) as refusal:
            scale(empty, **options)
        assert [violation.rule for violation in refusal.value.violations] == ["n>0"]
    with backends.use("cutlass"), pytest.raises(ContractError):
        scale(empty)


def test_an_error_travels_between_processes() -> None:
    with pytest.raises(NoBackendError) as refusal:
        scale(X8, backend="small")
    error = pickle.loads(pickle.dumps(refusal.value))
    assert str(error) == str(refusal.value)
    assert error.reasons == refusal.value.reasons
    assert error.to_dict()["reasons"][0]["backend"] == "small"


# -- use()


def test_the_innermost_block_wins_and_a_call_wins_over_it() -> None:
    with backends.use("plain"):
        assert value(scale(X4)) == 2
        with backends.use(scale_by="reference"):
            assert value(scale(X4)) == 20
            assert value(scale(X4, backend="small")) == 1
            with backends.use("small"):
                assert value(scale(X4)) == 1
            with backends.use(None):
                assert value(scale(X4)) == 1
            assert value(scale(X4)) == 20
        assert value(scale(X4)) == 2
    assert value(scale(X4)) == 1


def test_a_block_for_one_op_leaves_the_demand_on_others() -> None:
    with backends.use("cutlass"), backends.use(scale_by="plain"):
        assert value(scale(X4)) == 2
        with pytest.raises(NoBackendError, match="cutlass"):
            halve(X4)


def test_a_block_ends_after_an_exception() -> None:
    with pytest.raises(NoBackendError), backends.use("plain"):
        scale(X4, offset=X4)
    assert value(scale(X4)) == 1


def test_a_block_can_be_entered_again() -> None:
    block = backends.use("plain")
    with block, block:
        assert value(scale(X4)) == 2
    with block:
        assert value(scale(X4)) == 2
    assert value(scale(X4)) == 1


def test_a_misspelt_op_is_noticed_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="there is no op 'scale_bi'"):
        backends.use(scale_bi="plain")


def test_other_threads_do_not_see_a_block() -> None:
    with backends.use("plain"), ThreadPoolExecutor(1) as pool:
        assert value(pool.submit(scale, X4).result()) == 1
        assert value(scale(X4)) == 2


# -- what a backend may do wrong


@contract("n > 0")
def halve_(x: Row) -> Row:
    """Half of x."""


def halve_reference(x: Tensor) -> Tensor:
    return x / 2


halve = Op(halve_, reference=halve_reference)


class Bug(Exception):
    pass


@halve.backend("buggy", rules=["n == 3"], priority=5)
def halve_buggy(x: Tensor) -> Tensor:
    raise Bug


@halve.backend("wrongly-judged", rules=["n == 5"], priority=5)
def halve_value_error(x: Tensor) -> Tensor:
    raise ContractError("inside", ())


def test_a_bug_inside_a_backend_is_not_a_refusal() -> None:
    for _ in range(2):
        with pytest.raises(Bug):
            halve(torch.ones(3))
        with pytest.raises(ContractError, match="inside"):
            halve(torch.ones(5))


def test_a_broken_module_is_a_reason_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_halves.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    halve.backend("broken", "broken_halves:halve", rules=["n == 7"], priority=9)
    x = torch.full((7,), 4.0)
    for _ in range(2):
        assert value(halve(x)) == 2
    assert "broken_halves" not in sys.modules
    with pytest.raises(NoBackendError) as refusal:
        halve(x, backend="broken")
    (reason,) = (reason for reason in refusal.value.reasons if reason.backend == "broken")
    assert reason.kind == "import"
    assert reason.text == (
        "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert isinstance(refusal.value.__cause__, ModuleNotFoundError)
    assert "broken" in str(halve.explain(x))


def test_a_module_is_imported_by_the_first_call_that_it_can_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_halves.py").write_text("def halve(x):\n    return x * 0 + 77\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    halve.backend("late", "late_halves:halve", rules=["n == 11"], priority=9)
    halve(torch.ones(2))
    assert "late_halves" not in sys.modules
    assert value(halve(torch.ones(11))) == 77
    assert "late_halves" in sys.modules


def test_a_function_that_takes_other_arguments_is_refused() -> None:
    with pytest.raises(
        ContractDefinitionError, match="halve_reference cannot be called like the ref"
    ):
        scale.backend("narrow")(halve_reference)


# -- threads


def test_first_calls_from_eight_threads_at_once() -> None:
    @contract("n > 0", name="raced")
    def raced(x: Row) -> Row: ...

    op = Op(raced, reference=halve_reference)
    op.backend("small", rules=["n <= 4"], priority=1)(halve_reference)
    barrier = threading.Barrier(8)

    def call(index: int) -> tuple[float, str | None]:
        x = torch.full((index + 1,), float(index))
        barrier.wait()
        return value(op(x)), op.explain(x).choice

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, range(8)))
    expected = [(index / 2, "small" if index < 4 else "reference") for index in range(8)]
    assert results == expected


# -- what an op looks like


def test_an_op_has_the_signature_of_its_contract_and_a_choice() -> None:
    *own, choice = inspect.signature(scale).parameters.values()
    assert own == list(inspect.signature(scale_by).parameters.values())
    assert (choice.name, choice.kind, choice.default) == ("backend", choice.KEYWORD_ONLY, None)
    assert scale.__doc__ == "`x * factor + offset`."
    assert scale.contract is scale_by.contract
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        scale()


def test_an_op_is_pickled_by_name_and_copied_as_itself() -> None:
    op = backends.hunyuan_qkv_rope_pack
    assert pickle.loads(pickle.dumps(op)) is op
    assert copy.deepcopy(op) is op


def test_an_op_is_defined_again_as_in_a_notebook_but_never_shadowed() -> None:
    for factor in (2.0, 3.0):

        def again(x: Row) -> Row: ...

        def reference(x: Tensor, factor: float = factor) -> Tensor:
            return x * factor

        op = Op(contract(again, name="defined_again"), reference=lambda_of(reference))
        assert value(op(X4)) == 10 * factor

    @contract(name="defined_again")
    def other(x: Row) -> Row: ...

    with pytest.raises(ContractDefinitionError, match="there is an op 'defined_again' already"):
        Op(other, reference=halve_reference)


def test_buffers_that_outputs_would_ignore_are_a_definition_error() -> None:
    """`op(x, out=buffer)` has to write into that buffer, and return it."""

    @contract(outputs=lambda x: torch.empty_like(x))
    def doubled(x: Row, out: Row | None = None) -> Row: ...

    def double(x: Tensor, out: Tensor) -> None:
        torch.mul(x, 2, out=out)

    with pytest.raises(ContractDefinitionError, match="outputs= of .* does not take 'out'"):
        Op(doubled, reference=double, buffers=["out"])


def lambda_of(function: Any) -> Any:
    def reference(x: Tensor) -> Tensor:
        return function(x)

    return reference


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rules": ["m < 3"]}, "'m' is neither an axis nor an argument"),
        ({"rules": ["n < 3", "n < 3"]}, "two rules have the id 'n<3'"),
        ({"needs": "sm70"}, "names 'sm70'; it may name sm and interpreter"),
        ({"rules": [3]}, "3 is not a rule"),
    ],
)
def test_a_registration_that_cannot_be_honoured_is_refused(
    options: dict[str, Any], match: str
) -> None:
    with pytest.raises(ContractDefinitionError, match=match):
        scale.backend("new", **options)(scale_plain)
    assert "new" not in scale.backends


def test_a_name_is_taken_once() -> None:
    for name in ("plain", "reference"):
        with pytest.raises(ContractDefinitionError, match=f"has a backend '{name}' already"):
            scale.backend(name)(scale_plain)


# -- gradients of an op that has none of its own


def test_a_gradient_is_never_cut_by_a_backend_without_one() -> None:
    halve.backend("cuts", rules=["n == 13"], priority=9)(lambda_of(lambda x: x.detach() / 2))
    x = torch.ones(13, requires_grad=True)
    halve(x).sum().backward()
    assert x.grad is not None
    assert halve.explain(x).choice == "reference"
    with torch.no_grad():
        assert halve.explain(x).choice == "cuts"
    with pytest.raises(NoBackendError, match="cuts: x requires grad"):
        halve(x, backend="cuts")


def test_no_warning_where_the_reference_is_expected(recwarn: pytest.WarningsRecorder) -> None:
    halve(torch.ones(2))
    assert not [w for w in recwarn if issubclass(w.category, BackendWarning)]
