"""Named inputs, shared by tests, conformance and benchmarks: what a caller may bring, and how close
each backend has to come.

Every kv row that no valid lane names is NaN, and so are the bytes around kv: a kernel that reads a
masked lane's row, or past the cache, returns NaN. Results start as NaN: what is not written shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .reference import sparse_mla_reference

FP8 = torch.float8_e4m3fn
VALUE_DIM = 512
NAN_BYTE = 0x7F
GUARD_ROWS = 2
"""Rows of NaN before and after kv."""

LanePattern = Callable[[int, int, torch.Generator], Tensor]
"""From s_q, topk and a generator to the lanes that are to be valid, bool `[s_q, topk]`."""


def every_lane(s_q: int, topk: int, generator: torch.Generator) -> Tensor:
    return torch.ones(s_q, topk, dtype=torch.bool)


def lanes_outside(s_q: int, topk: int, generator: torch.Generator, first: int, end: int) -> Tensor:
    """All but the block `[first, end)`."""
    lane = torch.arange(topk).expand(s_q, topk)
    return (lane < first) | (lane >= end)


def lanes_inside(s_q: int, topk: int, generator: torch.Generator, first: int, end: int) -> Tensor:
    """None but the block `[first, end)`."""
    return ~lanes_outside(s_q, topk, generator, first, end)


def odd_lanes(s_q: int, topk: int, generator: torch.Generator) -> Tensor:
    return (torch.arange(topk) % 2 == 1).expand(s_q, topk)


def random_lanes(s_q: int, topk: int, generator: torch.Generator) -> Tensor:
    """Two lanes of three; none at all for every fourth query, beginning with the second."""
    valid = torch.rand(s_q, topk, generator=generator) < 2 / 3
    valid[1::4] = False
    return valid


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call, named as the operation names them."""

    q: Tensor
    kv: Tensor
    indices: Tensor
    sm_scale: float
    q_scale: Tensor
    kv_scale: Tensor
    attn_sink: Tensor | None
    topk_length: Tensor | None

    @property
    def operands(
        self,
    ) -> tuple[Tensor, Tensor, Tensor, float, Tensor, Tensor, Tensor | None, Tensor | None]:
        """In the order in which backends take them, before the results' buffers."""
        return (
            self.q,
            self.kv,
            self.indices,
            self.sm_scale,
            self.q_scale,
            self.kv_scale,
            self.attn_sink,
            self.topk_length,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the public operation."""
        return dict(vars(self))


@dataclass(frozen=True)
class Results:
    """Buffers for the results of one call, or what they should hold."""

    out: Tensor
    max_logits: Tensor
    lse: Tensor

    @property
    def buffers(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.out, self.max_logits, self.lse

    def same_bits(self, other: Results) -> bool:
        return all(
            torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
            for mine, theirs in zip(self.buffers, other.buffers, strict=True)
        )


@dataclass(frozen=True)
class Tolerance:
    """How far a backend may be off, on logits of size one.

    `out` bounds ||out - exact|| / ||exact|| over the whole call: rounding to bfloat16 alone makes
    1.7e-3. `logits` bounds max_logits and lse absolutely and grows with the logits.
    """

    out: float
    logits: float


TOLERANCES = {
    "reference": Tolerance(out=2.0e-3, logits=2e-6),
    "triton": Tolerance(out=2.5e-3, logits=5e-3),
    "gluon": Tolerance(out=2.5e-3, logits=1e-2),
    # Rounds float32 to bfloat16 by truncation, and computes all else in float32.
    "triton-interpreted": Tolerance(out=5.0e-3, logits=4e-6),
}
"""By backend. Hopper's FP8 unit keeps some 13 bits of a sum: logits lose with its length."""


@dataclass(frozen=True)
class Case:
    """One call. `logit_size` is the standard deviation of its logits.

    `exact` draws q and kv from +-1, whose products add up without rounding even in an FP8 unit: the
    data for logits so large that a rounded one would change the winner. `masked_index` says what
    masked lanes hold: -1, or every kind of index that is no row of kv. `attn_sink` is one value for
    all heads, or "normal". `topk_length` is repeated over the queries. `kv_row_bytes` is the pitch
    of the cache that kv is a slice of.
    """

    name: str
    s_q: int
    s_kv: int
    h_q: int
    topk: int
    d_qk: int = 576
    lanes: LanePattern = every_lane
    masked_index: str = "minus one"
    attn_sink: float | str | None = None
    topk_length: tuple[int, ...] | None = None
    logit_size: float = 1.0
    exact: bool = False
    q_scale: float = 1.0
    kv_scale: float = 1.0
    kv_row_bytes: int | None = None

    def build(self, device: str | torch.device, seed: int = 0) -> Inputs:
        """Fresh inputs on `device`; the same ones for the same seed and device."""
        with torch.device(device):
            return self._build(torch.Generator(device).manual_seed(seed))

    def _build(self, generator: torch.Generator) -> Inputs:
        indices = torch.full((self.s_q, self.topk), -1, dtype=torch.int64)
        if self.s_kv:
            indices.random_(0, self.s_kv, generator=generator)
        valid = self.lanes(self.s_q, self.topk, generator) & (indices >= 0)
        indices = torch.where(valid, indices, self._masked_indices())
        topk_length = None
        if self.topk_length is not None:
            repeats = -(-self.s_q // len(self.topk_length))
            topk_length = torch.tensor(self.topk_length * repeats, dtype=torch.int32)[: self.s_q]
            valid &= torch.arange(self.topk) < topk_length[:, None]
        return Inputs(
            q=self._draw((self.s_q, self.h_q, self.d_qk), generator),
            kv=self._draw_kv(indices[valid].unique(), generator),
            indices=indices[:, None].int(),
            sm_scale=self.logit_size / (self.q_scale * self.kv_scale * self.d_qk**0.5),
            q_scale=torch.tensor(self.q_scale),
            kv_scale=torch.tensor([self.kv_scale]),
            attn_sink=self._attn_sink(generator),
            topk_length=topk_length,
        )

    def new_results(self, device: str | torch.device) -> Results:
        """Buffers of NaN."""
        nan = partial(torch.full, fill_value=float("nan"), device=device)
        rows = (self.s_q, self.h_q)
        return Results(nan((*rows, VALUE_DIM), dtype=torch.bfloat16), nan(rows), nan(rows))

    def tolerance(self, backend: str) -> Tolerance:
        """Rounded logits move the weights: the bound on out grows with those that are rounded."""
        base = TOLERANCES[backend]
        rounded = 0.0 if self.exact else self.logit_size
        return Tolerance(
            out=base.out * max(1.0, rounded / 4), logits=base.logits * max(1.0, self.logit_size)
        )

    def _draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return (values.sign() if self.exact else values).to(FP8)

    def _draw_kv(self, used_rows: Tensor, generator: torch.Generator) -> Tensor:
        """`[s_kv, 1, d_qk]` inside a buffer of NaN, with values in `used_rows` alone."""
        pitch = self.kv_row_bytes or self.d_qk
        shape = (self.s_kv + 2 * GUARD_ROWS, pitch)
        buffer = torch.full(shape, NAN_BYTE, dtype=torch.uint8).view(FP8)
        inside = buffer[GUARD_ROWS : GUARD_ROWS + self.s_kv, : self.d_qk]
        rows = self._draw((len(used_rows), self.d_qk), generator)
        inside.view(torch.uint8)[used_rows] = rows.view(torch.uint8)
        return inside.unsqueeze(1)

    def _masked_indices(self) -> Tensor:
        """What each masked lane holds, `[topk]`."""
        if self.masked_index == "minus one":
            return torch.tensor(-1)
        outside = [-1, -2, -(2**31), self.s_kv, self.s_kv + 1, 2_147_480_000, 2**31 - 1]
        return torch.tensor(outside)[torch.arange(self.topk) % len(outside)]

    def _attn_sink(self, generator: torch.Generator) -> Tensor | None:
        if self.attn_sink is None:
            return None
        if self.attn_sink == "normal":
            return 2 * torch.randn(self.h_q, generator=generator)
        return torch.full((self.h_q,), float(self.attn_sink))


def exact_results(inputs: Inputs) -> Results:
    """The reference's results in float64, unrounded."""
    s_q, h_q, _ = inputs.q.shape
    out = inputs.q.new_full((s_q, h_q, VALUE_DIM), float("nan"), dtype=torch.float64)
    stats = out.new_full((2, s_q, h_q), float("nan"))
    results = Results(out, stats[0], stats[1])
    sparse_mla_reference(*inputs.operands, *results.buffers)
    return results


def relative_error(actual: Tensor, exact: Tensor) -> float:
    """||actual - exact|| / ||exact||; the norm of the difference where exact is zero in float32."""
    norm = exact.double().norm()
    difference = (actual.double() - exact.double()).norm()
    return float(difference / norm if norm > 1e-30 else difference)


def mismatches(results: Results, exact: Results, tolerance: Tolerance) -> Iterator[str]:
    """Say what is wrong with some results; nothing where they hold."""
    error = relative_error(results.out, exact.out)
    if not error <= tolerance.out:
        yield f"out is off by {error:.2e}, not {tolerance.out:.2e}"
    for name in ("max_logits", "lse"):
        actual, expected = getattr(results, name).double(), getattr(exact, name)
        finite = expected.isfinite()
        if not torch.equal(actual[~finite], expected[~finite]):
            yield f"{name} of rows without a valid lane is {actual[~finite].unique().tolist()}"
        if finite.any():
            worst = float((actual - expected)[finite].abs().max())
            if not worst <= tolerance.logits:
                yield f"{name} is off by {worst:.2e}, not {tolerance.logits:.2e}"


def disagreements(
    case: Case, inputs: Inputs, results: tuple[Tensor, Tensor, Tensor], backend: str
) -> Iterator[str]:
    """What is wrong with an operation's results, against float64."""
    name = backend if inputs.q.is_cuda else f"{backend}-interpreted"
    yield from mismatches(Results(*results), exact_results(inputs), case.tolerance(name))


ALL_LENGTHS = (0, 1, 7, 64, 127, 128, 129, -1)
EVERYTHING: dict[str, Any] = {
    "lanes": random_lanes,
    "masked_index": "extremes",
    "attn_sink": "normal",
    "topk_length": (256, 131, 7, 200, -5, 1, 300),
    "q_scale": 0.5,
    "kv_scale": 2.0,
}
"""Every option at once."""

SMALL = (
    Case("rope", 2, 95, 64, 128),
    Case("no-rope", 2, 95, 64, 128, 512),
    Case("heads-128", 1, 95, 128, 128),
    Case("heads-192", 1, 95, 192, 128, 512),
    Case("no-queries", 0, 95, 64, 128),
    Case("no-rows", 2, 0, 64, 128),
    Case("no-rows-sink", 2, 0, 64, 128, attn_sink=0.5, topk_length=(128, 7)),
    Case("one-row-many-times", 2, 1, 64, 128),
    Case("few-rows-many-times", 1, 5, 64, 256, 512, **EVERYTHING),
    Case("scales", 1, 95, 64, 128, q_scale=3.0, kv_scale=0.25),
    Case("leading-block-masked", 1, 95, 64, 256, lanes=partial(lanes_outside, first=0, end=128)),
    Case("middle-block-masked", 1, 95, 64, 256, lanes=partial(lanes_outside, first=64, end=192)),
    Case("trailing-block-masked", 1, 95, 64, 256, lanes=partial(lanes_outside, first=96, end=256)),
    Case("odd-lanes", 1, 95, 64, 128, lanes=odd_lanes),
    Case("last-lane-alone", 1, 95, 64, 256, lanes=partial(lanes_inside, first=255, end=256)),
    Case("indices-outside", 2, 95, 64, 128, lanes=odd_lanes, masked_index="extremes"),
    Case("lengths", 8, 95, 64, 128, 512, topk_length=ALL_LENGTHS),
    Case("everything", 3, 95, 64, 256, **EVERYTHING),
    *(
        Case(f"none-valid-sink-{sink}", 1, 95, 64, 128, attn_sink=sink, topk_length=(0,))
        for sink in (None, float("-inf"), 0.5, 100.0, float("inf"))
    ),
    *(
        Case(f"sink-{sink}", 1, 95, 64, 128, attn_sink=sink, topk_length=(100,))
        for sink in (float("-inf"), 0.5, 100.0, float("inf"))
    ),
    Case("logits-of-8", 1, 95, 64, 128, logit_size=8.0),
    Case("logits-of-1e5", 1, 95, 64, 256, logit_size=1e5, exact=True),
    Case("logits-of-0", 1, 95, 64, 128, logit_size=0.0),
    Case("cache-rows-of-656-bytes", 1, 95, 64, 128, kv_row_bytes=656),
    Case("cache-rows-of-577-bytes", 1, 95, 64, 128, kv_row_bytes=577),
)
"""Small enough for Triton's interpreter on a CPU."""

CASES = tuple(case for case in SMALL if case.s_q <= 2)
"""What every backend is compared on, quickly, wherever the operation is tested."""

LARGE = (
    *(
        Case(f"s{s_q}-h{h_q}-k{topk}-d{d_qk}", s_q, 4096, h_q, topk, d_qk, **EVERYTHING)
        for s_q, h_q, topk, d_qk in product((1, 65), (64, 128, 192), (128, 256, 2048), (512, 576))
    ),
    *(
        Case(f"plain-s{s_q}-h{h_q}", s_q, 4096, h_q, 2048)
        for s_q, h_q in product((1, 3, 8, 33, 64, 200), (64, 128))
    ),
    Case("one-pass", 150, 95, 64, 256, **EVERYTHING),
    Case("whole-and-split", 200, 4096, 128, 2048, **EVERYTHING),
    Case("rows-65600", 65, 65_600, 128, 2048, **EVERYTHING),
    Case("rows-95", 300, 95, 128, 2048, **EVERYTHING),
    Case("logits-of-8-long", 65, 4096, 128, 2048, logit_size=8.0),
    Case("logits-of-1e5-long", 65, 4096, 128, 2048, logit_size=1e5, exact=True),
    Case("cache-rows-656-long", 300, 4096, 128, 2048, kv_row_bytes=656, **EVERYTHING),
)
"""For a GPU: every size at which a kernel takes another path."""

BENCH = (
    Case("prefill 4096, 8k rows", 4096, 8192, 128, 2048),
    Case("prefill 4096, 32k rows", 4096, 32_768, 128, 2048),
    Case("prefill 4096, 128k rows", 4096, 131_072, 128, 2048),
    Case("64 heads", 4096, 32_768, 64, 2048),
    Case("short, no rope", 1024, 32_768, 128, 512, 512),
    Case("64 queries", 64, 32_768, 128, 2048),
    Case("8 queries", 8, 32_768, 128, 2048),
    Case("1 query", 1, 32_768, 128, 2048),
)
"""Sizes of DeepSeek-V3.2's sparse attention: prefill, and down to single queries."""
