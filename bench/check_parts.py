"""What one check consists of: the reads it cannot avoid, and each statement's share of its time."""

from __future__ import annotations

import ast
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bench.check_contestants import Signature
from bench.tables import print_table
from bench.timing import call_timer, interleaved

READS = (
    "x.shape",
    "x.stride()",
    "x.stride(-1)",
    "x.stride()[-1]",
    "x.size(1)",
    "x.is_contiguous()",
    "x.dtype",
    "x.device",
    "x.device == device",
    "x.device.type",
    "x.get_device()",
    "x.ndim",
    "x.data_ptr()",
    "isinstance(x, Tensor)",
    "a, b, c, d = x.shape",
    "x.shape == y.shape",
    "shape == (2, 64, 4, 64)",
)


def print_reads(rounds: int) -> None:
    """Nanoseconds of everything that a check may ask of a tensor."""
    x, y = torch.zeros(2, 2, 64, 4, 64, dtype=torch.bfloat16).unbind(0)
    names = {"x": x, "y": y, "Tensor": torch.Tensor, "device": x.device, "shape": x.shape}
    setup = "\n".join(f"{name} = names[{name!r}]" for name in names)
    timers = {
        read: timeit.Timer(read, setup=setup, globals={"names": names}) for read in ("pass", *READS)
    }
    timings = interleaved(timers, rounds=rounds, seconds_per_sample=0.002)
    loop = timings.pop("pass").median
    rows = ((read, f"{(timing.median - loop) * 1e9:.0f}") for read, timing in timings.items())
    print_table("what a check may read", ("", "ns"), rows)


def prefixes(source: str, namespace: Mapping[str, Any]) -> list[tuple[str, Callable[..., Any]]]:
    """The function that `source` defines, cut off before each statement of its body in turn.

    Each comes with the text of the statement that it is the first to contain.
    """
    module = ast.parse(source)
    (function,) = (node for node in module.body if isinstance(node, ast.FunctionDef))
    statements = list(function.body)
    cut = []
    for count in range(len(statements) + 1):
        function.body = [*statements[:count], ast.Pass()]
        local: dict[str, Any] = dict(namespace)
        exec(compile(ast.fix_missing_locations(module), "<prefix>", "exec"), local)
        text = ast.unparse(statements[count - 1]) if count else "the call"
        cut.append((text, local[function.name]))
    return cut
