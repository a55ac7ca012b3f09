"""Checked by mypy, never run: `@contract` keeps the type of what it decorates.

Each `type: ignore` stands on a wrong call. mypy is told to report one that is not needed, so a
decorator that lost the signature would fail here twice: on `assert_type` and on the ignores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import assert_type

from jaxtyping import Float32
from torch import Tensor, nn

from contracts import Contract, contract, same_device


@contract
def bare(x: Float32[Tensor, "n"], scale: float = 1.0) -> Tensor:
    return x * scale


@contract("n > 0", same_device())
def with_rules(x: Float32[Tensor, "n"], *, scale: float) -> Tensor:
    return x * scale


class Scaled(nn.Module):
    @contract()
    def forward(self, x: Float32[Tensor, "n"], scale: float) -> Tensor:
        return x * scale

    @classmethod
    @contract()
    def of(cls, x: Float32[Tensor, "n"]) -> Scaled:
        return cls()

    @staticmethod
    @contract()
    def twice(x: Float32[Tensor, "n"]) -> Tensor:
        return x * 2


@dataclass
class Pair:
    left: Tensor
    right: Tensor


@contract()
async def later(x: Float32[Tensor, "n"]) -> Pair:
    return Pair(x, x)


@contract()
async def stream(x: Float32[Tensor, "n"]) -> AsyncIterator[Tensor]:
    yield x


@contract
class Window:
    def __init__(self, weights: Float32[Tensor, "n"]) -> None:
        self.weights = weights


async def calls(x: Tensor) -> None:
    assert_type(bare(x), Tensor)
    assert_type(bare(x, scale=2.0), Tensor)
    assert_type(with_rules(x, scale=2.0), Tensor)
    assert_type(Scaled().forward(x, 2.0), Tensor)
    assert_type(Scaled.of(x), Scaled)
    assert_type(Scaled.twice(x), Tensor)
    assert_type(await later(x), Pair)
    async for piece in stream(x):
        assert_type(piece, Tensor)
    assert_type(Window(x), Window)
    assert_type(bare.contract, Contract)
    assert_type(with_rules.contract.accepts(x, scale=2.0), bool)


def wrong_calls(x: Tensor) -> None:
    bare(x, "2")  # type: ignore[arg-type]
    bare(y=x)  # type: ignore[call-arg]
    with_rules(x)  # type: ignore[call-arg]
    with_rules(x, 2.0)  # type: ignore[call-arg]
    Scaled().forward(x)  # type: ignore[call-arg]
    Scaled.twice(2)  # type: ignore[arg-type]
    Window(2)  # type: ignore[arg-type]
