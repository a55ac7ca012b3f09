"""What every demand is described by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..facts import places
from ..model import Declaration


@dataclass(frozen=True)
class Words:
    """A demand in words."""

    kind: str
    demand: str
    messages: tuple[str, ...]
    """The forms of the message by which a call hears of it, `{name}` where it varies."""
    meaning: str
    trigger: str
    solution: str
    arguments: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()


def origins(declaration: Declaration, names: list[str]) -> str:
    """`, where head_dim is axis 3 of img_q`; empty where the names are arguments themselves."""
    known = places(declaration)
    parts = [
        f"{name} is axis {known[name][1]} of `{known[name][0]}`"
        for name in names
        if name in known and known[name][1] is not None
    ]
    return f", where {' and '.join(parts)}" if parts else ""


def dtype_names(dtypes: tuple[torch.dtype, ...] | None) -> str:
    return " or ".join(str(dtype) for dtype in dtypes or ())


def listed(names: tuple[str, ...]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
