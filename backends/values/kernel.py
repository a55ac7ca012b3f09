"""Generated source -> a kernel that can be launched. Loads Triton, on first use."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from backends.dispatch.cubin import CubinSpec
from contracts.contents.plainly import plainly

from .shaped import Shaped
from .source import NUM_WARPS, signature, write

POINTEES = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.uint16: "u16",
    torch.int32: "i32",
    torch.uint32: "u32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
}
"""The dtypes that a kernel loads as they are. Others are converted first."""

ALIGNMENT = 16
"""Bytes of the widest load. A tensor that starts at a multiple of it can be read so."""


@dataclass(frozen=True)
class Structure:
    """What a compiled kernel depends on."""

    conditions: tuple[Shaped, ...]
    aligned: bool


@cache
def load_source(conditions: tuple[Shaped, ...]) -> Any:
    """The kernel as Triton's compiler, or its interpreter, takes it."""
    text = write(conditions)
    name = f"<values {hashlib.sha1(text.encode()).hexdigest()[:12]}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = (len(text), None, lines, name)  # Triton reads its functions' source
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, name, "exec"), namespace)
    return namespace["watch"]


def compile_spec(structure: Structure) -> CubinSpec:
    """Describe the kernel to Triton's compiler."""
    types = {"mark": "i64"} | dict.fromkeys(("state_ptr", "record_ptr", "attention_ptr"), "*i64")
    divisibility = dict.fromkeys(("state_ptr", "record_ptr"), ALIGNMENT)
    for name, kind in signature(structure.conditions):
        if isinstance(kind, torch.dtype):
            types[name] = f"*{POINTEES[kind]}"
            if structure.aligned:
                divisibility[name] = ALIGNMENT
        else:
            types[name] = kind
    return CubinSpec(
        name=f"values-{len(structure.conditions)}",
        kernel=load_source(structure.conditions),
        signature=types,
        constexprs={},
        options={"num_warps": NUM_WARPS, "enable_fp_fusion": False},
        divisibility=divisibility,
    )


@cache
def interpreted() -> bool:
    """Whether TRITON_INTERPRET was set when Triton first defined a kernel here."""
    import triton

    return bool(triton.knobs.runtime.interpret)


@dataclass(frozen=True)
class Compiled:
    """A kernel on its device."""

    kernel: Any

    def launch(self, programs: int, stream: int, arguments: Sequence[Any]) -> None:
        self.kernel[(programs, 1, 1)](*arguments, stream=stream)


@dataclass(frozen=True)
class Interpreted:
    """A kernel in Triton's interpreter, which has no streams, and would guess numbers' types."""

    kernel: Any
    types: tuple[str | torch.dtype, ...]
    """Of the parameters behind the four that every kernel has."""

    def launch(self, programs: int, stream: int, arguments: Sequence[Any]) -> None:
        head, own = arguments[:4], arguments[4:]
        with plainly():  # it copies tensors about, which a launch does not
            self.kernel[(programs, 1, 1)](*head, *map(_interpreted, own, self.types))


def _interpreted(value: Any, kind: str | torch.dtype) -> Any:
    """A number of its parameter's type, as a launch makes it."""
    if isinstance(kind, torch.dtype):
        return value
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype, whole = {
        "i32": (tl.int32, torch.int32),
        "i64": (tl.int64, torch.int64),
        "fp64": (tl.float64, torch.float64),
    }[kind]
    array = torch.tensor([value], dtype=whole, device="cpu").numpy()
    return tl.tensor(TensorHandle(array, dtype), dtype)


def load(structure: Structure) -> Compiled | Interpreted:
    """Compile for, and load on, the current device."""
    if interpreted():
        types = tuple(kind for _, kind in signature(structure.conditions))
        return Interpreted(load_source(structure.conditions), types)
    return Compiled(compile_spec(structure).load())


@cache
def _stream_reader() -> Callable[[int], int]:
    if interpreted():
        return lambda device_index: 0
    from triton.runtime import driver

    return driver.active.get_current_stream


def current_stream(device_index: int) -> int:
    return _stream_reader()(device_index)


def argument_of(x: torch.Tensor) -> Any:
    """A tensor as a launch takes it: its bare address; in the interpreter, itself."""
    return x if interpreted() else x.data_ptr()
