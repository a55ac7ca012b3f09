"""What the whole suite needs to know about the machine: whether it has a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch._subclasses import fake_tensor

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU:
    # Triton reads this when a kernel is defined, so it has to stand before any kernel is imported.
    # A test that needs Triton's compiler instead runs in a subprocess without it.
    os.environ["TRITON_INTERPRET"] = "1"


if HAS_GPU:
    # Torch initialises the device of a fake CUDA tensor, and fails where there is no such device:
    # tests of contracts make fakes of `cuda:1` on machines with one GPU.
    def _init_present_device(device: torch.device) -> None:
        if (device.index or 0) < torch.cuda.device_count():
            torch.empty(1, device=device)

    fake_tensor.init_gpu_context = _init_present_device


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this suite's `gpu` tests, and nobody else's, where there is no GPU."""
    if HAS_GPU:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
