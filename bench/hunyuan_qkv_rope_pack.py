"""hunyuan_qkv_rope_pack against its peers, in one run, on one GPU.

    python bench/hunyuan_qkv_rope_pack.py [--upstream FILE] [--cases NAME ...] [--no-compile]

Every case is checked before it is timed: against the reference bit for bit, against float64 on
its first and last tokens, in output memory that held NaN. Then, in microseconds, median (least to
most), the kernels' time on the device, replayed from a CUDA graph:

    ours       backends.hunyuan_qkv_rope_pack
    upstream   sglang's Triton kernel, loaded from that one file: --upstream, or where an installed
               sglang distribution keeps it
    compiled   torch.compile of the reference
    eager      the reference
    copy       a device-to-device copy of the same bytes: what the memory bus can do

and the host's time for a call that the device does not hold up.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import backends
from backends.ops.hunyuan_qkv_rope_pack.cases import BENCH, Case, fused
from backends.ops.hunyuan_qkv_rope_pack.reference import pack_reference

Packing = Callable[..., tuple[Tensor, ...]]

L2_BYTES = 60 << 20
COMPILED_CASES = ("S4096", "S32768-fused", "S115200", "B2-S1024-D64")
"""Compiling takes longer than all the rest: it is shown where upstream's own sizes are."""

UPSTREAM_FILE = "hunyuan_qkv_pack_triton.py"


@dataclass(frozen=True)
class Timing:
    """Microseconds a call."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:8.1f} ({self.least:.1f} to {self.most:.1f})"


def summary(samples: Sequence[float]) -> Timing:
    return Timing(statistics.median(samples), min(samples), max(samples))


def device_time(calls: Sequence[Callable[[], object]], capture: bool = True) -> Timing:
    """Time on the device of one of `calls`, which are made in turn so that no cache helps.

    From a CUDA graph, so that a slow host does not count. The last few results are kept, so that
    they are not written to the same memory.
    """
    repeats = 3 * len(calls)

    def make_calls() -> None:
        kept: list[object] = []
        for i in range(repeats):
            kept.append(calls[i % len(calls)]())
            del kept[: -len(calls)]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        make_calls()
    torch.cuda.synchronize()
    run = make_calls
    if capture:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            make_calls()
        run = graph.replay
    run()
    samples = []
    for _ in range(15):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        samples.append(1e3 * begin.elapsed_time(end) / repeats)
    return summary(samples)


def host_times(calls: Sequence[Callable[[], object]]) -> list[Timing]:
    """Time until each call returns, while the device keeps up.

    They take turns, so that a slow moment of the machine does not hit one alone.
    """
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(22):
        for call, times in zip(calls, samples, strict=True):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                call()
            times.append(1e6 * (time.perf_counter() - begin) / 100)
    return [summary(times[2:]) for times in samples]


def copy_time(moved_bytes: int) -> Timing:
    """A copy that reads and writes `moved_bytes` in all, in rotation past the cache."""
    half = moved_bytes // 2
    sets = [torch.randn(2, half // 4, device="cuda") for _ in range(rotation(moved_bytes))]
    calls = [lambda pair=pair: pair[0].copy_(pair[1]) for pair in sets]
    return min((device_time(calls, capture) for capture in (True, False)), key=lambda t: t.median)


def rotation(moved_bytes: int) -> int:
    """How many sets of inputs to take turns with, so that the L2 cache has forgotten the first."""
    return 1 if moved_bytes > 10 * L2_BYTES else 3


def find_upstream(given: Path | None) -> Path | None:
    """Upstream's kernel file: as given, or where an sglang distribution lies. Imports nothing."""
    if given is not None:
        return given
    package = importlib.util.find_spec("sglang")
    folders = package.submodule_search_locations if package else None
    return next((f for folder in folders or () for f in Path(folder).rglob(UPSTREAM_FILE)), None)


