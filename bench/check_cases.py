"""Calls for the check benchmark: right ones, and mutants of them that break one rule each.

A case is a mapping from argument name to value in the order of the signature. The tensors are small
and their contents never read: a check's cost does not depend on either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Mutant:
    """One broken rule: `change` gives the arguments that differ from the right call's."""

    breaks: str
    change: Callable[[Arguments], Arguments]

    def of(self, right: Arguments) -> dict[str, Any]:
        return {**right, **self.change(right)}


def hunyuan(
    img_len: int = 64, txt_len: int = 16, head_dim: int = 64, *, fused: bool = False
) -> dict[str, Any]:
    """A right call. `fused`: image q, k and v are views of one projection's output."""
    batch, num_heads = 2, 4
    img = torch.zeros(3, batch, img_len, num_heads, head_dim, dtype=torch.bfloat16).unbind(0)
    if fused:
        img = torch.zeros(batch, img_len, 3, num_heads, head_dim, dtype=torch.bfloat16).unbind(2)
    txt = torch.zeros(3, batch, txt_len, num_heads, head_dim, dtype=torch.bfloat16).unbind(0)
    tables = torch.zeros(2, img_len + 5, head_dim // 2).unbind(0)
    names = ("img_q", "img_k", "img_v", "txt_q", "txt_k", "txt_v", "cos", "sin")
    return dict(zip(names, (*img, *txt, *tables), strict=True))


def sparse_mla(
    num_q_heads: int = 64,
    topk: int = 128,
    d_qk: int = 576,
    num_kv_heads: int = 1,
    s_q: int = 8,
) -> dict[str, Any]:
    """A right call with every optional argument."""
    s_kv = 32
    fp8 = torch.float8_e4m3fn
    return {
        "q": torch.zeros(s_q, num_q_heads, d_qk).to(fp8),
        "kv": torch.zeros(s_kv, num_kv_heads, d_qk).to(fp8),
        "indices": torch.zeros(s_q, num_kv_heads, topk, dtype=torch.int32),
        "sm_scale": 0.1,
        "q_scale": torch.ones(1),
        "kv_scale": torch.ones(1),
        "d_v": 512,
        "attn_sink": torch.zeros(num_q_heads),
        "topk_length": torch.full((s_q,), topk, dtype=torch.int32),
        "out": torch.zeros(s_q, num_q_heads, 512, dtype=torch.bfloat16),
        "max_logits": torch.zeros(s_q, num_q_heads),
        "lse": torch.zeros(s_q, num_q_heads),
    }


def sparse_mla_up_to(s_q: int) -> list[dict[str, Any]]:
    """A right call for each smaller number of queries, all in the same memory."""
    longest = sparse_mla(s_q=s_q)
    per_query = [n for n, x in longest.items() if isinstance(x, Tensor) and x.shape[0] == s_q]
    return [
        longest | {name: longest[name][:count] for name in per_query} for count in range(1, s_q)
    ]


def _changed(name: str, change: Callable[[Tensor], Any]) -> Callable[[Arguments], Arguments]:
    return lambda right: {name: change(right[name])}


def _shape(name: str, *shape: int) -> Callable[[Arguments], Arguments]:
    return _changed(name, lambda tensor: tensor.new_zeros(shape))


def _dtype(name: str, dtype: torch.dtype) -> Callable[[Arguments], Arguments]:
    return _changed(name, lambda tensor: tensor.to(dtype))


def _elsewhere(name: str) -> Callable[[Arguments], Arguments]:
    return _changed(name, lambda tensor: tensor.to("meta"))


def _gapped(name: str) -> Callable[[Arguments], Arguments]:
    """The same sizes, each second element of the last axis."""
    return _changed(name, lambda tensor: torch.cat([tensor, tensor], dim=-1)[..., ::2])


def _both_tables(change: Callable[[Tensor], Tensor]) -> Callable[[Arguments], Arguments]:
    return lambda right: {name: change(right[name]) for name in ("cos", "sin")}


def _overlapping(first: str, second: str) -> Callable[[Arguments], Arguments]:
    """`second` begins 256 bytes before `first` ends, so that their pointers differ."""

    def change(right: Arguments) -> Arguments:
        end = right[first].nbytes
        buffer = torch.zeros(end - 256 + right[second].nbytes, dtype=torch.uint8)
        parts = {first: buffer[:end], second: buffer[end - 256 :]}
        return {
            name: part.view(right[name].dtype).view(right[name].shape)
            for name, part in parts.items()
        }

    return change


def _columns_first(name: str) -> Callable[[Arguments], Arguments]:
    """The same sizes, the first axis dense instead of the last."""
    return _changed(name, lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1))


