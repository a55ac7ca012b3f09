"""The catalogue of contracts that are not ours: containers, unions, methods, every kind of rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Float32, Int32, Shaped
from torch import Tensor

from contracts import (
    aligned,
    contract,
    custom,
    device,
    dtype,
    requires,
    same_dtype,
    unit_stride,
    values,
    when,
)
from contracts.catalog import Entry, Subject, catalogue, look_up, mended
from contracts.explain import violations, violations_of_contents
from contracts.markdown import catalogue as markdown
from contracts.pages import write


@contract(
    "0 < n <= 8",
    when("causal", "q_len <= kv_len", id="causal-fits"),
    when("flag is not None", device("cpu", "bias"), id="flagged-on-cpu"),
    custom(lambda n: n % 2 == 0, "n is even", id="even"),
    same_dtype("x", "t", id="one-dtype"),
    values("isfinite(x)", id="finite"),
    requires("bias", id="bias-given"),
    "mode in (1, 2)",
)
def mixed(
    x: Shaped[Tensor, "*batch q_len n"],
    t: Shaped[Tensor, "*#batch kv_len n"],
    items: list[Float32[Tensor, "k n"]],
    table: dict[str, Float32[Tensor, "n 3"]],
    either: Float32[Tensor, "n"] | Int32[Tensor, "n n"],
    *rest: Float32[Tensor, "n ... k"],
    mode: int = 1,
    causal: bool = True,
    kind: Literal["a", "b"] = "a",
    flag: int | None = None,
    bias: Float32[Tensor, "#q_len"] | None = None,
    anything: Any = None,
    **named: Float32[Tensor, "n"],
) -> Float32[Tensor, "n"]: ...


@contract(dtype((torch.float16, torch.float32), "x"), aligned(16, "x"), unit_stride("x", dim=0))
def laid_out(x: Shaped[Tensor, "n"]) -> None: ...


class Layer:
    @contract("n > 1")
    def forward(self, x: Float32[Tensor, "n dim"]) -> None: ...


class Unknown: ...


@contract("n > 3", "n < 2")
def impossible(x: Float32[Tensor, "n"]) -> None: ...


@contract
def opaque(u: Unknown, x: Float32[Tensor, "n"]) -> None: ...


@contract
def nothing() -> None: ...


FUNCTIONS = {
    "mixed": mixed,
    "laid_out": laid_out,
    "Layer.forward": Layer.forward,
    "impossible": impossible,
    "opaque": opaque,
    "nothing": nothing,
}


def subject_of(name: str) -> Subject:
    return Subject(name, FUNCTIONS[name], FUNCTIONS[name].contract)


def entries_of(name: str) -> tuple[Entry, ...]:
    subject = subject_of(name)
    return mended(subject, catalogue([subject]))


def refusals(subject: Subject, arguments: dict[str, Any]) -> list[str]:
    declaration = subject.contract.declaration
    found = violations(declaration, arguments) or violations_of_contents(declaration, arguments)
    return [fault.rule for fault in found]


@pytest.fixture(scope="module", params=["mixed", "laid_out", "Layer.forward"])
def subject_and_entries(request: pytest.FixtureRequest) -> tuple[Subject, list[Entry]]:
    return subject_of(request.param), [e for e in entries_of(request.param) if e.fix is not None]


def each_call(
    subject: Subject, entries: list[Entry]
) -> list[tuple[Entry, dict[str, Any], dict[str, Any]]]:
    calls = []
    for entry in entries:
        assert entry.fix is not None
        before: dict[str, Any] = {"self": None}
        exec(f"{entry.fix.setup}\n{entry.fix.before}", before)
        after = {"self": None}
        exec(f"{entry.fix.setup}\n{entry.fix.before}\n{entry.fix.after}", after)
        names = [argument.name for argument in subject.contract.declaration.arguments]
        calls.append((entry, {n: before[n] for n in names}, {n: after[n] for n in names}))
    return calls


Given = tuple[Subject, list[Entry]]


def test_most_entries_have_an_example(subject_and_entries: Given) -> None:
    subject, entries = subject_and_entries
    assert len(entries) > 0.7 * len(catalogue([subject]))


def test_fixes_mend(subject_and_entries: Given) -> None:
    subject, entries = subject_and_entries
    for entry, before, after in each_call(subject, entries):
        assert refusals(subject, before) == [entry.rule]
        assert refusals(subject, after) == []


def test_messages_are_recognised(subject_and_entries: Given) -> None:
    _, entries = subject_and_entries
    for entry in entries:
        assert entry.fix is not None
        assert re.search(entry.pattern, entry.fix.message), entry.id
        assert entry in [match.entry for match in look_up(entry.fix.message, entries)]


def test_pasted_checks_agree(subject_and_entries: Given) -> None:
    subject, entries = subject_and_entries
    names = {"torch": torch, "mixed": mixed, "laid_out": laid_out, "Layer": Layer}
    for entry, before, after in each_call(subject, entries):
        exec(entry.validation, {**names, **after})
        with pytest.raises(AssertionError):
            exec(entry.validation, {**names, **before})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_contract_has_pages(name: str, tmp_path: Path) -> None:
    subject, entries = subject_of(name), entries_of(name)
    assert write([subject], entries, tmp_path) == 2 + len(entries)
    text = markdown([subject], entries)
    assert [entry.id for entry in entries if f"### {entry.id}" not in text] == []


@pytest.mark.parametrize("function", [impossible, opaque])
def test_without_a_legal_call_there_is_no_example(function: Callable[..., Any]) -> None:
    assert {entry.fix for entry in entries_of(function.__name__)} == {None}


def test_a_method_is_called_on_its_object() -> None:
    entry = entries_of("Layer.forward")[0]
    assert "self.forward(x)" in entry.handler
    assert "Layer.forward.contract.accepts(x)" in entry.guard
