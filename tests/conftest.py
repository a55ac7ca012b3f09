"""What the whole suite needs to know about the machine: whether it has a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU:
    # Triton reads this when a kernel is defined, so it has to stand before any kernel is imported.
    # A test that needs Triton's compiler instead runs in a subprocess without it.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this suite's `gpu` tests, and nobody else's, where there is no GPU."""
    if HAS_GPU:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
