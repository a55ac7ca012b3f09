"""Kernels are loaded at the first call that needs them, never inside a graph's capture, and their
launches are described to whoever asked for it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from backends.dispatch.cubin import CubinSpec, LoadedKernel

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


class Compiled:
    """Stands for what Triton compiles: notes what it is launched with."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.ran: list[tuple[Any, ...]] = []

    def run(self, *given: Any) -> None:
        self.ran.append(given)

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *arguments, stream: self.ran.append(("described", *grid, stream, *arguments))


class Driver:
    def get_current_device(self) -> int:
        return 3

    def get_current_stream(self, device: int) -> int:
        return 100 + device


def test_launches_are_described_only_where_somebody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton").knobs
    monkeypatch.setattr("triton.runtime.driver._active", Driver())
    compiled = Compiled()
    kernel = LoadedKernel(compiled)
    kernel[4, 1, 1]("x", 5)
    kernel[4, 1, 1]("x", 5, stream=8)
    for name in ("launch_enter_hook", "launch_exit_hook"):
        hooks = getattr(knobs.runtime, name)
        hooks.add(print)
        kernel[4, 1, 1]("x", 5)
        hooks.remove(print)
    kernel[4, 1, 1]("x", 5)
    bare = (4, 1, 1, 103, "function", "metadata", None, None, None, "x", 5)
    described = ("described", 4, 1, 1, 103, "x", 5)
    assert compiled.ran == [bare, (*bare[:3], 8, *bare[4:]), described, described, bare]
