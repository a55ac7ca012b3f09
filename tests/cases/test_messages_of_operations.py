"""A refusal speaks of the broken rules and of no others, with the numbers that broke them, and what
it says is what is enforced: sizes that obey the words are accepted, all others are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import backends
from contracts import ContractError
from contracts.errors import Violation

attend = backends.sparse_mla_q8kv8_prefill_fwd
pack = backends.hunyuan_qkv_rope_pack


def attention(h_q: int = 64, topk: int = 128, d_qk: int = 576, d_v: int = 512) -> dict[str, Any]:
    """Metadata is all that matters here."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    return {
        "q": empty(2, h_q, d_qk, dtype=torch.float8_e4m3fn),
        "kv": empty(40, 1, d_qk, dtype=torch.float8_e4m3fn),
        "indices": empty(2, 1, topk, dtype=torch.int32),
        "sm_scale": 0.04,
        "q_scale": empty(1),
        "kv_scale": empty(1),
        "d_v": d_v,
    }


def packing(img_len: int = 5, table_len: int = 9, head_dim: int = 16) -> dict[str, Tensor]:
    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    images = {f"img_{x}": empty(2, img_len, 3, head_dim) for x in "qkv"}
    texts = {f"txt_{x}": empty(2, 4, 3, head_dim) for x in "qkv"}
    tables = {x: empty(table_len, head_dim // 2, dtype=torch.float32) for x in ("cos", "sin")}
    return {**images, **texts, **tables}


# What the words of each rule mean, written out independently of the language that states them.
WORDS: dict[str, tuple[Any, str, Callable[[int], bool], Callable[[int], dict[str, Any]]]] = {
    "h_q > 0 and h_q % 64 == 0": (
        attend, "h_q", lambda n: n > 0 and n % 64 == 0, lambda n: attention(h_q=n)
    ),
    "topk > 0 and topk % 128 == 0": (
        attend, "topk", lambda n: n > 0 and n % 128 == 0, lambda n: attention(topk=n)
    ),
    "d_qk in (512, 576)": (
        attend, "d_qk", lambda n: n in (512, 576), lambda n: attention(d_qk=n)
    ),
    "d_v == 512": (attend, "d_v", lambda n: n == 512, lambda n: attention(d_v=n)),
    "head_dim % 2 == 0": (
        pack, "head_dim", lambda n: n % 2 == 0, lambda n: packing(head_dim=n)
    ),
    "0 < head_dim <= 128": (
        pack, "head_dim", lambda n: 0 < n <= 128, lambda n: packing(head_dim=n)
    ),
    "table_len >= img_len": (
        pack, "table_len", lambda n: n >= 5, lambda n: packing(table_len=n)
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_the_rule_that_is_stated_is_the_rule_that_is_enforced(words: str) -> None:
    """At every size around its limits: refused by just these words where they are
    false, and by no such rule where they are true."""
    op, axis, obeys, call = WORDS[words]
    for size in range(500, 600) if axis == "d_qk" else range(300):
        faults = op.contract.violations(**call(size))
        stated = [fault for fault in faults if fault.message.startswith(words)]
        assert len(stated) == (not obeys(size)), size
        assert op.contract.accepts(**call(size)) == (not faults)
        for fault in stated:
            assert f"{axis} is {size}" in f"{fault.message} {fault.origin}"


@pytest.mark.parametrize("words", WORDS)
def test_sizes_that_are_recommended_are_accepted(words: str) -> None:
    op, _, _, call = WORDS[words]
    recommended = set()
    for size in (0, 1, 3, 16, 63, 65, 100, 129, 192, 560, 600):
        for fault in op.contract.violations(**call(size)):
            if fault.message.startswith(words):
                nearest = re.search(r"nearest sizes?: ([\d or,]+)", fault.message)
                recommended |= set(re.findall(r"\d+", nearest[1])) if nearest else set()
    assert recommended or words in ("d_v == 512", "table_len >= img_len")
    for size in recommended:
        assert op.contract.accepts(**call(int(size))), size


BROKEN: dict[str, tuple[dict[str, int], list[str]]] = {
    "heads": ({"h_q": 96}, ["h_q-multiple-of-64"]),
    "lanes": ({"topk": 100}, ["topk-multiple-of-128"]),
    "width": ({"d_qk": 560}, ["d_qk-width"]),
    "value width": ({"d_v": 576}, ["d_v-width"]),
    "heads and lanes": (
        {"topk": 100, "h_q": 96}, ["h_q-multiple-of-64", "topk-multiple-of-128"]
    ),
    "all": (
        {"d_v": 1, "topk": 1, "h_q": 1, "d_qk": 1},
        ["d_qk-width", "h_q-multiple-of-64", "topk-multiple-of-128", "d_v-width"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_only_what_is_broken_is_in_the_text_and_in_one_order(name: str, reverse: bool) -> None:
    """Whatever the order in which the arguments are written."""
    sizes, broken = BROKEN[name]
    items = list(attention(**sizes).items())
    with pytest.raises(ContractError) as refusal:
        attend(**dict(reversed(items) if reverse else items))
    assert [fault.rule for fault in refusal.value.violations] == broken
    text = str(refusal.value)
    listed = re.findall(r"^- \[([^\]]+)\]", text, flags=re.MULTILINE)
    assert listed == broken
    for rule in ("h_q % 64", "topk % 128", "d_qk in (512", "d_v == 512"):
        assert (rule in text) == any(rule[:3] == found[:3] for found in broken)
    for axis, size in sizes.items():
        assert f"{axis} is {size}" in text


def test_an_odd_head_is_said_once() -> None:
    """Its half cannot be computed: the tables are not found wrong as well."""
    (fault,) = pack.contract.violations(**packing(head_dim=15))
    assert fault.rule == "head_dim-even"
    assert "head_dim is 15" in f"{fault.message} {fault.origin}"


def fields(fault: Violation) -> tuple[Any, ...]:
    return fault.argument, fault.axis, fault.expected, fault.actual


def test_a_size_as_data() -> None:
    given = packing()
    given["img_k"] = given["img_k"][:, :, :1]
    (fault,) = pack.contract.violations(**given)
    assert fields(fault) == ("img_k", 2, "3", "1")
    assert fault.fix == "img_k = img_k.repeat_interleave(3, dim=2)"
