"""What a contract demands, as a short text that another process spells in the same way."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

_WORDS = frozenset({"hint", "fix", "note", "upstream"})
"""Fields of rules that say something to a reader and demand nothing."""

_PLAIN = (str, bytes, int, float, complex, type(None))
_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class Demands(Protocol):
    """The part of a declaration on which a verdict depends."""

    @property
    def receiver(self) -> str | None: ...
    @property
    def arguments(self) -> Sequence[Any]: ...
    @property
    def rules(self) -> Sequence[Any]: ...
    @property
    def returns(self) -> Any: ...
    @property
    def sizes(self) -> frozenset[str]: ...


class Identity(NamedTuple):
    """A digest that equal contracts share."""

    digest: str
    certain: bool
    """Whether the text holds all that a verdict depends on: it does not hold what a function does
    or encloses, and only names a class that is local."""


def identify(declaration: Demands, mode: str | None) -> Identity:
    """What tells this contract from others of its name."""
    parts = (
        declaration.receiver,
        tuple(declaration.arguments),
        tuple(declaration.rules),
        declaration.returns,
        declaration.sizes,
        mode,
    )
    text = "\n".join(_spelled(parts))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Identity(digest, _UNCERTAIN not in text and "<locals>" not in text)


_UNCERTAIN = "\0by name alone"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _spelled(value: Any) -> Iterator[str]:
    """A value as words; sets in an order that does not depend on how their items hash."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        yield f"{_name(kind)}.{value.name}"
    elif isinstance(value, (*_PLAIN, *_TORCH)) and not isinstance(value, type):
        yield f"{kind.__name__} {value!r}"
    elif isinstance(value, type) and not hasattr(value, "__origin__"):
        yield f"type {_name(value)}"
    elif dataclasses.is_dataclass(value):
        yield f"{_name(kind)}("
        for field in dataclasses.fields(value):
            if field.name not in _WORDS:
                yield field.name
                yield from _spelled(getattr(value, field.name))
        yield ")"
    elif isinstance(value, set | frozenset):
        yield f"{kind.__name__}("
        yield from sorted("\n".join(_spelled(item)) for item in value)
        yield ")"
    elif isinstance(value, Mapping):
        yield f"{kind.__name__}("
        yield from sorted("\n".join((*_spelled(k), *_spelled(v))) for k, v in value.items())
        yield ")"
    elif isinstance(value, list | tuple):
        yield f"{kind.__name__}("
        for item in value:
            yield from _spelled(item)
        yield ")"
    elif callable(value) and hasattr(value, "__qualname__"):
        yield f"{_name(value)} {_UNCERTAIN}"
    else:  # an annotation, say
        text = repr(value)
        plain = _ADDRESS.sub("", text)
        yield f"{_name(kind)} {plain}" + (_UNCERTAIN if plain != text else "")


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{value.__qualname__}"
