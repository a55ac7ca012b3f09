"""Host timing of small calls: contestants take turns, so that a slow moment hits all of them.

What is measured is the CPU time of the calling thread: a check waits for nothing, and the time in
which a busy machine runs somebody else is not its cost.
"""

from __future__ import annotations

import gc
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one sample a round."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        """The undisturbed time: right for adding up parts, too kind for comparing wholes."""
        return min(self.samples)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a fraction of the median."""
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / 2 / self.median

    def per(self, calls: int) -> Timing:
        """The time of one of so many calls that were timed together."""
        return Timing(tuple(sample / calls for sample in self.samples))

    def over(self, other: Timing) -> float:
        """The median, over the rounds, of this contestant's time as a multiple of the other's."""
        pairs = zip(self.samples, other.samples, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def interleaved(
    timers: Mapping[str, timeit.Timer], *, rounds: int = 101, seconds_per_sample: float = 0.002
) -> dict[str, Timing]:
    """Time every contestant once a round; a sample is as many calls as fill its time."""
    counts = {}
    for name, timer in timers.items():
        timer.timeit(20)
        counts[name] = max(3, int(seconds_per_sample / (timer.timeit(20) / 20)))
    samples: dict[str, list[float]] = {name: [] for name in timers}
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, timer in timers.items():
                samples[name].append(timer.timeit(counts[name]) / counts[name])
    finally:
        if was_collecting:
            gc.enable()
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def cpu_timer(
    statement: str | Callable[[], object],
    setup: str = "pass",
    names: Mapping[str, Any] | None = None,
) -> timeit.Timer:
    """timeit's timer on the thread's CPU clock."""
    return timeit.Timer(statement, setup, timer=time.thread_time, globals=dict(names or {}))


Call = tuple[Sequence[Any], Mapping[str, Any]]
"""Arguments by position and by name."""


def call_timer(function: Callable[..., object], *calls: Call) -> timeit.Timer:
    """A timer of these calls in a row, each spelled out as a caller would write it."""
    statements, unpack = [], []
    for number, (positional, keywords) in enumerate(calls):
        at = f"calls[{number}]"
        names = [f"a{number}_{index}" for index in range(len(positional))]
        unpack += [f"{name} = {at}[0][{index}]" for index, name in enumerate(names)]
        unpack += [f"k{number}_{name} = {at}[1][{name!r}]" for name in keywords]
        given = ", ".join([*names, *(f"{name}=k{number}_{name}" for name in keywords)])
        statements.append(f"f({given})")
    setup = "\n".join(["f = function", *unpack])
    return cpu_timer("; ".join(statements), setup, {"function": function, "calls": calls})
