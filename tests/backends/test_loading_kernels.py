"""Kernels are loaded at the first call that needs them, and never inside a graph's capture."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch

from backends.dispatch.cubin import CubinSpec

LAUNCHERS = [
    "backends.ops.hunyuan_qkv_rope_pack.triton_launch",
    "backends.ops.sparse_mla_prefill.triton_launch",
    "backends.ops.sparse_mla_prefill.gluon_launch",
]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_none_is_compiled_nor_loaded_inside_a_capture(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    specs: Iterator[CubinSpec] = importlib.import_module(launcher).compile_specs()
    for spec in specs:
        with pytest.raises(RuntimeError, match="make the call once before capturing it") as caught:
            spec.load()
        assert spec.name in str(caught.value)
