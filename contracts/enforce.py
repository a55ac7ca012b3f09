"""A call in a mode other than `static`, which the generated wrapper handles by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._C import _len_torch_dispatch_stack

from . import explain, modes, tracing
from .contents.watch import watch
from .errors import ContractError
from .flat import Paths
from .model import Declaration
from .tensors import describe
from .traceable import is_traced
from .watched import Watched


class Enforced(Protocol):
    """What enforcing needs of a contract."""

    declaration: Declaration
    mode: str | None
    handle: str
    paths: Paths

    def refuse(self, values: Sequence[Any]) -> None: ...
    def at_run_time(self, values: Sequence[Any]) -> None: ...
    def named(self, values: Sequence[Any]) -> dict[str, Any]: ...
    def measure(self, values: Sequence[Any]) -> tuple[Mapping[str, Any], dict[Any, Any] | None]: ...
    @property
    def passes(self) -> Callable[..., bool]: ...
    @property
    def watched(self) -> Watched: ...


def call_in_mode(
    contract: Enforced,
    function: Callable[..., Any],
    values: Sequence[Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call `function(*args, **kwargs)`; `values` are the same arguments as the checks take them."""
    mode = contract.mode or modes.thread.mode
    if mode is modes.OFF:
        return function(*args, **kwargs)
    if torch.compiler.is_dynamo_compiling() or (_len_torch_dispatch_stack() and is_traced()):
        return _call_in_graph(contract, mode, function, values, args, kwargs)
    judge(contract, values, mode)
    result = function(*args, **kwargs)
    if mode is modes.DEBUG:
        judge_result(contract, values, result)
    return result


def judge(contract: Enforced, values: Sequence[Any], mode: str) -> None:
    """The whole verdict on a call, in a mode: raises ContractError, or returns.

    In `async`, what an earlier call of this thread broke is raised here too.
    """
    if mode == modes.ASYNC and contract.watched:
        watch.raise_found()
        contract.watched.judge(values, *contract.measure(values))
        return
    if not contract.passes(*values):
        contract.refuse(values)
    if mode == modes.DEBUG:
        declaration, arguments = contract.declaration, contract.named(values)
        found = explain.violations_of_contents(declaration, arguments)
        if found:
            raise explain.refusal_of(declaration, arguments, found)


def judge_result(contract: Enforced, values: Sequence[Any], result: Any) -> None:
    """Raise ContractError where a result is not what the return annotation says."""
    declaration = contract.declaration
    found = explain.violations_of_result(declaration, contract.named(values), result)
    if found:
        raise ContractError(declaration.name, found, [f"return  {describe(result)}"])


def _call_in_graph(
    contract: Enforced,
    mode: str,
    function: Callable[..., Any],
    values: Sequence[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The same while a graph is being traced: everything is judged each time the graph runs."""
    tracing.judge(contract.handle, values, contract.paths, mode)
    result = function(*args, **kwargs)
    if mode is modes.DEBUG:
        tracing.judge_result(contract.handle, values, contract.paths, result)
    return result
