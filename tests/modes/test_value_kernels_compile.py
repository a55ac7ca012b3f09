"""The generated kernels compile for the GPUs of today, on a machine without one, and read whole
vectors where elements lie dense and aligned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
import torch, triton
from triton.backends.compiler import GPUTarget
from backends.values import kernel
from backends.values.plan import groups_of, plan
from contracts.contents.condition import condition, parse

def ints(*shape):
    return torch.zeros(shape, dtype=torch.int32)

TENSORS = {
    "dense": ({"x": ints(4096), "y": ints(64, 1024)}, ["0 <= x <= n", "-1 <= y < n"]),
    "strided": ({"x": ints(99, 3).T, "y": ints(50)[::2]}, ["x < n", "sorted(x)", "y % 7 // 2 < n"]),
    "broadcast": ({"x": ints(5, 1), "y": torch.zeros(7).bfloat16()}, ["max(x, y, 1) ** 2 < 9.5"]),
    "wide": (
        {"x": ints(9).long(), "y": torch.zeros(9).double()},
        ["unique(x) or x in (1, n)", "isfinite(y) and abs(y) / 3 < x"],
    ),
    "numbers": (
        {"x": torch.zeros(9), "y": torch.zeros(9).double(), "z": ints(9)},
        ["x <= r and y <= r and z / n <= r", "min(x, r, 0.1) < 3 and max(y, 0.1, n) < 0.3"],
    ),
    "truths": (
        {"x": torch.zeros(9), "y": ints(9)},
        ["(x > 0) + (y > 0) < 2 and -x / x < 1 or x in ()", "isfinite(x / 3) or 1 < 2"],
    ),
    "bool": ({"x": ints(9).bool(), "y": torch.zeros(9).half()}, ["not x or not isnan(y)"]),
}
EIGHT_BIT = {"x": torch.zeros(9).to(torch.float8_e4m3fn), "y": torch.zeros(9).to(torch.float8_e5m2)}

def compiled(tensors, texts, capability):
    conditions = [condition(text, parse(text), tensors) for text in texts]
    (group,) = groups_of(conditions)
    numbers = [number for each in conditions for number in each.numbers_of({"n": 5, "r": 0.1})]
    order = dict.fromkeys(name for each in conditions for name in each.tensors)
    made = plan(group, [tensors[name] for name in order], numbers)
    spec = kernel.compile_spec(made.structure)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(spec.source(), target=target, options=dict(spec.options))

for capability in (80, 90, 100):
    for name, (tensors, texts) in TENSORS.items():
        ptx = compiled(tensors, texts, capability).asm["ptx"]
        if name == "truths":
            assert "div.rn.f32" in ptx and "div.full.f32" not in ptx  # which is approximate
        print(name, capability, "v4" if "ld.global.v4" in ptx else "v1")
    if capability >= 89:
        compiled(EIGHT_BIT, ["x < y or not isfinite(x)"], capability)
        print("8 bits", capability)
"""


def test_kernels_compile_without_a_gpu() -> None:
    """In a process of its own: this one's may be interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = run.stdout.splitlines()
    assert len(lines) == 23
    assert [line for line in lines if line.endswith("v4")] == [
        "dense 80 v4",
        "dense 90 v4",
        "dense 100 v4",
    ]
