"""A refusal is data first: violations with their fields, plain dictionaries, pickles."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractError, Violation, contract, rule, unit_stride


@contract(rule("n % 4 == 0", id="n-by-4", hint="pad", fix="x = pad(x, {extra}, {nearest}, {n})"))
def f(x: Float32[Tensor, "b n"], y: Float32[Tensor, "n"], k: int = 3) -> None: ...


def refusal() -> ContractError:
    with pytest.raises(ContractError) as caught:
        f(torch.zeros(2, 6), torch.zeros(5), k="3")
    return caught.value


def test_every_violation_has_its_fields() -> None:
    assert refusal().violations == (
        Violation(
            rule="y-n",
            message="y axis 0 (n) is 5, expected 6",
            argument="y",
            axis=0,
            expected="6",
            actual="5",
            origin="n is 6, from x axis 1",
        ),
        Violation(
            rule="k-type",
            message="k is '3', expected int",
            argument="k",
            expected="int",
            actual="'3'",
        ),
        Violation(
            rule="n-by-4",
            message="n % 4 == 0 does not hold; nearest sizes: 4 or 8",
            expected="n % 4 == 0",
            actual="n=6",
            origin="n is 6, from x axis 1",
            fix="x = pad(x, 2, 8, 6)",
            hint="pad",
        ),
    )


def test_violations_are_what_the_error_carries() -> None:
    assert f.contract.violations(torch.zeros(2, 6), torch.zeros(5), k="3") == refusal().violations


def test_violations_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        refusal().violations[0].rule = "x"  # type: ignore[misc]


def test_as_plain_data() -> None:
    data = refusal().to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["function"] == "f"
    assert data["error"] == "ContractError"
    assert [item["rule"] for item in data["violations"]] == ["y-n", "k-type", "n-by-4"]
    assert data["violations"][2]["fix"] == "x = pad(x, 2, 8, 6)"
    assert data["arguments"] == ["x  float32[2, 6] cpu", "y  float32[5] cpu", "k  '3'"]


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        *(lambda e, p=p: pickle.loads(pickle.dumps(e, p)) for p in range(6)),
    ],
)
def test_copies_and_pickles(duplicate) -> None:
    error = refusal()
    again = duplicate(error)
    assert type(again) is ContractError
    assert str(again) == str(error)
    assert again.violations == error.violations
    assert again.to_dict() == error.to_dict()


def test_it_is_a_value_error() -> None:
    assert isinstance(refusal(), ValueError)


def test_the_order_is_that_of_the_arguments_and_then_of_the_rules() -> None:
    @contract("n > 9", "m > 9", unit_stride())
    def g(
        k: int,
        x: Float32[Tensor, "n"] | None,
        xs: list[Float32[Tensor, "n"]],
        y: Float32[Tensor, "n m"],
    ) -> None: ...

    x, y = torch.zeros(4)[::2], torch.zeros(3, 4).double()
    rules = [fault.rule for fault in g.contract.violations("k", x, [x.half()], y)]
    first = ["k-type", "x-n", "xs[]-dtype", "xs[]-n", "y-dtype", "n>9", "m>9"]
    assert rules == [*first, "unit_stride"]
    assert rules == [fault.rule for fault in g.contract.violations("k", x, [x.half()], y)]


def test_provenance_of_every_kind_of_size() -> None:
    @contract("a == b + c", "d > k")
    def g(
        x: Float32[Tensor, "*rest a"],
        k: int,
        y: Float32[Tensor, "b"] | None = None,
        z: list[Float32[Tensor, "c d"]] = (),  # type: ignore[assignment]
        *,
        w: Float32[Tensor, "*rest"] | None = None,
    ) -> None: ...

    faults = g.contract.violations(
        torch.zeros(2, 3, 9), 7, torch.zeros(4), [torch.zeros(3, 2)], w=torch.zeros(2)
    )
    assert [fault.origin for fault in faults] == [
        "rest is (2, 3), from x axis 0",
        "a is 9, from x axis 2; b is 4, from y axis 0; c is 3, from z[0] axis 0",
        "d is 2, from z[0] axis 1; k is 7",
    ]
