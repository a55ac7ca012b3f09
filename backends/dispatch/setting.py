"""What a thread asks for beyond the automatic choice: a backend, or an assumed device."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from .target import Target, read_target

VARIABLE = "CONTRACTS_BACKEND"

Place: TypeAlias = torch.device | Target
Key: TypeAlias = Place | tuple[Place, str]
"""A device, or what is assumed of it, and a demanded backend."""


@dataclass(frozen=True)
class Demand:
    """A backend for every op, and for single ops by name; None leaves the choice to the call."""

    default: str | None
    by_op: Mapping[str, str | None]
    origin: str

    def of(self, op: str) -> str | None:
        return self.by_op.get(op, self.default)


@dataclass(frozen=True)
class Setting:
    """Everything that makes a thread's calls differ from the automatic choice."""

    demand: Demand
    targets: Mapping[torch.device, Target]

    def key(self, op: str, device: torch.device, backend: str | None) -> Key:
        """What decides, apart from the call itself, which backends are worth asking."""
        demand = self.demand  # `of`, written out: it is in the way of every call within a block
        if backend is not None:
            demanded: str | None = backend
        else:
            demanded = demand.by_op.get(op, demand.default) if demand.by_op else demand.default
        where = self.targets.get(device, device) if self.targets else device
        return where if demanded is None else (where, demanded)


NOTHING = Setting(Demand(None, {}, ""), {})


def read_environment(text: str) -> Setting | None:
    """`triton`, or `hunyuan_qkv_rope_pack=triton,sparse_mla_q8kv8_prefill_fwd=reference`."""
    default, by_op = None, {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        op, *backend = (word.strip() for word in item.split("="))
        if not op or len(backend) > 1 or "" in backend:
            raise ValueError(f"{VARIABLE}: {item!r} is neither a backend nor op=backend")
        if backend:
            by_op[op] = backend[0]
        else:
            default = op
    return Setting(Demand(default, by_op, VARIABLE), {}) if default or by_op else None


OF_THE_ENVIRONMENT = read_environment(os.environ.get(VARIABLE, ""))


class _Thread(threading.local):
    """In __init__, not in the class: torch.compile guards what the instance holds."""

    def __init__(self) -> None:
        self.setting = OF_THE_ENVIRONMENT


thread = _Thread()

_targets: dict[torch.device, Target] = {}
"""The devices of this process, as they were when they were first asked for."""


def target_of(device: torch.device) -> Target:
    """What a device can do, as far as this thread is concerned."""
    if thread.setting is not None and device in thread.setting.targets:
        return thread.setting.targets[device]
    target = _targets.get(device)
    return target or _targets.setdefault(device, read_target(device))


def demand_on(op: str) -> tuple[str | None, str]:
    """The backend that this thread demands of an op, if it does, and what says so."""
    if thread.setting is None:
        return None, ""
    return thread.setting.demand.of(op), thread.setting.demand.origin


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
    before = thread.setting
    setting = before or NOTHING
    thread.setting = replace(setting, targets={**setting.targets, at: target})
    try:
        yield target
    finally:
        thread.setting = before


known_ops: set[str] = set()
"""Names of all ops, so that a misspelt one is noticed where it is written."""


class use:
    """Demand a backend within a block, of every op or of single ones.

    The innermost block wins, `backend=` in a call wins over every block, and a block wins over
    the environment variable CONTRACTS_BACKEND, which is read when `backends` is imported. None
    gives the choice back to the call. A demanded backend never falls back: where it cannot serve
    a call, the call raises NoBackendError.

    The demand is this thread's: other threads, also those that the block starts, do not see it.
    asyncio tasks of one thread share it, so do not `await` inside the block.

    Raises:
        ValueError: there is no op of that name.

    Example:
        >>> import backends
        >>> with backends.use("triton"):
        ...     with backends.use(hunyuan_qkv_rope_pack="reference"):
        ...         pass  # this op from its reference, every other from its Triton backend
    """

    def __init__(self, backend: str | None = None, /, **by_op: str | None) -> None:
        for op in by_op:
            if op not in known_ops:
                raise ValueError(f"there is no op {op!r}; there are {', '.join(sorted(known_ops))}")
        self.backend = backend
        self.by_op = by_op
        self.before: list[Setting | None] = []

    def __enter__(self) -> None:
        self.before.append(thread.setting)
        setting = thread.setting or NOTHING
        demand = Demand(self.backend, self.by_op, "backends.use")
        if self.by_op and self.backend is None:  # for some ops only: others keep what they have
            outer = setting.demand
            demand = Demand(outer.default, {**outer.by_op, **self.by_op}, "backends.use")
        thread.setting = Setting(demand, setting.targets)

    def __exit__(self, *_: object) -> None:
        thread.setting = self.before.pop()
