"""What it costs to watch contents: sparse MLA's two value rules, in `async` and `debug`.

    python -m bench.values

Needs a CUDA device. Host time is what a call costs the thread that makes it, checks of metadata
included, with the function itself left out: what contents add is the difference to `static`. Device
time is that of everything the call puts on the stream, from a trace.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import backends
import contracts
from bench.tables import print_table
from contracts.contents.torch_observer import TorchObserver
from contracts.contents.watch import watch

CALLS = 300
TRACED = 20
SHAPES = {
    "s_q 4096, topk 2048": (4096, 2048),
    "s_q 1024, topk 512": (1024, 512),
    "s_q 64, topk 2048": (64, 2048),
    "s_q 1, topk 128": (1, 128),
}


def nothing(*args: Any, **buffers: Tensor) -> tuple[Tensor, ...]:
    """Stands for the operation: what is measured is what is in front of it."""
    return tuple(buffers.values())


guarded = backends.sparse_mla_q8kv8_prefill_fwd.contract.guard(nothing)


def prepare(s_q: int, topk: int) -> Callable[[], object]:
    """A call with valid contents and the caller's buffers."""
    fp8 = torch.float8_e4m3fn
    return partial(
        guarded,
        torch.zeros(s_q, 64, 576, device="cuda", dtype=torch.uint8).view(fp8),
        torch.zeros(8192, 1, 576, device="cuda", dtype=torch.uint8).view(fp8),
        torch.randint(-1, 8192, (s_q, 1, topk), device="cuda", dtype=torch.int32),
        576**-0.5,
        torch.ones(1, device="cuda"),
        torch.ones(1, device="cuda"),
        512,
        None,
        torch.randint(0, topk + 1, (s_q,), device="cuda", dtype=torch.int32),
        out=torch.zeros(s_q, 64, 512, device="cuda", dtype=torch.bfloat16),
        max_logits=torch.zeros(s_q, 64, device="cuda"),
        lse=torch.zeros(s_q, 64, device="cuda"),
    )


def host_microseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Median and spread of single calls, one after another."""
    torch.cuda.synchronize()
    samples = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        samples.append((time.perf_counter() - begin) * 1e6)
    low, middle, high = statistics.quantiles(samples, n=4)
    return middle, (high - low) / 2


def device_microseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Kernels and copies of a call, and how many there are."""
    rest = torch.randn(2**25, device="cuda")
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(TRACED):
            # Reads twice what the cache holds, so that a call's own reads come from memory; and
            # writes nothing, which would have to be written back while the call runs.
            rest.var()
            call()
        torch.cuda.synchronize()
    times = [
        event.device_time
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not any(word in event.name.lower() for word in ("welford", "memset"))
    ]
    return sum(times) / TRACED, len(times) / TRACED


def row(name: str, call: Callable[[], object]) -> tuple[str, ...]:
    for _ in range(20):
        call()
    host, spread = host_microseconds(call)
    device, launches = device_microseconds(call)
    return name, f"{host:.1f}", f"{spread:.1f}", f"{device:.1f}", f"{launches:.0f}"


def main() -> None:
    head = ("call", "host µs", "±", "device µs", "launches")
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    contract = backends.sparse_mla_q8kv8_prefill_fwd.contract
    kernels = watch.observer("cuda")
    for title, shape in SHAPES.items():
        call = prepare(*shape)
        rows = []
        for mode in ("static", "async", "debug"):
            with contracts.mode(mode):
                rows.append(row(mode, call))
        watch.register("cuda", TorchObserver())
        vars(contract).pop("watched")  # it keeps to the observer that it has found
        with contracts.mode("async"):
            rows.append(row("async, torch alone", call))
        watch.register("cuda", kernels)
        vars(contract).pop("watched")
        contracts.synchronize()
        print_table(f"{title}, on {torch.cuda.get_device_name()}", head, rows)


if __name__ == "__main__":
    main()
