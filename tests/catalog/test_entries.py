"""Every entry is complete, and its code does what it says."""

from __future__ import annotations

import functools
import inspect
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from contracts import ContractError, modes
from contracts.catalog import Entry, Subject, entries_of, find
from contracts.explain import violations, violations_of_contents
from contracts.facts import facts

ROOT = Path(__file__).resolve().parents[2]
OPS = ("hunyuan_qkv_rope_pack", "sparse_mla_q8kv8_prefill_fwd")
IDS = [entry.id for op in OPS for entry in entries_of(find(op))]

# The record of an upstream error catalogue, as far as it says anything about a Python function.
FIELDS = (
    *("id", "slug", "errorCode", "errorMessage", "messagePattern", "errorType", "errorClass"),
    *("severity", "filePath", "lineNumber", "sourceCode", "sourceCodeStart", "sourceCodeEnd"),
    *("documentation", "triggerScenarios", "commonSituations", "solutions", "exampleFix"),
    *("handlingStrategy", "validationCode", "typeGuard", "tryCatchPattern", "preventionTips"),
    *("tags", "schemaVersion"),
)
MAY_BE_NONE = {"commonSituations"}


def run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(code, names)
    return names


def call_of(subject: Subject, *code: str) -> dict[str, Any]:
    """The arguments that pieces of code make, one after another."""
    fake = any('device="cuda' in part for part in code) and not torch.cuda.is_available()
    names: dict[str, Any] = {}
    with FakeTensorMode() if fake else nullcontext():
        for part in code:
            run(part, names)
    return {a.name: names[a.name] for a in subject.contract.declaration.arguments}


@functools.cache
def broken(entry: Entry, subject: Subject) -> dict[str, Any]:
    """The call before the fix; nobody changes its tensors."""
    assert entry.fix is not None
    return call_of(subject, entry.fix.setup, entry.fix.before)


@functools.cache
def mended(entry: Entry, subject: Subject) -> dict[str, Any]:
    assert entry.fix is not None
    return call_of(subject, entry.fix.setup, entry.fix.before, entry.fix.after)


def refusals(subject: Subject, arguments: dict[str, Any]) -> list[str]:
    declaration = subject.contract.declaration
    found = violations(declaration, arguments) or violations_of_contents(declaration, arguments)
    return [fault.rule for fault in found]


@pytest.fixture
def entry(request: pytest.FixtureRequest, entries: dict[str, Entry]) -> Entry:
    return entries[request.param]


@pytest.fixture
def subject(entry: Entry, subjects: dict[str, Subject]) -> Subject:
    return subjects[entry.op]


every_entry = pytest.mark.parametrize("entry", IDS, indirect=True)


@pytest.mark.parametrize("op", OPS)
def test_every_rule_and_every_fact_is_an_entry(op: str, subjects: dict[str, Subject]) -> None:
    declaration = subjects[op].contract.declaration
    expected = [f.id for f in facts(declaration)] + [r.id for r in declaration.rules]
    assert [entry.rule for entry in entries_of(subjects[op])] == expected


def test_ids_and_slugs_are_unique(entries: dict[str, Entry]) -> None:
    assert len({entry.id for entry in entries.values()}) == len(IDS)
    assert len({(entry.op, entry.slug.lower()) for entry in entries.values()}) == len(IDS)


@every_entry
def test_every_field_is_filled(entry: Entry) -> None:
    data = entry.to_dict()
    assert [name for name in FIELDS if name not in data] == []
    assert [name for name in FIELDS if not data[name] and name not in MAY_BE_NONE] == []


@every_entry
def test_the_fix_turns_a_refused_call_into_an_accepted_one(entry: Entry, subject: Subject) -> None:
    assert refusals(subject, broken(entry, subject)) == [entry.rule]
    assert refusals(subject, mended(entry, subject)) == []


@every_entry
def test_the_message_is_the_one_that_the_call_hears(entry: Entry, subject: Subject) -> None:
    declaration, arguments = subject.contract.declaration, broken(entry, subject)
    found = violations(declaration, arguments) or violations_of_contents(declaration, arguments)
    assert entry.fix is not None
    assert str(found[0]).splitlines()[0] == entry.fix.message
    assert re.search(entry.pattern, entry.fix.message)


@every_entry
def test_the_validation_code_agrees_with_the_contract(entry: Entry, subject: Subject) -> None:
    names = {"torch": torch, subject.name: subject.target}
    run(entry.validation, {**names, **mended(entry, subject)})
    with pytest.raises(AssertionError):
        run(entry.validation, {**names, **broken(entry, subject)})


