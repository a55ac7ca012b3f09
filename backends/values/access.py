"""How a kernel reaches the elements of one condition: its parameters, and text that uses them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from contracts.contents.promotion import raised_dtype
from contracts.tensors import dtype_name

from .shaped import Shaped


def parameters(c: int, shaped: Shaped) -> list[tuple[str, str | torch.dtype]]:
    """Of the `c`-th condition: each with its type, or with the dtype that it points to."""
    whole = "i32" if shaped.narrow else "i64"
    return [
        *((f"x_{c}_{t}_ptr", dtype) for t, dtype in enumerate(shaped.dtypes)),
        *((f"size_{c}_{axis}", "i64") for axis in range(1, shaped.axes)),
        *((f"stride_{c}_{t}_{axis}", "i64") for t, axis in shaped.stepped),
        *((f"number_{c}_{k}", "fp64" if f else whole) for k, f in enumerate(shaped.floats)),
        (f"n_{c}", "i64"),
    ]


@dataclass(frozen=True)
class Access:
    """The elements of the `c`-th condition of a kernel."""

    c: int
    shaped: Shaped

    @property
    def names(self) -> list[str]:
        """Its parameters, but for its number of elements, which stands last."""
        return [name for name, _ in parameters(self.c, self.shaped)][:-1]

    def places(self) -> list[str]:
        """The index along each axis of the elements `start + lane`."""
        c, axes = self.c, self.shaped.axes
        if axes == 1:
            return []
        lines = ["    rest = start + lane"]
        for axis in range(axes - 1, 0, -1):
            lines.append(f"    i_{axis} = rest % size_{c}_{axis}")
            lines.append(f"    rest = rest // size_{c}_{axis}")
        return [*lines, "    i_0 = rest"]

    def offset(self, t: int) -> str:
        """Where elements lie in an operand. Along one dense axis, from a block's own beginning."""
        steps = self.shaped.steps[t]
        if self.shaped.axes == 1:
            step = f" * stride_{self.c}_{t}_0" if steps[0] == "n" else ""
            return "start * 0 + lane * 0" if steps[0] == "0" else f"start{step} + lane{step}"
        terms = [
            f"i_{axis}" if step == "1" else f"i_{axis} * stride_{self.c}_{t}_{axis}"
            for axis, step in enumerate(steps)
            if step != "0"
        ]
        return " + ".join(terms) or "i_0 * 0"

    def raised_dtype(self, t: int) -> torch.dtype:
        """That in which an operand's elements are computed."""
        return raised_dtype(self.shaped.dtypes[t])

    def raised(self, t: int) -> str:
        return self.type_of(self.raised_dtype(t))

    def type_of(self, dtype: torch.dtype) -> str:
        """How the kernel calls a dtype that is computed in; int32, where that holds all of it."""
        name = dtype_name(dtype)
        return "tl.int32" if name == "int64" and self.shaped.narrow else f"tl.{name}"
