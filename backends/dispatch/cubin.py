"""One Triton or Gluon kernel, specialised far enough to compile it without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

    def load(self) -> Any:
        """The kernel for the current device, to run as `kernel[grid](*arguments)`.

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
        return kernel
