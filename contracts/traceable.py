"""Tracing: marks that Dynamo looks for, and whether something else than Dynamo traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch._ops import _get_dispatch_mode_pre_dispatch

F = TypeVar("F", bound=Callable[..., Any])


def constant_of_trace(function: F) -> F:
    """Let a trace call the function, with what it knows, in place of tracing into it.

    What torch.compiler.assume_constant_result does, which would import Dynamo, and Triton.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_traced() -> bool:
    """Whether a graph is being traced without Dynamo: by torch.export, make_fx or AOTAutograd.

    All of them work in dispatch modes: who asks often, asks first whether there are any.
    """
    proxy = _TorchDispatchModeKey.PROXY
    return (
        torch.compiler.is_exporting()
        or _get_dispatch_mode(proxy) is not None
        or _get_dispatch_mode_pre_dispatch(proxy) is not None
        or _get_dispatch_mode(_TorchDispatchModeKey.FUNCTIONAL) is not None
    )
