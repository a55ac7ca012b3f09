"""How much a call is checked, for each thread on its own.

- `static`, the default: metadata only. Nothing ever reads a tensor's contents or synchronises.
- `debug`: contents too, and results against the return annotation; synchronises.
- `async`: contents on the device, without waiting; see `contracts.synchronize`.
- `off`: nothing.

`CONTRACTS_MODE` in the environment sets the default, once, when the package is imported.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
        self.blocks: tuple[str, ...] = ()
        """The modes of the blocks that are open, the innermost last."""


thread = _Thread()

P = ParamSpec("P")
R = TypeVar("R")


class mode:
    """Check calls of this thread in the named mode, inside a `with` block or a function.

    The mode belongs to the thread. asyncio tasks of one thread share it: a block that awaits
    inside lends its mode to whatever runs meanwhile. Blocks may end in any order: the last one
    that is still open decides. A compiled graph is guarded on the mode, so that switching
    recompiles what it changes and nothing else.

    Raises:
        ValueError: there is no such mode.
        TypeError: it decorates a coroutine function or generator, whose body runs after the call.

    Example:
        >>> import contracts
        >>> with contracts.mode("debug"):
        ...     contracts.current_mode()
        'debug'
    """

    def __init__(self, name: str) -> None:
        self.name = checked(name, "contracts.mode")

    def __enter__(self) -> None:
        thread.blocks = (*thread.blocks, self.name)
        thread.mode = self.name

    def __exit__(self, *_: object) -> None:
        blocks = thread.blocks
        for place in range(len(blocks) - 1, -1, -1):
            if blocks[place] == self.name:
                thread.blocks = blocks = blocks[:place] + blocks[place + 1 :]
                break
        thread.mode = blocks[-1] if blocks else DEFAULT

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        runs_later = (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
        if any(test(function) for test in runs_later):
            raise TypeError(
                f"contracts.mode({self.name!r}) decorates {function.__qualname__}, whose body runs "
                "after the call: use `with contracts.mode(...)` inside it"
            )

        @functools.wraps(function)
        def in_mode(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return in_mode


def current_mode() -> str:
    """The mode of this thread."""
    return thread.mode
