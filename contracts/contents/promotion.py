"""In which dtype elements and numbers are computed: one answer for all who judge them.

It depends on the dtypes of what meets alone, never on torch's default dtype or on the sizes.
"""

from __future__ import annotations

import math
import struct

import torch

JUDGEABLE = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.uint16,
        torch.int16,
        torch.uint32,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    }
)
"""Those of single real numbers which int64, float32 or float64 hold."""

Kind = torch.dtype | type
"""What a value is: bool, int64, float32 or float64 of elements, int or float of a number."""

WHOLE: frozenset[Kind] = frozenset({torch.bool, torch.int64, int})
_SINGLE: frozenset[Kind] = frozenset({torch.float32, int, float})


def raised_dtype(dtype: torch.dtype) -> torch.dtype:
    """That in which elements of this dtype are computed: nothing overflows that need not, and FP8
    can be computed with at all."""
    if not dtype.is_floating_point:
        return torch.int64
    return torch.float64 if dtype is torch.float64 else torch.float32


def raised(x: torch.Tensor) -> torch.Tensor:
    """The tensor in that dtype."""
    return x.to(raised_dtype(x.dtype))


def joined(left: Kind, right: Kind) -> torch.dtype:
    """That in which two values meet. Truths count as 0 and 1. A number meets float32 elements as
    float32; integers of elements meet what is a float as float64, which is exact up to 2**53."""
    if left in WHOLE and right in WHOLE:
        return torch.int64
    if torch.float32 in (left, right) and left in _SINGLE and right in _SINGLE:
        return torch.float32
    return torch.float64


def divided(left: Kind, right: Kind) -> torch.dtype:
    """That in which `/` divides."""
    dtype = joined(left, right)
    return torch.float64 if dtype is torch.int64 else dtype


def rounded(number: float, dtype: torch.dtype) -> int | float:
    """A number as it meets others in a dtype."""
    if dtype is torch.int64:
        return int(number)
    return float(number) if dtype is torch.float64 else _single(number)


def _single(number: float) -> float:
    """The nearest float32, rounded once."""
    if isinstance(number, int) and abs(number) >= 2**53:
        # a float64 holds what is left of an int64, with one bit for all that was cut off
        number = number >> 20 << 20 | bool(number & 2**20 - 1) << 20
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)