def load_upstream(file: Path) -> Packing:
    """Its function, from a module of its own: it tunes itself at the first size that it meets for
    a head count and width, and what it picks at one size can be twice as slow at another."""
    spec = importlib.util.spec_from_file_location("upstream_hunyuan_qkv_pack", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.hunyuan_qkv_rope_pack


def check(case: Case, pack: Packing, tensors: tuple[Tensor, ...]) -> None:
    """Right before fast: raises unless every element is the reference's, bit for bit."""
    expected = pack_reference(*tensors)
    poison = torch.full_like(expected, float("nan"))
    address = poison.data_ptr()
    del poison
    planes = pack(*tensors)
    assert planes[0].data_ptr() == address, "the output is not in the memory that held NaN"
    for name, plane, wanted in zip("qkv", planes, expected.unbind(0), strict=True):
        if not torch.equal(plane.view(torch.int16), wanted.view(torch.int16)):
            raise AssertionError(f"{case.name}: {name} differs from the reference")
    cos, sin = tensors[6:]
    for tokens in (slice(0, 64), slice(max(0, case.img_len - 64), case.img_len)):
        angle = torch.complex(cos[tokens].double(), sin[tokens].double())[:, None, :]
        for x, plane in zip(tensors[:2], planes[:2], strict=True):
            pairs = x[:, tokens].double().unflatten(-1, (-1, 2)).contiguous()
            exact = torch.view_as_real(torch.view_as_complex(pairs) * angle).flatten(-2)
            error = (plane[:, tokens].double() - exact).norm() / exact.norm()
            assert error < 2.0**-8, f"{case.name}: {error:.2e} from float64"


def run_case(case: Case, upstream_file: Path | None, compiled: Packing | None) -> None:
    sets = [case.build("cuda", seed).tensors for seed in range(rotation(case.moved_bytes))]
    ours = backends.hunyuan_qkv_rope_pack
    check(case, ours, sets[0])
    upstream = load_upstream(upstream_file) if upstream_file else None
    peers: dict[str, Packing | None] = {"ours": ours, "upstream": upstream}
    if case.name in COMPILED_CASES:
        peers |= {"compiled": compiled, "eager": pack_reference}
    copied = copy_time(case.moved_bytes)
    times = {
        name: device_time([lambda x=x, pack=pack: pack(*x) for x in sets])
        for name, pack in peers.items()
        if pack is not None
    }
    print(
        f"\n{case.name}: B {case.batch}, S {case.img_len}, T {case.txt_len}, H {case.num_heads}, "
        f"D {case.head_dim}; {case.moved_bytes / 1e6:.0f} MB"
    )
    for name, timing in (*times.items(), ("copy", copied)):
        rate = case.moved_bytes / timing.median / 1e6
        line = (
            f"  {name:9}{timing!s:30} {rate:5.2f} TB/s, {copied.median / timing.median:.3f} of copy"
        )
        if name == "ours" and "upstream" in times:
            line += f", {times['upstream'].median / timing.median:.2f} times upstream"
        print(line, flush=True)


def run_host(upstream_file: Path | None) -> None:
    """Calls so small that the device waits for the host."""
    tensors = Case("host", 1, 64, 16, 24, 128, image=fused, text=fused).build("cuda").tensors
    packs: dict[str, Packing] = {"ours": backends.hunyuan_qkv_rope_pack}
    if upstream_file is not None:
        packs["upstream"] = load_upstream(upstream_file)
    calls = [lambda pack=pack: pack(*tensors) for pack in packs.values()]
    times = dict(zip(packs, host_times(calls), strict=True))
    print("\nhost time of a call")
    for name, timing in times.items():
        print(f"  {name:9}{timing}")
    if "upstream" in times:
        print(f"  ours is {times['ours'].median / times['upstream'].median:.2f} of upstream's")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--upstream", type=Path, help=f"sglang's {UPSTREAM_FILE}")
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in BENCH])
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark times kernels on a CUDA device; torch sees none")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    file = find_upstream(arguments.upstream)
    print(
        f"upstream: {file.name if file else 'absent: no sglang distribution, no --upstream FILE'}"
    )
    compiled = None if arguments.no_compile else torch.compile(pack_reference, dynamic=False)
    for case in BENCH:
        if arguments.cases is None or case.name in arguments.cases:
            run_case(case, file, compiled)
    run_host(file)


if __name__ == "__main__":
    main()
