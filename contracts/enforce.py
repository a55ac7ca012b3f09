"""A call in a mode other than `static`, which the generated wrapper handles by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from . import explain, modes
from .errors import ContractError
from .model import Declaration


class Enforced(Protocol):
    """What enforcing needs of a contract."""

    declaration: Declaration
    mode: str | None

    def refuse(self, values: Sequence[Any]) -> None: ...
    def named(self, values: Sequence[Any]) -> dict[str, Any]: ...
    @property
    def passes(self) -> Callable[..., bool]: ...


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
    if not contract.passes(*values):
        contract.refuse(values)
    if mode is modes.DEBUG:
        return _debug(contract, function, values, args, kwargs)
    return function(*args, **kwargs)


def _debug(
    contract: Enforced,
    function: Callable[..., Any],
    values: Sequence[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Contents before the call, the result after it."""
    declaration = contract.declaration
    arguments = contract.named(values)
    result = function(*args, **kwargs)
    found = explain.violations_of_result(declaration, arguments, result)
    if found:
        raise ContractError(declaration.name, found, [f"return  {explain.describe(result)}"])
    return result
