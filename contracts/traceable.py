"""Marks that Dynamo looks for while it traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def constant_of_trace(function: F) -> F:
    """Let a trace call the function, with what it knows, in place of tracing into it.

    What torch.compiler.assume_constant_result does, which would import Dynamo, and Triton.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
