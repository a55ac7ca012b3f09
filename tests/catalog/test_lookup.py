"""Pasted text leads to the right entries."""

from __future__ import annotations

import re

import pytest

from contracts import ContractError
from contracts.catalog import Entry, Subject, look_up, path_in
from contracts.catalog.entry import upstream_pattern

HUNYUAN = "hunyuan_qkv_rope_pack"
SPARSE = "sparse_mla_q8kv8_prefill_fwd"


def found(text: str, entries: dict[str, Entry]) -> list[tuple[str, str]]:
    return [(match.entry.id, match.how) for match in look_up(text, tuple(entries.values()))]


@pytest.mark.parametrize(
    ("text", "first", "how"),
    [
        (f"{SPARSE}/kv-d_qk", f"{SPARSE}/kv-d_qk", "id"),
        ("kv-d_qk", f"{SPARSE}/kv-d_qk", "id"),
        (f"backends:{SPARSE}/kv-d_qk", f"{SPARSE}/kv-d_qk", "id"),
        ("kv d_qk must match q d_qk=576, got 512", f"{SPARSE}/kv-d_qk", "upstream"),
        ("kv d_qk must match q d_qk={d_qk}, got {kv_d_qk}", f"{SPARSE}/kv-d_qk", "upstream"),
        ("image QKV shapes must match", f"{HUNYUAN}/img_k-num_heads", "upstream"),
        ("text QKV shapes must match", f"{HUNYUAN}/txt_q-batch", "upstream"),
        ("QKV tensors must have shape [B, S, H, D]", f"{HUNYUAN}/img_q-rank", "upstream"),
        (
            "2026-01-01 12:00:00 ERROR [rank 3] ValueError: sparse_mla_q8kv8_prefill_fwd requires "
            "h_q padded to a positive multiple of 64, got 16",
            f"{SPARSE}/h_q-multiple-of-64",
            "upstream",
        ),
        (
            "worker-1 | kv axis 2 (d_qk) is 512, expected 576: d_qk is 576, from q axis 2",
            f"{SPARSE}/kv-d_qk",
            "message",
        ),
        ("sin is on cpu, expected cuda:0: img_q is on cuda:0", f"{HUNYUAN}/same-device", "message"),
        ("lse is on cpu, expected cuda:0: q is on cuda:0", f"{SPARSE}/same-device", "message"),
        ("out and lse overlap in memory", f"{SPARSE}/buffers-disjoint", "message"),
        (
            "indices[0, 0, 7] is 900, breaks -1 <= indices < s_kv: 1 of 128 elements break it",
            f"{SPARSE}/indices-range",
            "message",
        ),
    ],
)
def test_a_text_finds_its_entry(text: str, first: str, how: str, entries: dict[str, Entry]) -> None:
    assert found(text, entries)[0] == (first, how)


def test_an_upstream_message_finds_every_fact_that_it_may_mean(entries: dict[str, Entry]) -> None:
    shared = {f"img_{x}-{axis}" for x in "qkv" for axis in ("batch", "num_heads", "head_dim")}
    wanted = {f"{HUNYUAN}/{fact}" for fact in (*shared, "img_k-img_len", "img_v-img_len")}
    assert {id for id, _ in found("image QKV shapes must match", entries)} == wanted


def test_a_whole_error_finds_each_of_its_violations(
    entries: dict[str, Entry], subjects: dict[str, Subject]
) -> None:
    with pytest.raises(ContractError) as caught:
        subjects[SPARSE].contract.check_axes(h_q=16, d_qk=500)
    logged = "".join(f"[rank 0] {line}\n" for line in str(caught.value).splitlines())
    assert found(logged, entries) == [
        (f"{SPARSE}/d_qk-width", "id"),
        (f"{SPARSE}/h_q-multiple-of-64", "id"),
    ]


def test_every_broken_call_leads_back_to_its_rule(
    entries: dict[str, Entry], subjects: dict[str, Subject]
) -> None:
    lost = []
    for entry in entries.values():
        assert entry.fix is not None
        ids = [id for id, how in found(entry.fix.message, entries) if how == "message"]
        if entry.id not in ids:
            lost.append((entry.id, ids))
    assert lost == []


def test_a_message_is_not_taken_for_many(entries: dict[str, Entry]) -> None:
    """Facts of one argument say different things; only equal demands of several ops may tie."""
    for entry in entries.values():
        assert entry.fix is not None
        same_op = [id for id, _ in found(entry.fix.message, entries) if id.startswith(entry.op)]
        assert same_op == [entry.id]


def test_words_only_suggest(entries: dict[str, Entry]) -> None:
    matches = found("heads have to be padded", entries)
    assert (f"{SPARSE}/h_q-multiple-of-64", "words") in matches
    assert {how for _, how in matches} == {"words"}


def test_nonsense_finds_nothing(entries: dict[str, Entry]) -> None:
    assert found("zzyzx", entries) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("pkg.mod:attend/kv_len>=q_len", "pkg.mod:attend"),
        ("pkg.mod:Layer.forward/n/2==3", "pkg.mod:Layer.forward"),
        ("train.py:attend/x-rank", "train.py:attend"),
        ("...\nexplain: python -m contracts explain 'pkg:f/a>b'", "pkg:f"),
        ("...\nexplain: python -m contracts explain pkg:f/x-rank\n", "pkg:f"),
        ("kv-d_qk", None),
        (f"{SPARSE}/kv-d_qk", None),
        ("x is 3/4: expected 1/2", None),
    ],
)
def test_the_function_that_a_text_names(text: str, path: str | None) -> None:
    assert path_in(text) == path


def test_upstream_messages_are_literal_but_for_their_holes() -> None:
    pattern = upstream_pattern("shape [B, S] (got (.+?), wanted (.+?))")
    assert re.search(pattern, "shape [B,  S] (got 3,\n wanted 4)")
    assert not re.search(pattern, "shape B, (got 3, wanted 4)")
