"""Values for annotations that are not tensors: one that fits, and some that do not."""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import ContractDefinitionError
from ..spec import ValueSpec, is_bearable


class NoSample(LookupError):
    """Nothing that is known here fits an annotation; the caller has to give a value."""

    def __init__(self, argument: str, spec: ValueSpec) -> None:
        super().__init__(
            f"{argument}: nothing is known that fits {spec.text}; give a value, "
            f"given={{{argument!r}: ...}}"
        )


SAMPLES: tuple[Any, ...] = (
    *(1, 2, 0, 0.5, 1.0, True, False, "a", None, b"a", 1j, -1),
    *([], (), {}, set(), frozenset(), [1], (1,), (1, 1), (1, 1, 1), [0.5], ["a"], {"a": 1}),
    *(torch.float32, torch.device("cpu"), torch.strided, torch.Size(()), slice(None), len, int),
)
STRANGERS: tuple[Any, ...] = (None, "not a tensor", 3, 2.5, [0.0], {"a": 1}, object)
"""Values of other kinds, in the order in which a broken call tries them."""


def fits(spec: ValueSpec, value: Any) -> bool:
    """Whether a value is what the annotation says."""
    if spec.types is not None:
        return isinstance(value, spec.types)
    return bool(is_bearable(value, spec.hint))


def sample(spec: ValueSpec, argument: str) -> Any:
    """A value that fits; NoSample where none is known."""
    for value in _candidates(spec):
        if fits(spec, value):
            return value
    raise NoSample(argument, spec)


def strangers(spec: ValueSpec) -> Iterator[Any]:
    """Values that do not fit."""
    for value in STRANGERS:
        if not fits(spec, value):
            yield value


def _candidates(spec: ValueSpec) -> Iterator[Any]:
    yield from _literals(spec.hint)
    for kind in spec.types or (spec.hint,):
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            yield from kind
    yield from SAMPLES
    for kind in spec.types or (spec.hint,):
        if isinstance(kind, type):
            try:
                yield kind()
            except (TypeError, ValueError, RuntimeError, ContractDefinitionError):
                continue


def _literals(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    else:
        for part in typing.get_args(hint):
            yield from _literals(part)
