"""Compile every kernel of every op to machine code, for each GPU it claims; no GPU is needed.

    python tools/cubins.py                         all ops
    python tools/cubins.py hunyuan_qkv_rope_pack   some of them

An op takes part by a `compile_specs()` in its `triton_launch.py` or `gluon_launch.py`. Prints one
line a kernel and GPU, and fails when one does not compile or keeps registers in local memory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.pop("TRITON_INTERPRET", None)  # it would make kernels that no compiler can read

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from backends.dispatch.cubin import CubinSpec  # noqa: E402

OPS = ROOT / "backends" / "ops"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Cubin:
    """What came of one kernel on one GPU."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    code_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.registers:3d} registers, {self.stack_bytes} B stack, "
            f"{self.shared_bytes} B shared, {self.code_bytes} B"
        )


def specs_of(op: str) -> Iterator[CubinSpec]:
    for launcher in sorted((OPS / op).glob("*_launch.py")):
        module = import_module(f"backends.ops.{op}.{launcher.stem}")
        yield from module.compile_specs()


def compile_cubin(spec: CubinSpec, capability: int) -> Cubin:
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(spec.source(), target=target, options=dict(spec.options))
    cubin = compiled.asm["cubin"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    registers, stack = (int(n) for n in re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    return Cubin(registers, stack, compiled.metadata.shared, len(cubin))


def main(ops: list[str]) -> int:
    ops = ops or sorted(folder.name for folder in OPS.iterdir() if any(folder.glob("*_launch.py")))
    failures = 0
    for op in ops:
        for spec in specs_of(op):
            for capability in spec.capabilities:
                label = f"{spec.name} sm_{capability}"
                try:
                    cubin = compile_cubin(spec, capability)
                except Exception as error:  # the compiler's errors share no class
                    print(f"FAILED  {label}: {type(error).__name__}: {error}", flush=True)
                    failures += 1
                    continue
                spilled = cubin.stack_bytes > spec.allowed_stack_bytes
                failures += spilled
                print(f"{'SPILLED' if spilled else 'ok     '} {label}: {cubin}", flush=True)
    print(f"{failures} failed" if failures else "all compiled")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
