"""Contracts of every kind that the testing kit has to find its way through."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Float32, Int, Int32, Shaped
from torch import Tensor

from contracts import (
    aligned,
    contiguous,
    contract,
    custom,
    device,
    no_grad,
    no_overlap,
    requires,
    same_device,
    same_dtype,
    unit_stride,
    values,
    when,
)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@contract("len(xs) > 0", same_device(), unit_stride())
def stack(xs: Sequence[Float32[Tensor, "n d"]]): ...


@contract("len(xs) == len(ys)")
def pair(xs: list[Float32[Tensor, "n"]], ys: list[Float32[Tensor, "n"]]): ...


@contract
def features(
    x: Float[Tensor, "b c"],
    feats: list[Float[Tensor, "b c n"]],
    y: Float[Tensor, "n"] | None = None,
): ...


@contract
def mappings(d: dict[str, Float32[Tensor, "n"]], m: Mapping[int, Int[Tensor, "n"]]): ...


@contract
def packed(
    t: tuple[Float32[Tensor, "n"], Int32[Tensor, "n 3"]],
    *rest: Float32[Tensor, "n"],
    **more: Float32[Tensor, "n"],
): ...


@contract
def either(x: Float32[Tensor, "n d"] | Float32[Tensor, "n"], y: Int32[Tensor, "n"] | int): ...


@contract
def variadic(
    x: Float32[Tensor, "*batch n 4"], y: Float32[Tensor, "*batch n*2"], z: Float[Tensor, "... n"]
): ...


@contract
def broadcast(
    x: Float32[Tensor, "#n d"],
    y: Float32[Tensor, "n #d"],
    z: Float32[Tensor, "*#b"],
    w: Float32[Tensor, "*#b"],
): ...


@contract(device("cuda"), aligned(16, "x"), same_device())
def on_cuda(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]): ...


@contract(
    when("causal", "q_len <= kv_len"),
    when("n > 4", contiguous("x")),
    when("causal", device("cuda", "x")),
)
def conditional(
    x: Float32[Tensor, "n q_len"], y: Float32[Tensor, "kv_len"], causal: bool = False
): ...


@contract(
    custom(lambda x, n: n % 3 != 1, "n % 3 != 1"),
    "stride(x, 0) % 16 == 0",
    "is_contiguous(x)",
    "data_ptr(x) % 16 == 0",
    "itemsize(x) in (2, 4)",
)
def layout(x: Shaped[Tensor, "n d"]): ...


@contract("n == m * 7 + 3", "m >= 2", "scale > 0.0", "mode in (1, 3)")
def scalars(
    x: Float32[Tensor, "n"],
    y: Float32[Tensor, "m"],
    scale: float = 1.0,
    mode: int = 1,
    colour: Colour = Colour.RED,
    letter: Literal["a", "b"] = "a",
    function: Callable[[int], int] = abs,
    dtype: torch.dtype = torch.float32,
): ...


@contract("is_power_of_2(n)", "cdiv(m, n) <= 4", "min(n, m) > 1", "abs(n - m) < 100")
def numeric(x: Float32[Tensor, "n"], y: Float32[Tensor, "m"]): ...


@contract("n >= 2**20", "m > 2**31")
def large(x: Float32[Tensor, "n"], y: Float32[Tensor, "m"]): ...


@contract(no_grad(), requires("y"), "window is None or window > 0")
def presence(
    x: Float32[Tensor, "a b b"], y: Float32[Tensor, "b"] | None = None, window: int | None = None
): ...


@contract("q_len <= kv_len", same_dtype())
def sized(x: Float[Tensor, "q_len {width}"], y: Float[Tensor, "kv_len"], width: int): ...


@contract(no_overlap("out"))
def writes(x: Float32[Tensor, "n"], out: Float32[Tensor, "n"], p: torch.nn.Parameter): ...


@contract(
    values("0 <= lengths <= cols", id="lengths-range"),
    values("isfinite(scale) and scale > 0", id="scale-positive"),
    values("sorted(offsets)", id="offsets-sorted"),
    values("unique(slots) and slots >= 0", id="slots-unique"),
    when("causal", values("lengths > 0", id="lengths-positive")),
)
def contents(
    x: Float32[Tensor, "rows cols"],
    lengths: Int32[Tensor, "rows"],
    offsets: Int32[Tensor, "_"],
    slots: Int[Tensor, "rows"],
    scale: Float32[Tensor, ""] | None = None,
    causal: bool = False,
): ...


@contract
def without_tensors(x: int, y: str): ...


class Layer:
    width = 4

    @contract("n > 1")
    def forward(self, x: Float32[Tensor, "n {self.width}"]): ...


SOUND = (
    *(stack, pair, features, mappings, packed, either, variadic, broadcast, on_cuda, conditional),
    *(layout, scalars, numeric, large, presence, sized, writes, contents, without_tensors),
    Layer().forward,
)
"""Contracts without a defect."""
