"""What one check consists of: the reads it cannot avoid, and each statement's share of its time."""

from __future__ import annotations

import ast
from collections.abc import Callable

import torch

from bench.check_contestants import Signature
from bench.tables import print_table
from bench.timing import call_timer, cpu_timer, interleaved
from contracts import Contract
from contracts import contract as declare

# More and shorter samples than in a comparison: only the best one counts.
SAMPLES = {"rounds": 60, "seconds_per_sample": 0.0005}

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


def print_reads() -> None:
    """Nanoseconds of everything that a check may ask of a tensor."""
    x, y = torch.zeros(2, 2, 64, 4, 64, dtype=torch.bfloat16).unbind(0)
    names = {"x": x, "y": y, "Tensor": torch.Tensor, "device": x.device, "shape": x.shape}
    setup = "\n".join(f"{name} = names[{name!r}]" for name in names)
    timers = {read: cpu_timer(read, setup, {"names": names}) for read in ("pass", *READS)}
    timings = interleaved(timers, **SAMPLES)
    loop = timings.pop("pass").best
    rows = ((read, f"{(timing.best - loop) * 1e9:.0f}") for read, timing in timings.items())
    print_table("what a check may read", ("", "ns"), rows)


def prefixes(contract: Contract) -> list[tuple[str, Callable[..., object]]]:
    """The generated check, cut off after each of its statements in turn.

    Each comes with the text of the statement that it is the first to contain.
    """
    module = ast.parse(contract.source)
    function = next(
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and node.name == contract.passes.__name__
    )
    attempt = next(node for node in function.body if isinstance(node, ast.Try))
    statements = attempt.body
    cut = []
    for count in range(len(statements) + 1):
        attempt.body = [*statements[:count], ast.Pass()]
        names = dict(contract.passes.__globals__)
        exec(compile(ast.fix_missing_locations(module), "<prefix>", "exec"), names)
        text = ast.unparse(statements[count - 1]) if count else "calling it"
        cut.append((" ".join(text.split()), names[function.name]))
    return cut


def print_statements(signature: Signature) -> None:
    """Nanoseconds that each statement of the generated check adds to a right call."""
    values = list(signature.right.values())
    cut = prefixes(signature.contract)
    timers = {str(index): call_timer(part, (values, {})) for index, (_, part) in enumerate(cut)}
    timings = interleaved(timers, **SAMPLES)
    rows, before = [], 0.0
    for (text, _), timing in zip(cut, timings.values(), strict=True):
        rows.append((f"`{text[:90]}`", f"{(timing.best - before) * 1e9:.0f}"))
        before = timing.best
    print_table(
        f"{signature.name}: statements", ("", "ns"), [*rows, ("all", f"{before * 1e9:.0f}")]
    )


def time_decoration(contract: Contract, repeats: int = 25) -> float:
    """Seconds that declaring the same contract once more takes."""
    declared = contract.declaration

    def decorate() -> None:
        declare(*declared.rules, outputs=declared.outputs, name=declared.name)(declared.function)

    return min(cpu_timer(decorate).repeat(number=1, repeat=repeats))
