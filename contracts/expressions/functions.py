"""The functions that an expression may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Unbound(Exception):
    """A name has no value in this call."""


class Incomputable(Exception):
    """The expression has no value: an inexact or zero division, say. `str()` says which."""


class DividesByZero(Incomputable):
    """It has none because a divisor is zero."""


def exact_div(a: Any, b: Any) -> Any:
    """`a / b` for sizes: the division must leave nothing over."""
    try:
        return whole_div(a, b)
    except Incomputable:
        text = f"{a}/{b} divides by zero" if b == 0 else f"{a} is not divisible by {b}"
        raise Incomputable(text) from None


def whole_div(a: Any, b: Any) -> Any:
    """The same for generated code, which only says yes or no: a trace cannot spell sizes out."""
    if b == 0:
        raise Incomputable
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    if a % b != 0:
        raise Incomputable
    return a // b


def by_zero() -> int:
    """Stands for a divisor of zero, on which a trace would fail for good."""
    raise ZeroDivisionError


def outside() -> int:
    """Stands for an axis that a tensor does not have."""
    raise IndexError


def power(a: Any, b: Any) -> Any:
    """`a ** b` in generated code."""
    return (a or by_zero()) ** b if b < 0 else a**b


def cdiv(a: int, b: int) -> int:
    """Ceiling division."""
    return -(-a // (b or by_zero()))


def is_power_of_2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


NUMERIC_FUNCTIONS: dict[str, tuple[Callable[..., Any], int | None]] = {
    "min": (min, None),
    "max": (max, None),
    "abs": (abs, 1),
    "cdiv": (cdiv, 2),
    "is_power_of_2": (is_power_of_2, 1),
    "len": (len, 1),
}
"""Name -> (implementation, number of operands or None for two and more)."""

TENSOR_FUNCTIONS: dict[str, tuple[Callable[..., Any], str, bool]] = {
    "size": (lambda x, dim: x.shape[dim], "{0}.shape[{1}]", True),
    "stride": (lambda x, dim: x.stride()[dim], "{0}.stride()[{1}]", True),
    "numel": (lambda x: x.numel(), "{0}.numel()", False),
    "ndim": (lambda x: x.ndim, "{0}.ndim", False),
    "itemsize": (lambda x: x.itemsize, "{0}.itemsize", False),
    "nbytes": (lambda x: x.numel() * x.itemsize, "({0}.numel() * {0}.itemsize)", False),
    "data_ptr": (lambda x: x.data_ptr(), "{0}.data_ptr()", False),
    "dtype": (lambda x: x.dtype, "{0}.dtype", False),
    "is_contiguous": (lambda x: x.is_contiguous(), "{0}.is_contiguous()", False),
}
"""Name -> (implementation, emitted form, whether it takes a dim)."""
