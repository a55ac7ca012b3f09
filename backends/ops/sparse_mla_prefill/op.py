"""`sparse_mla_q8kv8_prefill_fwd`, assembled: contract and backends."""

from __future__ import annotations

from backends.dispatch import Op
from contracts import aligned

from . import contract
from .reference import sparse_mla_reference

sparse_mla_q8kv8_prefill_fwd = Op(
    contract.sparse_mla_q8kv8_prefill_fwd,
    reference=sparse_mla_reference,
    buffers=("out", "max_logits", "lse"),
)

sparse_mla_q8kv8_prefill_fwd.backend(
    "gluon",
    "backends.ops.sparse_mla_prefill.gluon_launch:launch",
    rules=[
        aligned(16, "q", "kv", "indices", "out", id="16-byte-rows"),
        "s_kv <= 1 or stride(kv, 0) % 16 == 0",
        "s_kv <= 1 or stride(kv, 0) < 2**31",
    ],
    needs=["sm == 90", "not interpreter"],
    packages=["triton"],
    priority=20,
)

sparse_mla_q8kv8_prefill_fwd.backend(
    "triton",
    "backends.ops.sparse_mla_prefill.triton_launch:launch",
    needs="sm >= 89 or interpreter",
    packages=["triton"],
    priority=10,
)
