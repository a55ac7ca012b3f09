"""Parts of a condition that are one number for the whole call, and what they are in it.

They are Python's: `/` divides truly, also where sizes of other rules have to come out even. What
has no value in a call is no error yet, as the condition may not ask for it there.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import expressions
from ..expressions import DividesByZero, Incomputable, Node, Unbound

_POWER_BITS = 4096


@dataclass(frozen=True)
class Uncomputed:
    """Stands for a number that there is none of in a call."""

    reason: str
    divides: bool = False
    """Whether a divisor is zero: elements that come to it break the rule, as with their own."""


def number_of(node: Node, env: Mapping[str, Any]) -> Any:
    """Its value in a call, or Uncomputed. Raises Unbound."""
    value = computed(node, env)
    return value if isinstance(value, Uncomputed) else checked(node, value)


def computed(node: Node, env: Mapping[str, Any]) -> Any:
    """The same, whatever kind of object it is."""
    try:
        return expressions.evaluate(node, env, _OPERATORS)
    except Unbound:
        raise
    except Incomputable as error:
        return Uncomputed(str(error), isinstance(error, DividesByZero))
    except Exception as error:  # of an object that is no number, when it is asked for its truth
        return Uncomputed(str(error).partition("\n")[0] or type(error).__name__)


def checked(node: Node, value: Any) -> Any:
    """The value, if conditions can be computed with it."""
    if not isinstance(value, int | float):
        kind = type(value).__name__
        return Uncomputed(f"{expressions.to_text(node)} is of type {kind}, no number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return Uncomputed(f"{expressions.to_text(node)} is outside int64")
    return value


def _power(base: Any, exponent: Any) -> Any:
    """Bounded: a rule would else compute for hours."""
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(exponent) * base.bit_length() > _POWER_BITS:
        raise OverflowError("a power is too large")
    return base**exponent


_OPERATORS = {**expressions.OPERATORS, "/": operator.truediv, "**": _power}
