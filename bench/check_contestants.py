"""Who takes part in the check benchmark: ours, the hand-written yardstick, and four libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from backends.ops.hunyuan_qkv_rope_pack.contract import hunyuan_qkv_rope_pack
from backends.ops.sparse_mla_prefill.contract import sparse_mla_q8kv8_prefill_fwd
from bench import check_cases
from bench.peers import unchecked
from contracts import Contract

OURS, BY_HAND, JAXTYPING = "contracts", "hand-written", "jaxtyping + beartype"
PEERS = {
    BY_HAND: "by_hand",
    JAXTYPING: "jaxtyping_beartype",
    "jaxtyped(typechecker=beartype)": "jaxtyped_by_beartype",
    "dltype": "dltype_annotations",
    "tensor-shape-assert": "tensor_shape_asserts",
    "vLLM TensorSchema": "vllm_tensor_schema",
}


@dataclass(frozen=True)
class Signature:
    """One operation's signature behind every checker, and the calls to accept and to refuse.

    `positional` of the arguments are passed by position, the others by name, as callers write them.
    """

    name: str
    contract: Contract
    right: Mapping[str, Any]
    mutants: tuple[check_cases.Mutant, ...]
    positional: int

    def split(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        items = list(arguments.items())
        return [value for _, value in items[: self.positional]], dict(items[self.positional :])

    @property
    def body(self) -> Callable[..., None]:
        """The function with this signature that does nothing."""
        return getattr(unchecked, self.name)

    @cached_property
    def checkers(self) -> dict[str, Callable[..., object]]:
        """The empty function behind ours and behind each checker that is installed."""
        found = {OURS: self.contract.guard(self.body)}
        for label, module in PEERS.items():
            if absence(module) is None:
                found[label] = getattr(importlib.import_module(f"bench.peers.{module}"), self.name)
        return found


def signatures() -> tuple[Signature, Signature]:
    """The two operations whose own contracts are timed."""
    return (
        Signature(
            name="hunyuan",
            contract=hunyuan_qkv_rope_pack.contract,
            right=check_cases.hunyuan(),
            mutants=check_cases.HUNYUAN_MUTANTS,
            positional=8,
        ),
        Signature(
            name="sparse_mla",
            contract=sparse_mla_q8kv8_prefill_fwd.contract,
            right=check_cases.sparse_mla(),
            mutants=check_cases.SPARSE_MLA_MUTANTS,
            positional=9,
        ),
    )


def absence(module: str) -> str | None:
    """Why a peer cannot be imported here: not installed, or not for this Python."""
    try:
        importlib.import_module(f"bench.peers.{module}")
    except (ImportError, SyntaxError) as error:
        return f"{type(error).__name__}: {error}"
    return None
