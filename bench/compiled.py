"""What a contract costs once a graph is compiled: the same function with it and without it.

    python -m bench.compiled            the table
    python -m bench.compiled --quick    one backend, few rounds

Every function works on small tensors on the CPU, where a call's fixed costs, guards among them, are
all there is to see. "With" is a multiple of "without", call against call in the same rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import BFloat16, Float32, Int32
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import contracts
from bench.tables import print_table
from bench.timing import call_timer, interleaved
from contracts import aligned, contract, no_overlap, same_device, unit_stride, values

LENGTHS = (20, 21, 16, 33, 64, 65, 80, 97)
TEXT_LENGTHS = (7, 9, 24)


@contract(
    "0 < head_dim <= 128",
    "head_dim % 2 == 0",
    "table_len >= img_len",
    same_device(),
    unit_stride(),
)
def pack(
    img_q: BFloat16[Tensor, "batch img_len num_heads head_dim"],
    img_k: BFloat16[Tensor, "batch img_len num_heads head_dim"],
    img_v: BFloat16[Tensor, "batch img_len num_heads head_dim"],
    txt_q: BFloat16[Tensor, "batch txt_len num_heads head_dim"],
    txt_k: BFloat16[Tensor, "batch txt_len num_heads head_dim"],
    txt_v: BFloat16[Tensor, "batch txt_len num_heads head_dim"],
    cos: Float32[Tensor, "table_len head_dim/2"],
    sin: Float32[Tensor, "table_len head_dim/2"],
) -> Tensor:
    """Eight arguments, all of them used."""
    turned = (img_q + img_k) * (cos + sin)[: img_q.shape[1], None].repeat_interleave(2, -1)
    return torch.cat([turned + img_v, txt_q + txt_k + txt_v], 1)


@contract("n % 2 == 0", same_device())
def half_used(
    x: Float32[Tensor, "m n"], y: Float32[Tensor, "m n"], z: Float32[Tensor, "k n"]
) -> Tensor:
    """Two of three arguments are checked and otherwise left alone."""
    return x + 1


@contract(aligned(16, "x"), no_overlap("out"))
def addresses(x: Float32[Tensor, "n"], out: Float32[Tensor, "n"]) -> Tensor:
    """Rules that the graph judges each time it runs."""
    return x + out


@contract(values("0 <= slots < n"))
def contents(x: Float32[Tensor, "n"], slots: Int32[Tensor, "m"]) -> Tensor:
    return x[slots]


@dataclass(frozen=True)
class Subject:
    name: str
    function: Any
    arguments: tuple[Tensor, ...]
    mode: str = "static"


def packed_arguments(img_len: int = 20, txt_len: int = 7) -> tuple[Tensor, ...]:
    image = torch.ones(2, img_len, 3, 8).bfloat16()
    text = torch.ones(2, txt_len, 3, 8).bfloat16()
    table = torch.ones(100, 4)
    return (*(image.clone() for _ in range(3)), *(text.clone() for _ in range(3)), table, table + 1)


def subjects() -> list[Subject]:
    x, out = torch.ones(64), torch.ones(64)
    slots = torch.arange(9, dtype=torch.int32)
    unused = (torch.ones(4, 8), torch.ones(4, 8), torch.ones(5, 8))
    return [
        Subject("8 arguments, all used", pack, packed_arguments()),
        Subject("3 arguments, 1 used", half_used, unused),
        Subject("alignment and overlap", addresses, (x, out)),
        Subject("contents, static", contents, (x, slots)),
        Subject("contents, async", contents, (x, slots), "async"),
        Subject("contents, debug", contents, (x, slots), "debug"),
    ]


def measured(subject: Subject, backend: str, rounds: int) -> tuple[str, ...]:
    torch._dynamo.reset()
    torch.compile(lambda x: -x, backend=backend)(torch.ones(2))  # the first pays for its start
    block = contracts.mode(subject.mode) if subject.mode != "static" else nullcontext()
    with block:
        compiled, seconds = {}, {}
        for name, function in (
            ("with", subject.function),
            ("without", subject.function.__wrapped__),
        ):
            compiled[name] = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
            begin = time.perf_counter()
            compiled[name](*subject.arguments)
            seconds[name] = time.perf_counter() - begin
        timers = {
            name: call_timer(call, (subject.arguments, {})) for name, call in compiled.items()
        }
        timings = interleaved(timers, rounds=rounds)
    ratio = timings["with"].over(timings["without"])
    return (
        subject.name,
        backend,
        f"{timings['without'].median * 1e6:.1f}",
        f"{timings['with'].median * 1e6:.1f}",
        f"{ratio:.2f}",
        f"{timings['with'].spread:.0%}",
        f"{seconds['without']:.2f} / {seconds['with']:.2f}",
    )


def graphs(function: Callable[..., Any], dynamic: bool | None) -> int:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic)
    for turn, img_len in enumerate(LENGTHS * 3):
        compiled(*packed_arguments(img_len, TEXT_LENGTHS[turn % 3]))
    return counter.frame_count


def main() -> None:
    quick = "--quick" in sys.argv
    backends = ("aot_eager",) if quick else ("eager", "aot_eager", "inductor")
    rounds = 7 if quick else 25
    rows = [measured(subject, backend, rounds) for subject in subjects() for backend in backends]
    head = ("function", "backend", "without µs", "with µs", "with/without", "±", "compile s")
    print_table("Cost of a call of a compiled function", head, rows)
    print_table(
        f"Graphs for {len(LENGTHS)} image by {len(TEXT_LENGTHS)} text lengths",
        ("dynamic=", "without", "with"),
        [
            (str(dynamic), str(graphs(pack.__wrapped__, dynamic)), str(graphs(pack, dynamic)))
            for dynamic in (None, True)
        ],
    )


if __name__ == "__main__":
    main()
