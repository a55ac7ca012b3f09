"""Every operation keeps its contract, and its backends its reference: a line for each."""

from __future__ import annotations

import pytest

import backends
from contracts.testing import conformance

# NumPy's, of the arithmetic in Triton's interpreter.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TestHunyuanQkvRopePack = conformance(backends.hunyuan_qkv_rope_pack)
TestSparseMlaPrefill = conformance(backends.sparse_mla_q8kv8_prefill_fwd)