@every_entry
def test_the_guard_tells_calls_apart(entry: Entry, subject: Subject) -> None:
    accepted = run(entry.guard, {subject.name: subject.target})["accepted"]
    assert accepted(**mended(entry, subject))
    if entry.kind != "contents":  # contents are no matter of metadata
        assert not accepted(**broken(entry, subject))


@every_entry
def test_the_handler_catches_this_violation_and_no_other(entry: Entry, subject: Subject) -> None:
    target = subject.contract.guard(subject.contract.empty_outputs)
    names = {subject.name: target, "ContractError": ContractError}
    with modes.mode("debug" if entry.kind == "contents" else "static"):
        run(entry.handler, {**names, **broken(entry, subject)})
        run(entry.handler, {**names, **mended(entry, subject)})
        nothing = dict.fromkeys(mended(entry, subject))
        with pytest.raises(ContractError):
            run(entry.handler.replace(entry.rule, "no-such-rule"), {**names, **nothing})


@every_entry
def test_the_source_is_where_the_demand_is_written(entry: Entry) -> None:
    assert entry.source is not None
    lines = (ROOT / entry.source.file).read_text().splitlines()
    written = lines[entry.source.line - 1 : entry.source.end]
    assert inspect.cleandoc("\n".join(["", *written])) == entry.source.text
    # A rule stands there with its id, a fact as the annotation of its argument.
    assert f'"{entry.rule}"' in entry.source.text or entry.source.text.startswith(
        f"{entry.arguments[0]}:"
    )


@every_entry
def test_related_entries_exist_and_are_others(entry: Entry, entries: dict[str, Entry]) -> None:
    assert entry.id not in entry.related
    assert [other for other in entry.related if other not in entries] == []


def test_related_entries_reach_into_other_operations(entries: dict[str, Entry]) -> None:
    related = entries["hunyuan_qkv_rope_pack/same-device"].related
    assert "sparse_mla_q8kv8_prefill_fwd/same-device" in related


def test_a_size_from_a_configuration_can_be_checked_without_tensors(
    entries: dict[str, Entry], subjects: dict[str, Subject]
) -> None:
    entry = entries["sparse_mla_q8kv8_prefill_fwd/h_q-multiple-of-64"]
    assert "contract.check_axes(h_q=...)" in entry.prevention[0]
    with pytest.raises(ContractError, match="h_q-multiple-of-64"):
        subjects[entry.op].contract.check_axes(h_q=16)


def test_what_the_author_adds_is_there(entries: dict[str, Entry]) -> None:
    entry = entries["sparse_mla_q8kv8_prefill_fwd/kv-d_qk"]
    assert "Allocate the cache with the width that the queries have" in entry.meaning
    assert entry.situations is not None
    assert "rotary columns" in entry.situations


def test_an_upstream_page_on_image_shapes_has_its_counterpart(entries: dict[str, Entry]) -> None:
    """What a hand-written page said of `image QKV shapes must match`, said by the contract."""
    data = entries["hunyuan_qkv_rope_pack/img_k-num_heads"].to_dict()
    assert "image QKV shapes must match" in data["upstreamPatterns"]
    assert "fewer heads than the queries" in data["commonSituations"]
    assert "img_k = img_k.repeat_interleave(2, dim=2)" in data["exampleFix"]
    assert data["validationCode"].endswith("assert img_k.shape[2] == num_heads")
    assert "different num_heads" in data["triggerScenarios"]
    assert data["filePath"] == "backends/ops/hunyuan_qkv_rope_pack/contract.py"


def test_an_upstream_page_on_cache_widths_has_its_counterpart(entries: dict[str, Entry]) -> None:
    """What a hand-written record said of `kv d_qk must match q d_qk`, said by the contract."""
    data = entries["sparse_mla_q8kv8_prefill_fwd/kv-d_qk"].to_dict()
    assert "kv d_qk must match q d_qk=(.+?), got (.+?)" in data["upstreamPatterns"]
    assert data["errorType"] == "validation"
    assert "tensor parallelism that halves one of the two" in data["commonSituations"]
    assert "assert kv.shape[2] == d_qk" in data["validationCode"]
    assert "from one value of the configuration" in data["preventionTips"][0]
    assert data["tags"][0] == "shape"
    assert "dtype=torch.float8_e4m3fn" in data["exampleFix"]
