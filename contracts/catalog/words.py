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
        f"{name} is {axis_place(index)} of `{argument}`"
        for name, (argument, index) in ((name, known[name]) for name in names if name in known)
        if index is not None
    ]
    return f", where {' and '.join(parts)}" if parts else ""


def axis_place(index: int) -> str:
    """`axis 2`, `the last axis`; axes after a variadic one are counted from the end."""
    return f"axis {index}" if index >= 0 else "the last axis" if index == -1 else f"axis {index}"


def dtype_names(dtypes: tuple[torch.dtype, ...] | None) -> str:
    return " or ".join(str(dtype) for dtype in dtypes or ())


def listed(names: tuple[str, ...]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
