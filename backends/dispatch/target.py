"""What the device of a call can do: the facts that backends name in `needs=`.

Facts are read once a device, for the device that the tensors are on. `assume_target` puts others in
their place, so that a laptop can ask what an op would do on a GPU.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from contracts import ContractDefinitionError
from contracts import expressions as language


@dataclass(frozen=True, eq=False)
class Target:
    """One device, as backends see it. Compared by identity: it is a key on the hot path.

    `sm` is ten times the major plus the minor compute capability of an NVIDIA device, and 0 for
    any other. `interpreter` says that Triton's kernels run in its interpreter, on any device.
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
    if device.type != "cuda":
        return Target(str(device), 0, interpreter)
    if torch.version.hip is not None:
        return Target(str(device), 0, interpreter, " (HIP)")
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        return Target(str(device), 0, interpreter, ", which this machine does not have")
    major, minor = torch.cuda.get_device_capability(device)
    return Target(str(device), 10 * major + minor, interpreter)


class _Known(threading.local):
    """The targets that a thread sees: those of the process, or its own while it assumes some."""

    def __init__(self) -> None:
        # In __init__: torch.compile does not guard a thread-local's class-level defaults.
        self.targets = _OF_THE_PROCESS


_OF_THE_PROCESS: dict[torch.device, Target] = {}
known = _Known()


def target_of(device: torch.device) -> Target:
    """The facts about a device, read when it is first asked for."""
    target = known.targets.get(device)
    return target or known.targets.setdefault(device, read_target(device))


@contextmanager
def assume_target(
    device: str | torch.device, *, sm: int = 0, interpreter: bool = False
) -> Iterator[Target]:
    """Within the block and in this thread, pretend that a device has these capabilities.

    For tests and for questions: `explain` answers for a GPU that is not there, on fake or meta
    tensors. It changes what is chosen, not what a kernel can do.

    Example:
        >>> import torch, backends
        >>> from torch._subclasses.fake_tensor import FakeTensorMode
        >>> with backends.assume_target("cuda", sm=90), FakeTensorMode():
        ...     image = torch.empty(3, 1, 6, 2, 8, dtype=torch.bfloat16, device="cuda")
        ...     table = torch.empty(6, 4, device="cuda")
        ...     report = backends.hunyuan_qkv_rope_pack.explain(*image, *image, table, table)
        >>> report.choice
        'triton'
    """
    at = torch.device(device)
    if at.index is None and at.type not in ("cpu", "meta"):
        at = torch.device(at.type, 0)
    target = Target(str(at), sm, interpreter)
    before = known.targets
    known.targets = {**before, at: target}
    try:
        yield target
    finally:
        known.targets = before


FACTS: dict[str, Callable[[Target], Any]] = {
    "sm": lambda target: target.sm,
    "interpreter": lambda target: target.interpreter,
}


@dataclass(frozen=True)
class Need:
    """A condition on a target: `sm >= 90`, `sm >= 80 or interpreter`."""

    source: str

    def __post_init__(self) -> None:
        for name in sorted(language.value_names(self.node) - set(FACTS)):
            raise ContractDefinitionError(
                f"the need {self.source!r} names {name!r}; a target has {', '.join(FACTS)}"
            )

    @property
    def node(self) -> language.Node:
        return language.parse(self.source)

    def __str__(self) -> str:
        return re.sub(r"\s*(<=|>=|==|!=|<|>)\s*", r"\1", self.source.strip())

    def met_by(self, target: Target) -> bool:
        return bool(
            language.evaluate(self.node, {name: fact(target) for name, fact in FACTS.items()})
        )
