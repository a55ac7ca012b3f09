"""One Triton or Gluon kernel, specialised far enough to compile it without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch


@dataclass(frozen=True)
class CubinSpec:
    """What the compiler has to know to turn `kernel` into machine code.

    An op's `triton_launch.compile_specs()` yields one for each distinct specialisation that its
    launcher can ask for, so that a machine without a GPU can compile what a machine with one runs.

    `signature` names every parameter of the kernel in order: `"*bf16"`, `"i32"`, `"i64"`, ..., or
    `"constexpr"` for those given in `constexprs`. `divisibility` gives a number that divides a
    parameter (a pointer's in bytes), which Triton otherwise learns from a call's arguments, 16 or
    nothing; wide loads depend on it. `options` are the compiler's (`num_warps`, `num_stages`, ...).
    `capabilities` lists the architectures that the kernel claims: 80, 90, 100. A kernel that keeps
    more than `allowed_stack_bytes` a thread in local memory has spilled, and fails the build.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    capabilities: tuple[int, ...] = (80, 90, 100)
    divisibility: Mapping[str, int] = field(default_factory=dict)
    allowed_stack_bytes: int = 0

    def source(self) -> Any:
        """The specialisation as the compiler takes it."""
        from triton.compiler import ASTSource
        from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

        source_class = GluonASTSource if isinstance(self.kernel, GluonJITFunction) else ASTSource
        order = list(self.signature)
        attributes = {
            (order.index(name),): [["tt.divisibility", divisor]]
            for name, divisor in self.divisibility.items()
        }
        return source_class(self.kernel, dict(self.signature), dict(self.constexprs), attributes)

    def load(self) -> LoadedKernel:
        """The kernel for the current device, loaded.

        RuntimeError inside a CUDA graph's capture, which loading a kernel would spoil.
        """
        import triton

        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"the kernel {self.name} is needed for the first time, inside a CUDA graph "
                "capture, where none can be loaded: make the call once before capturing it"
            )
        kernel = triton.compile(self.source(), options=dict(self.options))
        kernel[1, 1, 1]  # asking for a launcher loads the binary
        return LoadedKernel(kernel)


class LoadedKernel:
    """A kernel on its device, run as `kernel[grid](*arguments)` on its current stream.

    Triton's own launcher describes each launch to hooks, which profilers set, whether there are
    any or not. That is host time in every call; this one does it where there are some.
    """

    def __init__(self, compiled: Any) -> None:
        from triton import knobs
        from triton.runtime import driver

        self._compiled = compiled
        self._hooks = knobs.runtime
        self._device = driver.active.get_current_device()
        self._stream_of = driver.active.get_current_stream
        self._loaded = compiled.function, compiled.packed_metadata, None, None, None

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(
        self, grid: tuple[int, int, int], *arguments: Any, stream: int | None = None
    ) -> None:
        if stream is None:
            stream = self._stream_of(self._device)
        if is_watched(self._hooks.launch_enter_hook) or is_watched(self._hooks.launch_exit_hook):
            self._compiled[grid](*arguments, stream=stream)
        else:
            self._compiled.run(*grid, stream, *self._loaded, *arguments)


def is_watched(hook: Any) -> bool:
    """Whether a hook does anything: Triton has an empty chain of them there from the start."""
    calls = getattr(hook, "calls", None)
    return bool(calls) if isinstance(calls, list) else hook is not None
