"""One tensor as data: what it is, how it lies in memory, and the code that makes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

COUNTS: dict[str, Callable[[int], torch.Tensor]] = {
    "0, 1, ...": lambda n: torch.arange(n),
    "1, 2, ...": lambda n: torch.arange(1, n + 1),
    "..., 1, 0": lambda n: torch.arange(n).flip(0),
}
"""Contents of n elements that differ."""
COUNTED = {
    "0, 1, ...": "torch.arange({0})",
    "1, 2, ...": "torch.arange(1, {1})",
    "..., 1, 0": "torch.arange({0}).flip(0)",
}


@dataclass(frozen=True)
class TensorPlan:
    """One tensor. Without `strides` it is dense and row-major.

    `offset` counts elements from an aligned address. `shares` names an argument in whose memory
    this tensor begins.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str = "cpu"
    strides: tuple[int, ...] | None = None
    offset: int = 0
    shares: str | None = None
    requires_grad: bool = False
    fill: float | str = 0
    """What every element is, or one of `COUNTS`."""
    kind: type[torch.Tensor] = torch.Tensor
    negative: bool = False
    """A lazy negative view: its memory holds the negated values."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Elements from the aligned address to past the last one."""
        if self.strides is None or not self.numel:
            return self.offset + self.numel
        reach = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return self.offset + reach + 1

    @property
    def nbytes(self) -> int:
        return self.extent * self.dtype.itemsize

    def build(self, owner: torch.Tensor | None, *, filled: bool = True) -> torch.Tensor:
        """The tensor itself; `owner` is the tensor it shares memory with."""
        if owner is not None:
            begin = owner.flatten().view(torch.uint8)[: self.nbytes]
            return self._finish(begin.view(self.dtype).view(self.shape))
        dense = self.strides is None and not self.offset
        shape = self.shape if dense else (self.extent,)
        memory = torch.empty(shape, dtype=self.dtype, device=self.device)
        if isinstance(self.fill, str):
            memory.copy_(COUNTS[self.fill](memory.numel()).view(shape))
        elif filled:
            memory.fill_(self.fill)
        if not dense:
            memory = memory.as_strided(self.shape, self.dense_strides(), self.offset)
        return self._finish(memory)

    def imagine(self) -> torch.Tensor:
        """A tensor without memory, inside an active FakeTensorMode."""
        x = torch.empty_strided(
            self.shape, self.dense_strides(), dtype=self.dtype, device=self.device
        )
        return self._finish(x)

    def _finish(self, x: torch.Tensor) -> torch.Tensor:
        if self.negative:
            x = torch._neg_view(x)
        if issubclass(self.kind, torch.nn.Parameter):
            return torch.nn.Parameter(x, requires_grad=self.requires_grad)
        if self.kind is not torch.Tensor:
            x = x.as_subclass(self.kind)
        return x.requires_grad_() if self.requires_grad else x

    def dense_strides(self) -> tuple[int, ...]:
        if self.strides is not None:
            return self.strides
        sizes = [max(1, size) for size in self.shape]  # as torch does where there is nothing
        return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))

    def source(self, *, fake: bool = False) -> str:
        """Python that makes this tensor."""
        options = f"dtype={self.dtype}"
        if self.device != "cpu":
            options += f', device="{self.device}"'
        if fake:
            text = f"torch.empty_strided({self.shape}, {self.dense_strides()}, {options})"
        elif self.shares is not None:
            text = (
                f"{self.shares}.flatten().view(torch.uint8)[:{self.nbytes}]"
                f".view({self.dtype}).view({self.shape})"
            )
        elif self.strides is None and not self.offset:
            text = self._filled(self.shape, options)
        else:
            memory = self._filled((self.extent,), options)
            text = f"{memory}.as_strided({self.shape}, {self.dense_strides()}, {self.offset})"
        if self.negative:
            text = f"torch._neg_view({text})"
        if issubclass(self.kind, torch.nn.Parameter):
            return f"torch.nn.Parameter({text}, requires_grad={self.requires_grad})"
        if self.kind is not torch.Tensor:
            text += f".as_subclass({self.kind.__name__})"
        return f"{text}.requires_grad_()" if self.requires_grad else text

    def _filled(self, shape: tuple[int, ...], options: str) -> str:
        if self.fill == 0:
            return f"torch.zeros({shape}, {options})"
        if isinstance(self.fill, str):
            counted = COUNTED[self.fill].format(math.prod(shape), math.prod(shape) + 1)
            return f"{counted}.to({self.dtype}).view({shape})"
        fill = repr(self.fill) if math.isfinite(self.fill) else f'float("{self.fill}")'
        return f"torch.full({shape}, {fill}, {options})"
