"""What a contract demands, as a short text that another process spells in the same way."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
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
    text = _text(parts)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Identity(digest, _UNCERTAIN not in text and "<locals>" not in text)


_UNCERTAIN = "\0by name alone"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _spell(value: Any, words: list[str]) -> None:
    """Append a value as words; sets in an order that does not depend on how their items hash."""
    kind: Any = type(value)
    begin, fields = _plan(kind)
    if fields is not None:
        words.append(begin)
        for field in fields:
            words.append(field)
            _spell(getattr(value, field), words)
        words.append(")")
    elif isinstance(value, tuple | list) and not isinstance(value, enum.Enum):
        words.append(begin)
        for item in value:
            _spell(item, words)
        words.append(")")
    elif isinstance(value, enum.Enum):
        words.append(f"{_name(kind)}.{value.name}")
    elif isinstance(value, (*_PLAIN, *_TORCH)) and not isinstance(value, type):
        words.append(f"{kind.__name__} {value!r}")
    elif isinstance(value, type) and not hasattr(value, "__origin__"):
        words.append(f"type {_name(value)}")
    elif isinstance(value, set | frozenset):
        words += [begin, *sorted(map(_text, value)), ")"]
    elif isinstance(value, Mapping):
        words += [begin, *sorted(map(_text, value.items())), ")"]
    elif callable(value) and hasattr(value, "__qualname__"):
        words.append(f"{_name(value)} {_UNCERTAIN}")
    else:  # an annotation, say
        text = repr(value)
        plain = _ADDRESS.sub("", text)
        words.append(f"{_name(kind)} {plain}" + (_UNCERTAIN if plain != text else ""))


@functools.cache
def _plan(kind: type) -> tuple[str, tuple[str, ...] | None]:
    """How values of a type begin, and the fields to spell of a dataclass."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum):
        return f"{kind.__name__}(", None
    fields = (field.name for field in dataclasses.fields(kind))
    return f"{_name(kind)}(", tuple(name for name in fields if name not in _WORDS)


def _text(value: Any) -> str:
    words: list[str] = []
    _spell(value, words)
    return "\n".join(words)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{value.__qualname__}"
