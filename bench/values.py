"""What it costs to watch contents: sparse MLA's two value rules, in `async` and `debug`.

    python -m bench.values

Needs a CUDA device. Host time is what a call costs the thread that makes it, checks of metadata
included, with the function itself left out: what contents add is the difference to `static`. The
modes take turns. Device time is that of everything the call puts on the stream, from a trace; all
traces come last, since a process that has traced once goes on paying for it at every launch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

TURNS = 10
CALLS = 50
"""Of a turn."""
TRACED = 20
TORCH_ALONE = "async, torch alone"
MODES = ("static", "async", "debug", TORCH_ALONE)
HEAD = ("call", "host µs", "±", "device µs", "launches")
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


@contextmanager
def mode(name: str) -> Iterator[None]:
    """The mode that a row is called in. Torch alone: as if there were no Triton."""
    if name != TORCH_ALONE:
        with contracts.mode(name):
            yield
        return
    contract = backends.sparse_mla_q8kv8_prefill_fwd.contract
    kernels, ours = watch.observer("cuda"), contract.watched
    watch.register("cuda", TorchObserver())
    vars(contract).pop("watched")  # it keeps to the observer that it has found
    try:
        with contracts.mode("async"):
            yield
    finally:
        watch.register("cuda", kernels)
        vars(contract)["watched"] = ours


def host_microseconds(call: Callable[[], object], modes: tuple[str, ...]) -> list[list[float]]:
    """Quartiles of single calls in each mode."""
    samples: dict[str, list[float]] = {name: [] for name in modes}
    for _ in range(TURNS):
        for name in modes:
            with mode(name):
                for _ in range(20):
                    call()
                torch.cuda.synchronize()
                for _ in range(CALLS):
                    begin = time.perf_counter()
                    call()
                    samples[name].append((time.perf_counter() - begin) * 1e6)
    return [statistics.quantiles(samples[name], n=4) for name in modes]


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


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    calls = {title: prepare(*shape) for title, shape in SHAPES.items()}
    host = {title: host_microseconds(call, MODES) for title, call in calls.items()}
    for title, call in calls.items():
        rows = []
        for name, (low, middle, high) in zip(MODES, host[title], strict=True):
            with mode(name):
                device, launches = device_microseconds(call)
            spread = (high - low) / 2
            rows.append(
                (name, f"{middle:.1f}", f"{spread:.1f}", f"{device:.1f}", f"{launches:.0f}")
            )
        print_table(f"{title}, on {torch.cuda.get_device_name()}", HEAD, rows)
    contracts.synchronize()


if __name__ == "__main__":
    main()
