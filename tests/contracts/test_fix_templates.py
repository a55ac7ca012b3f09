"""What a fix may have in its braces is known when the contract is declared, not when a call is
refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float32, Int32
from torch import Tensor

import contracts
from contracts import (
    ContractDefinitionError,
    ContractError,
    about,
    contiguous,
    contract,
    rule,
    values,
    when,
)

KINDS: dict[str, Callable[[str], Any]] = {
    "values": lambda fix: values("x < n", fix=fix),
    "expression": lambda fix: rule("n % 8 == 0", fix=fix),
    "tensor": lambda fix: contiguous("x", fix=fix),
    "about": lambda fix: about("x-dtype", fix=fix),
    "within when": lambda fix: when("n > 1", values("x < n", fix=fix)),
}


def declare(kind: str, fix: str) -> Callable[..., Any]:
    @contract(KINDS[kind](fix))
    def f(x: Int32[Tensor, "n"], y: Float32[Tensor, "m"] | None = None, k: int = 3) -> None: ...

    return f


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fix", "said"),
    [
        ("x = {0}", "has {0}, which is neither"),
        ("x = {}", "has {}, which is neither"),
        ("x = {", "cannot be read"),
        ("x = }", "cannot be read"),
        ("x = x[:{k.real}]", "has {k.real}"),
        ("x = x[:{k[0]}]", "has {k[0]}"),
        ("x = x[:{k:d}]", "has {k:d}"),
        ("x = x[:{k!r}]", "has {k!r}"),
        ("x = {x}", "has {x}, which is neither an axis nor an argument without tensors"),
        ("x = {missing}", "has {missing}"),
    ],
)
def test_a_fix_that_could_not_be_filled_in_is_an_error_at_decoration(
    kind: str, fix: str, said: str
) -> None:
    with pytest.raises(ContractDefinitionError) as caught:
        declare(kind, fix)
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_axes_arguments_and_doubled_braces_are_right(kind: str) -> None:
    declare(kind, "x = dict(a={{}})[:{n} - {k}]")


def test_nearest_and_extra_belong_to_expressions() -> None:
    declare("expression", "x = pad(x, {nearest}, {extra})")
    with pytest.raises(ContractDefinitionError, match="has {nearest}"):
        declare("values", "x = pad(x, {nearest})")


@pytest.mark.parametrize("mode", ["debug", "async"])
def test_the_id_of_what_stands_under_a_condition_is_kept(mode: str) -> None:
    @contract(when("n > 1", values("x > 0", id="inner")), when("n > 1", rule("n > 2", id="size")))
    def f(x: Int32[Tensor, "n"]) -> None: ...

    with contracts.mode(mode), pytest.raises(ContractError) as caught:
        f(torch.zeros(3, dtype=torch.int32))
        contracts.synchronize()
    assert [violation.rule for violation in caught.value.violations] == ["inner"]
    assert [rule.id for rule in f.contract.declaration.rules] == ["inner", "size"]


def test_an_id_of_the_condition_itself_comes_first() -> None:
    @contract(when("n > 1", values("x > 0", id="inner"), id="outer"))
    def f(x: Int32[Tensor, "n"]) -> None: ...

    assert [rule.id for rule in f.contract.declaration.rules] == ["outer"]
