"""sparse_mla_q8kv8_prefill_fwd against FlashMLA and the roof, in one run, on one GPU.

    python bench/sparse_mla_prefill.py [--flashmla FILE] [--json FILE] [--backends NAME ...]
                                       [--cases NAME ...]

Every contestant runs in a process of its own and is checked before it is timed: with masks,
lengths, sinks and scales against float64, and then on each case. They take turns within each case,
as a card that runs into its power limit is slower than one that has rested.
Columns:

    us          median on the device, replayed from a CUDA graph, and half the quartiles' distance
    TFLOP/s     2 s_q h_q topk (d_qk + 512) operations over that time
    x FlashMLA  throughput over that of FlashMLA's bfloat16 kernel (the sglang-kernel distribution
                carries it as flashmla_ops.abi3.so; --flashmla names the file)
    error       ||out - exact|| / ||exact|| against float64 on the same FP8 inputs
    of roof     the roof's time over that time
    host us     time until a call with the caller's buffers returns, the median of single calls

The roof is the longer of two times: Q.K at 1979 and P.V at 990 dense TFLOP/s (an H200's FP8 and
16-bit rates; an FP8 product of P and V would lose the error that is asked for), and the bytes of
each tensor once, at the 4.25 TB/s of a copy.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backends.ops.sparse_mla_prefill.cases import BENCH, Case
from bench.tables import print_table

WORKER = Path(__file__).with_name("sparse_mla_worker.py")
SECONDS_TO_ANSWER = 120
"""For one case, compilation included: what takes longer hangs."""

ALLOWED_ERROR = 2.5e-3
ROUNDS = 5
"""Turns that each contestant has with a case."""


@dataclass(frozen=True)
class Roof:
    """Microseconds that a case takes at least, by its operations and by its bytes."""

    operations: float
    bytes: float

    @property
    def time(self) -> float:
        return max(self.operations, self.bytes)

    @property
    def bound(self) -> str:
        return "operations" if self.operations >= self.bytes else "bytes"


def operations(case: Case) -> int:
    return 2 * case.s_q * case.h_q * case.topk * (case.d_qk + 512)


def roof(case: Case) -> Roof:
    pairs = 2 * case.s_q * case.h_q * case.topk
    seconds = pairs * case.d_qk / 1979e12 + pairs * 512 / 990e12
    rows = case.s_q * case.h_q
    kv_rows = min(case.s_kv, case.s_q * case.topk)
    moved = rows * (case.d_qk + 2 * 512 + 8) + kv_rows * case.d_qk + 4 * case.s_q * case.topk
    return Roof(1e6 * seconds, 1e6 * moved / 4.25e12)


class Worker:
    """A contestant's process; `ask` starts it anew when it has died."""

    def __init__(self, name: str, arguments: Sequence[str] = ()) -> None:
        self.name = name
        self.arguments = arguments
        self.process: subprocess.Popen[str] | None = None

    def ask(self, question: str) -> Any:
        """The answer, or a RuntimeError that says how the process ended."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKER), self.name, *self.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], SECONDS_TO_ANSWER)
        line = process.stdout.readline() if ready else ""
        if not line:
            self.stop()
            how = f"ended with {process.returncode}" if ready else "hung"
            raise RuntimeError(f"{self.name} {how} on {question!r}")
        return json.loads(line)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def measure(cases: Sequence[Case], workers: Sequence[Worker]) -> tuple[list[dict], list[str]]:
    """One record a case and contestant, and every fault found on the way."""
    records, faults = [], []
    for worker in workers:
        if worker.name == "flashmla":
            continue
        try:
            faults += [f"{worker.name}: {fault}" for fault in worker.ask("everything")]
        except RuntimeError as died:
            faults.append(str(died))
    for case in cases:
        checked: dict[str, dict] = {}
        samples: dict[str, list[float]] = {}
        for request in (case.name, *["time"] * ROUNDS):
            for worker in workers:
                if request == "time" and worker.name not in checked:
                    continue
                try:
                    answer = worker.ask(request)
                except RuntimeError as died:
                    faults.append(f"{case.name}: {died}")
                    checked.pop(worker.name, None)
                    continue
                if request == "time":
                    samples.setdefault(worker.name, []).extend(answer)
                else:
                    checked[worker.name] = answer
        for name, record in checked.items():
            if not record["error"] <= ALLOWED_ERROR:
                record["faults"].append(f"error {record['error']:.2e}")
            faults += [f"{name}, {case.name}: {fault}" for fault in record["faults"]]
            records.append(record | summary(case, name, samples[name]))
    return records, faults


def summary(case: Case, contestant: str, samples: Sequence[float]) -> dict:
    low, median, high = statistics.quantiles(samples, n=4)
    limit = roof(case)
    return {
        "case": case.name,
        "contestant": contestant,
        "median": median,
        "spread": (high - low) / 2 / median,
        "tflops": operations(case) / median / 1e6,
        "of_roof": limit.time / median,
        "bound": limit.bound,
    }


def table_rows(cases: Sequence[Case], records: Sequence[dict]) -> list[tuple[str, ...]]:
    rows = []
    for case in cases:
        mine = [record for record in records if record["case"] == case.name]
        theirs = next((r["tflops"] for r in mine if r["contestant"] == "flashmla"), None)
        limit = roof(case)
        title = f"{case.name}: {case.s_q} x {case.h_q} x {case.topk}, {case.s_kv} rows, {case.d_qk}"
        rate = operations(case) / limit.time / 1e6
        rows.append((title, f"{limit.time:.1f}", f"{rate:.0f}", "", "", "roof: " + limit.bound, ""))
        for record in mine:
            ratio = "absent" if theirs is None else f"{record['tflops'] / theirs:.2f}"
            time = f"{record['median']:.1f} ±{record['spread']:.1%}"
            rows.append(
                (
                    f"  {record['contestant']}",
                    time,
                    f"{record['tflops']:.0f}",
                    ratio,
                    f"{record['error']:.2e}",
                    f"{record['of_roof']:.0%}",
                    f"{record['host']:.0f}",
                )
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flashmla", type=Path, help="flashmla_ops.abi3.so")
    parser.add_argument("--json", type=Path, help="where to write every number")
    parser.add_argument("--backends", nargs="+", default=["gluon", "triton"])
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in BENCH])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark times kernels on a CUDA device; torch sees none")
    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    cases = [case for case in BENCH if arguments.cases is None or case.name in arguments.cases]
    workers = [Worker(name) for name in arguments.backends]
    if arguments.flashmla is None:
        print("FlashMLA: absent; --flashmla names its library")
    else:
        workers.append(Worker("flashmla", [str(arguments.flashmla.resolve())]))
    try:
        records, faults = measure(cases, workers)
    finally:
        for worker in workers:
            worker.stop()
    head = ("case / contestant", "us", "TFLOP/s", "x FlashMLA", "error", "of roof", "host us")
    print_table(device, head, table_rows(cases, records))
    if arguments.json is not None:
        record = {"device": device, "measured": records, "faults": faults}
        arguments.json.write_text(json.dumps(record, indent=1))
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
