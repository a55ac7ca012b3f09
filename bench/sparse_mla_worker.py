"""One contestant of the sparse MLA benchmark in a process of its own.

    python bench/sparse_mla_worker.py CONTESTANT [FlashMLA library]

Reads requests from standard input, one a line, and answers each with one line of JSON: a case's
name prepares and checks that case, `time` measures the case prepared last, `everything` checks all
options at once. A kernel that dies takes this process with it and nothing else.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from backends.ops.sparse_mla_prefill.cases import (
    BENCH,
    EVERYTHING,
    Case,
    Inputs,
    Results,
    exact_results,
    mismatches,
    relative_error,
)

CASES = {case.name: case for case in BENCH}
CHECKED_QUERIES = 48
"""Queries of each case that are compared with float64; spread evenly from the first to the last."""


@dataclass(frozen=True)
class Checked:
    """What came of one case: its error, what else was wrong, and microseconds of host time."""

    error: float
    faults: tuple[str, ...]
    host: float


Call = Callable[[], tuple[Tensor, ...]]
Contestant = Callable[[Inputs, Results], Call]
"""From inputs and buffers to a call; the first of what it returns is `out`."""


def ours(backend: str) -> Contestant:
    """A backend of the public operation, with the caller's buffers."""
    import backends

    def prepare(inputs: Inputs, results: Results) -> Call:
        return partial(
            backends.sparse_mla_q8kv8_prefill_fwd,
            **inputs.arguments,
            **vars(results),
            backend=backend,
        )

    return prepare


def flashmla(library: str) -> Contestant:
    """FlashMLA's kernel for Hopper on the same values in bfloat16, which holds all of e4m3."""
    torch.ops.load_library(library)

    def prepare(inputs: Inputs, results: Results) -> Call:
        q, kv = inputs.q.bfloat16(), inputs.kv.bfloat16()
        operands = q, kv, inputs.indices, inputs.sm_scale, 512, None, None
        return partial(torch.ops.sgl_kernel.sparse_prefill_fwd, *operands)

    return prepare


def check_everything(contestant: Contestant, backend: str) -> Iterator[str]:
    """Masks, lengths, sinks and scales at once, for each width and number of heads and queries."""
    for h_q, d_qk in ((64, 512), (128, 576)):
        for s_q in (3, 150):
            case = Case("", s_q, 4096, h_q, 2048, d_qk, **EVERYTHING)
            inputs, results = case.build("cuda"), case.new_results("cuda")
            contestant(inputs, results)()
            for fault in mismatches(results, exact_results(inputs), case.tolerance(backend)):
                yield f"{s_q} queries, {h_q} heads, d_qk {d_qk}: {fault}"


def check(contestant: Contestant, case: Case) -> tuple[Call, Checked]:
    inputs = case.build("cuda")
    call = contestant(inputs, case.new_results("cuda"))
    out = call()[0]
    picked = torch.linspace(0, case.s_q - 1, min(CHECKED_QUERIES, case.s_q), device="cuda").long()
    part = replace(inputs, q=inputs.q[picked], indices=inputs.indices[picked])
    error = relative_error(out[picked], exact_results(part).out)
    faults = () if out.isfinite().all() else ("out is not finite everywhere",)
    return call, Checked(error, faults, host_time(call))


class Timer:
    """A call on the device alone: replays of a graph, half a millisecond or more each.

    Captured, so that a slow host does not count, and so that a call which waits for the device
    fails here.
    """

    def __init__(self, call: Call) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call()
            stream.synchronize()
            begin = time.perf_counter()
            call()
            stream.synchronize()
            self.calls = max(1, math.ceil(500e-6 / (time.perf_counter() - begin)))
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                for _ in range(self.calls):
                    call()

    def samples(self, count: int = 10, warm_up: float = 0.15) -> list[float]:
        """Microseconds of one call, once `warm_up` seconds of it have set the card's clock."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < warm_up:
            self.graph.replay()
            torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            self.graph.replay()
            event.record()
        torch.cuda.synchronize()
        pairs = pairwise(events)
        return [1e3 * start.elapsed_time(end) / self.calls for start, end in pairs]


def host_time(call: Call, calls: int = 100) -> float:
    """Microseconds until a call returns, the median of single ones; the device need not keep up."""
    torch.cuda.synchronize()
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - begin))
    torch.cuda.synchronize()
    return statistics.median(times)


def main(name: str, library: str = "") -> None:
    contestant = flashmla(library) if name == "flashmla" else ours(name)
    timer = call = None
    for line in sys.stdin:
        request = line.strip()
        reply: Any
        if request == "everything":
            reply = list(check_everything(contestant, name))
        elif request == "time":
            assert timer is not None, "no case has been prepared"
            reply = timer.samples()
        else:
            timer = call = None  # what they hold is let go before the next case is built
            call, checked = check(contestant, CASES[request])
            timer, reply = Timer(call), asdict(checked)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
