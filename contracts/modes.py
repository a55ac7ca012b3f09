"""How much a call is checked, for each thread on its own.

- `static`, the default: metadata only. Nothing ever reads a tensor's contents or synchronises.
- `debug`: contents too, and results against the return annotation; synchronises.
- `async`: contents on the device, without waiting; see `contracts.synchronize`.
- `off`: nothing.

`CONTRACTS_MODE` in the environment sets the default, once, when the package is imported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STATIC, DEBUG, ASYNC, OFF = "static", "debug", "async", "off"
MODES = (STATIC, DEBUG, ASYNC, OFF)


def checked(mode: str, source: str) -> str:
    """The mode's own constant, so that modes can be compared by identity."""
    for known in MODES:
        if known == mode:
            return known
    raise ValueError(f"{source}: {mode!r} is not a mode; the modes are {', '.join(MODES)}")


DEFAULT = checked(os.environ.get("CONTRACTS_MODE", STATIC) or STATIC, "CONTRACTS_MODE")


class _Thread(threading.local):
    """The mode of each thread. Set in __init__, which runs once a thread: torch.compile guards
    what the instance holds, and would not notice that a default of the class was overridden."""

    def __init__(self) -> None:
        self.mode = DEFAULT


thread = _Thread()


@contextmanager
def mode(name: str) -> Iterator[None]:
    """Check calls of this thread in the named mode, inside a `with` block.

    The mode belongs to the thread. asyncio tasks of one thread share it: a block that awaits
    inside lends its mode to whatever runs meanwhile. A compiled graph is guarded on the mode, so
    that switching recompiles what it changes and nothing else.

    Raises:
        ValueError: there is no such mode.

    Example:
        >>> import contracts
        >>> with contracts.mode("debug"):
        ...     contracts.current_mode()
        'debug'
    """
    wanted = checked(name, "contracts.mode")
    before = thread.mode
    thread.mode = wanted
    try:
        yield
    finally:
        thread.mode = before


def current_mode() -> str:
    """The mode of this thread."""
    return thread.mode
