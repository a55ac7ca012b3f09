"""Tensor operations behind contracts, each served by the best backend that can.

Importing this package loads no compiler: a backend is imported by the first call that it can serve.
"""

from .dispatch import (
    Answer,
    BackendWarning,
    Gradient,
    NoBackendError,
    Op,
    Reason,
    Report,
    Target,
    assume_target,
    registered,
    use,
)
from .ops.hunyuan_qkv_rope_pack.op import hunyuan_qkv_rope_pack
from .ops.sparse_mla_prefill.op import sparse_mla_q8kv8_prefill_fwd
from .values import register as _watch_contents_with_kernels

_watch_contents_with_kernels()

__all__ = [
    "Answer",
    "BackendWarning",
    "Gradient",
    "NoBackendError",
    "Op",
    "Reason",
    "Report",
    "Target",
    "assume_target",
    "hunyuan_qkv_rope_pack",
    "registered",
    "sparse_mla_q8kv8_prefill_fwd",
    "use",
]
