"""Which backend was demanded: by a `with` block of this thread, or by the environment."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

VARIABLE = "CONTRACTS_BACKEND"


@dataclass(frozen=True)
class Demands:
    """A backend for every op, and for single ops by name; None leaves the choice to the call."""

    default: str | None
    by_op: Mapping[str, str | None] = field(default_factory=dict)
    origin: str = "backends.use"

    def of(self, op: str) -> str | None:
        return self.by_op.get(op, self.default)


def parse(text: str) -> Demands | None:
    """`triton`, or `hunyuan_qkv_rope_pack=triton,sparse_mla_q8kv8_prefill_fwd=reference`."""
    default, by_op = None, {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        op, separator, backend = item.partition("=")
        if separator:
            by_op[op.strip()] = backend.strip()
        else:
            default = item
    return Demands(default, by_op, VARIABLE) if default or by_op else None


known_ops: set[str] = set()
"""Names of all ops, so that a misspelt one is noticed where it is written."""

OF_THE_ENVIRONMENT = parse(os.environ.get(VARIABLE, ""))


class _Current(threading.local):
    """What this thread demands. In __init__: torch.compile does not guard class-level defaults."""

    def __init__(self) -> None:
        self.demands = OF_THE_ENVIRONMENT


current = _Current()


class use:
    """Demand a backend within a block, of every op or of single ones.

    The innermost block wins, `backend=` in a call wins over every block, and a block wins over
    the environment variable CONTRACTS_BACKEND, which is read when `backends` is imported. None
    gives the choice back to the call. A demanded backend never falls back: where it cannot serve
    a call, the call raises NoBackendError.

    The demand is this thread's: other threads, also those that the block starts, do not see it.
    asyncio tasks of one thread share it, so do not `await` inside the block.

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
        self.before: list[Demands | None] = []

    def __enter__(self) -> None:
        before = current.demands
        self.before.append(before)
        if self.by_op and self.backend is None and before is not None:
            current.demands = Demands(before.default, {**before.by_op, **self.by_op})
        else:
            current.demands = Demands(self.backend, self.by_op)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current.demands = self.before.pop()
