"""A contract of any kind tests itself: every demand is broken alone, and defects are found."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from contracts import Contract, contract, custom, dtype, same_dtype, values
from contracts.explain import violations, violations_of_contents
from contracts.testing import assert_contract, generate
from contracts.testing.cases import Suite, declared
from tests.testing import sample_contracts
from tests.testing.sample_contracts import SOUND, Layer, conditional, large, on_cuda, stack

FUNCTIONS = [function for function in SOUND if not hasattr(function, "__self__")]


def suite_of(function: object) -> Suite:
    return generate(function.contract.declaration)  # type: ignore[attr-defined]


@pytest.mark.parametrize("function", SOUND, ids=lambda function: function.__qualname__)
def test_every_path_agrees_on_every_generated_call(function) -> None:
    assert_contract(function)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_demand_is_broken_by_a_call_of_its_own(function) -> None:
    suite = suite_of(function)
    declaration = function.contract.declaration
    assert {case.breaks for case in suite.broken} == set(declared(declaration))
    assert suite.defects == ()
    assert len({case.id for case in suite.cases}) == len(suite.cases)


def test_boundaries_are_reached_from_inside_and_outside() -> None:
    @contract("0 < head_dim <= 128", "head_dim % 2 == 0", "d in (512, 576)", "rows >= cols")
    def f(
        x: Float32[Tensor, "head_dim rows"],
        y: Float32[Tensor, "d cols"],
    ): ...

    def sizes(cases, axis: str) -> set[int]:
        return {case.plan.sizes[axis] for case in cases}

    suite = suite_of(f)
    assert {2, 126, 128} <= sizes(suite.legal, "head_dim")
    assert {512, 576} == sizes(suite.legal, "d")
    assert {0, 1} <= sizes(suite.legal, "rows")
    broken = {
        rule.id: [case for case in suite.broken if case.breaks == rule.id]
        for rule in f.contract.rules
    }
    assert {0, 130} <= sizes(broken["0<head_dim<=128"], "head_dim")
    assert {127} <= sizes(broken["head_dim%2==0"], "head_dim")
    assert {511, 513, 575, 577} <= sizes(broken["din(512,576)"], "d")
    differences = {c.plan.sizes["rows"] - c.plan.sizes["cols"] for c in suite.legal}
    assert 0 in differences
    differences = {c.plan.sizes["rows"] - c.plan.sizes["cols"] for c in broken["rows>=cols"]}
    assert -1 in differences


def test_generation_is_deterministic() -> None:
    assert [case.id for case in suite_of(stack).cases] == [
        case.id for case in suite_of(stack).cases
    ]


def test_a_device_that_is_not_here_is_imagined() -> None:
    suite = suite_of(on_cuda)
    assert all(c.plan.fake for c in suite.legal) or torch.cuda.is_available()
    assert {c.breaks for c in suite.broken} >= {'device("cuda")', "same_device", "aligned(16,x)"}


def test_a_call_too_large_for_memory_is_imagined() -> None:
    smallest = suite_of(large).legal[0].plan
    assert smallest.sizes == {"n": 2**20, "m": 2**31 + 1}
    assert smallest.fake


def test_conditional_rules_are_broken_where_their_condition_holds() -> None:
    broken = [c for c in suite_of(conditional).broken if c.breaks == "whencausal:q_len<=kv_len"]
    assert broken
    assert all(case.plan.values["causal"] is True for case in broken)


def test_a_contract_that_no_call_obeys_is_a_defect() -> None:
    @contract("n > 4", "n < 3", "m > 0")
    def f(x: Float32[Tensor, "n m"]): ...

    (defect,) = suite_of(f).defects
    assert defect.rule is None
    assert "n>4" in defect.reason
    assert "n<3" in defect.reason
    assert "m>0" not in defect.reason
    with pytest.raises(AssertionError, match="no legal call"):
        assert_contract(f)


def test_a_rule_that_another_implies_is_a_defect() -> None:
    @contract("n % 4 == 0", "n % 2 == 0")
    def f(x: Float32[Tensor, "n"]): ...

    (defect,) = suite_of(f).defects
    assert defect.rule == "n%2==0"
    assert "n%4==0" in defect.reason


def test_a_rule_that_an_annotation_implies_is_a_defect() -> None:
    @contract(dtype(torch.float32, "x"))
    def f(x: Float32[Tensor, "n"]): ...

    (defect,) = suite_of(f).defects
    assert defect.rule == "dtype(float32,x)"


def test_a_method_that_looks_at_its_object_is_tested_on_one() -> None:
    with pytest.raises(TypeError, match="looks at self"):
        assert_contract(Layer.forward)
    assert_contract(Layer.forward, given={"self": Layer()})


def test_a_value_that_cannot_be_made_up_is_given() -> None:
    class Config:
        def __init__(self, width: int) -> None:
            self.width = width

    @contract
    def f(x: Float32[Tensor, "n {config.width}"], config: Config): ...

    with pytest.raises(LookupError, match=r"config: .*Config.*given="):
        assert_contract(f)
    assert_contract(f, given={"config": Config(3)})


def test_a_check_that_accepts_what_the_contract_refuses_is_noticed() -> None:
    @contract("n % 2 == 0")
    def f(x: Float32[Tensor, "n"]): ...

    lax = Contract(f.contract.declaration)
    lax.__dict__["_passes"] = type(lax._passes)(lambda x: True, "")
    with pytest.raises(AssertionError, match="the generated check accepts it"):
        assert_contract(lax)


def test_a_function_that_runs_a_refused_call_is_noticed() -> None:
    @contract("n % 2 == 0")
    def f(x: Float32[Tensor, "n"]): ...

    def bypass(x: Tensor) -> None: ...

    bypass.contract = f.contract  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="calling it raises nothing"):
        assert_contract(bypass)


def test_a_failing_call_is_shown_as_code_that_repeats_it() -> None:
    @contract("n % 2 == 0")
    def f(x: Float32[Tensor, "n"]): ...

    def bypass(x: Tensor) -> None: ...

    bypass.contract = f.contract  # type: ignore[attr-defined]
    with pytest.raises(AssertionError) as failure:
        assert_contract(bypass)
    assert "x = torch.zeros((4,), dtype=torch.bfloat16)\nf(x=x)" in str(failure.value)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_printed_code_makes_the_same_call(function) -> None:
    declaration = function.contract.declaration
    seen = []
    scope = vars(sample_contracts) | {
        declaration.name: lambda *args, **kwargs: seen.append(
            function.contract.bind(*args, **kwargs)
        )
    }
    for case in suite_of(function).cases:
        source = case.plan.source(declaration.name, declaration.call_signature)
        exec(source, dict(scope))
        arguments = seen.pop()
        found = {fault.rule for fault in violations(declaration, arguments)}
        if case.contents:
            found = {fault.rule for fault in violations_of_contents(declaration, arguments)}
        assert found == case.besides | ({case.breaks} if case.breaks else set()), source


def test_legal_calls_hold_what_rules_on_contents_allow() -> None:
    @contract(values("0 < lengths <= cols"), values("unique(lengths)", id="unique"))
    def f(x: Float32[Tensor, "rows cols"], lengths: Int32[Tensor, "rows"]): ...

    suite = suite_of(f)
    assert all(
        not violations_of_contents(suite.declaration, case.plan.build()) for case in suite.legal
    )
    broken = {case.breaks: case for case in suite.broken if case.contents}
    assert set(broken) == {"0<lengths<=cols", "unique"}
    assert f.contract.accepts(**broken["unique"].plan.build())


def test_numbers_that_a_call_gives_no_value_are_no_limits() -> None:
    @contract(values("cols == 0 or x < 64 // cols", id="guarded"))
    def f(x: Int32[Tensor, "rows"], y: Float32[Tensor, "cols"]): ...

    suite = suite_of(f)
    assert {case.plan.sizes["cols"] for case in suite.legal} > {0}
    assert {case.breaks for case in suite.broken if case.contents} == {"guarded"}


def test_custom_rules_are_searched_for() -> None:
    @contract(custom(lambda x: x.shape[0] != 6, "not six rows"))
    def f(x: Float32[Tensor, "n"]): ...

    assert [c.plan.sizes["n"] for c in suite_of(f).broken if c.breaks.startswith("custom")]


@pytest.mark.parametrize("names", [("k",), ("k", "v")])
def test_a_rule_on_dtypes_is_broken_by_changing_all_that_agree(names: tuple[str, ...]) -> None:
    """One tensor of another dtype breaks the agreement as well: only both break the rule alone."""

    @contract(same_dtype("k", "v"), dtype((torch.bfloat16, torch.float16), *names))
    def f(k: Float[Tensor, "n"], v: Float[Tensor, "n"]): ...

    assert_contract(f)
