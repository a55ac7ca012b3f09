"""Calls of the operations, one backend at a time: what one lacks here is why it is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.ops.sparse_mla_prefill.cases import Case, Inputs, Results, exact_results, mismatches


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def serve() -> Callable[..., Any]:
    """`serve(op, backend, **arguments)` calls one backend of an op, or skips where the device or a
    package that it needs is missing. A rule of the backend that refuses the call is no excuse."""

    def call(op: Any, backend: str, **arguments: Any) -> Any:
        where = next(x for x in arguments.values() if isinstance(x, Tensor)).device
        if missing := op.availability(where)[backend]:
            pytest.skip("; ".join(reason.text for reason in missing))
        return op(**arguments, backend=backend)

    return call


@pytest.fixture
def assert_attention() -> Callable[..., None]:
    """`assert_attention(case, inputs, results, backend)` holds results against float64."""

    def check(case: Case, inputs: Inputs, results: Sequence[Tensor], backend: str) -> None:
        interpreted = backend == "triton" and not inputs.q.is_cuda
        tolerance = case.tolerance(f"{backend}-interpreted" if interpreted else backend)
        assert not list(mismatches(Results(*results), exact_results(inputs), tolerance))

    return check
