"""What the device of a call can do: the facts that backends name in `needs=`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch

from contracts import ContractDefinitionError
from contracts import expressions as language


@dataclass(frozen=True, eq=False)
class Target:
    """One device, as backends see it. Compared by identity: it is a key on the hot path.

    `sm` is ten times the major plus the minor compute capability of an NVIDIA device, and 0 for
    any other. `interpreter` says that Triton's kernels run in its interpreter, wherever there is
    memory.
    """

    device: str
    sm: int = 0
    interpreter: bool = False
    remark: str = ""

    def __str__(self) -> str:
        return f"sm{self.sm}" if self.sm else f"{self.device}{self.remark}"

    @property
    def falls_back_loudly(self) -> bool:
        """Whether it is worth a warning that only the reference serves a call here."""
        return not self.device.startswith(("cpu", "meta"))


def read_target(device: torch.device) -> Target:
    """Ask torch, and Triton's environment, about a device."""
    interpreter = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
    if device.type == "meta":
        return Target(str(device))  # an interpreter has nothing to read there either
    if device.type != "cuda":
        return Target(str(device), 0, interpreter)
    if torch.version.hip is not None:
        return Target(str(device), 0, interpreter, " (HIP)")
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        return Target(str(device), 0, interpreter, ", which this machine does not have")
    major, minor = torch.cuda.get_device_capability(device)
    return Target(str(device), 10 * major + minor, interpreter)


FACTS = ("sm", "interpreter")
"""What a need may name. `interpreter`: Triton's interpreter is on, and the backend was demanded by
name; nobody wants its speed otherwise."""


@dataclass(frozen=True)
class Need:
    """A condition on a target: `sm >= 90`, `sm >= 80 or interpreter`."""

    source: str

    def __post_init__(self) -> None:
        for name in sorted(language.value_names(self.node) - set(FACTS)):
            raise ContractDefinitionError(
                f"the need {self.source!r} names {name!r}; it may name {' and '.join(FACTS)}"
            )

    @property
    def node(self) -> language.Node:
        return language.parse(self.source)

    def __str__(self) -> str:
        return re.sub(r"\s*(<=|>=|==|!=|<|>)\s*", r"\1", self.source.strip())

    def met_by(self, target: Target, demanded: bool) -> bool:
        facts = {"sm": target.sm, "interpreter": target.interpreter and demanded}
        return bool(language.evaluate(self.node, facts))