HUNYUAN_MUTANTS = (
    Mutant("rank of img_q", _changed("img_q", lambda t: t[0])),
    Mutant("rank of txt_k", _changed("txt_k", lambda t: t[0])),
    Mutant("rank of cos and sin", _both_tables(lambda t: t[None])),
    Mutant("dtype of img_v", _dtype("img_v", torch.float16)),
    Mutant("dtype of txt_q", _dtype("txt_q", torch.float32)),
    Mutant("dtype of cos", _dtype("cos", torch.bfloat16)),
    Mutant("device of txt_v", _elsewhere("txt_v")),
    Mutant("device of sin", _elsewhere("sin")),
    Mutant("batch of img_k", _changed("img_k", lambda t: t[:1])),
    Mutant("length of img_v", _changed("img_v", lambda t: t[:, 1:])),
    Mutant("length of txt_v", _changed("txt_v", lambda t: t[:, 1:])),
    Mutant("heads of txt_q", _changed("txt_q", lambda t: t[:, :, :2])),
    Mutant("head_dim of txt_k", _changed("txt_k", lambda t: t[..., :32])),
    Mutant("last stride of img_q", _gapped("img_q")),
    Mutant("last stride of sin", _gapped("sin")),
    Mutant("head_dim odd", lambda _: hunyuan(head_dim=63)),
    Mutant("head_dim above 128", lambda _: hunyuan(head_dim=130)),
    Mutant("head_dim zero", lambda _: hunyuan(head_dim=0)),
    Mutant("tables shorter than the image", _both_tables(lambda t: t[:63])),
    Mutant("tables as wide as a head", _both_tables(lambda t: torch.cat([t, t], dim=-1))),
    Mutant("sin longer than cos", _changed("sin", lambda t: torch.cat([t, t]))),
)

SPARSE_MLA_MUTANTS = (
    Mutant("rank of q", _changed("q", lambda t: t[0])),
    Mutant("rank of kv", _changed("kv", lambda t: t[:, 0])),
    Mutant("rank of indices", _changed("indices", lambda t: t[:, 0])),
    Mutant("dtype of q", _changed("q", lambda t: t.view(torch.float8_e5m2))),
    Mutant("dtype of kv", _dtype("kv", torch.bfloat16)),
    Mutant("dtype of indices", _dtype("indices", torch.int64)),
    Mutant("device of kv", _elsewhere("kv")),
    Mutant("device of indices", _elsewhere("indices")),
    Mutant("last stride of q", _columns_first("q")),
    Mutant("last stride of kv", _columns_first("kv")),
    Mutant("last stride of indices", _gapped("indices")),
    Mutant("width of kv", _changed("kv", lambda t: t[..., :512].contiguous())),
    Mutant("heads not a multiple of 64", lambda _: sparse_mla(num_q_heads=96)),
    Mutant("no heads", lambda _: sparse_mla(num_q_heads=0)),
    Mutant("two kv heads", lambda _: sparse_mla(num_kv_heads=2)),
    Mutant("width neither 512 nor 576", lambda _: sparse_mla(d_qk=560)),
    Mutant("rows of indices", _changed("indices", lambda t: t[:7])),
    Mutant("topk not a multiple of 128", lambda _: sparse_mla(topk=100)),
    Mutant("topk zero", lambda _: sparse_mla(topk=0)),
    Mutant("length of topk_length", _changed("topk_length", lambda t: t[:7])),
    Mutant("dtype of topk_length", _dtype("topk_length", torch.int64)),
    Mutant("device of topk_length", _elsewhere("topk_length")),
    Mutant("d_v not 512", lambda _: {"d_v": 256, "out": None}),
    Mutant("attn_sink without topk_length", lambda _: {"topk_length": None}),
    Mutant("length of attn_sink", _changed("attn_sink", lambda t: t[:32])),
    Mutant("dtype of attn_sink", _dtype("attn_sink", torch.float64)),
    Mutant("dtype of q_scale", _dtype("q_scale", torch.float64)),
    Mutant("a q_scale per row", _shape("q_scale", 8)),
    Mutant("kv_scale a number", lambda _: {"kv_scale": 1.0}),
    Mutant("device of kv_scale", _elsewhere("kv_scale")),
    Mutant("rows of out", _changed("out", lambda t: t[:7])),
    Mutant("dtype of out", _dtype("out", torch.float32)),
    Mutant("last stride of out", _gapped("out")),
    Mutant("axes of max_logits swapped", _shape("max_logits", 64, 8)),
    Mutant("dtype of lse", _dtype("lse", torch.bfloat16)),
    Mutant("device of lse", _elsewhere("lse")),
    Mutant("lse is max_logits", lambda a: {"lse": a["max_logits"]}),
    Mutant("lse overlaps itself", _changed("lse", lambda t: t[:1].expand(8, 64))),
    Mutant("lse begins inside out", _overlapping("out", "lse")),
    Mutant("out begins inside q", _overlapping("q", "out")),
)
