"""`@contract`: a declaration in front of a function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import torch

from . import describe, modes
from .errors import ContractDefinitionError
from .facts import check_notes
from .interface import Contract
from .model import Declaration, declare
from .rules.about import About
from .rules.base import Rule
from .watched import check_contents
from .wrapping import decorate

C = TypeVar("C")
M = TypeVar("M", bound=torch.nn.Module)
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")


class Contracted(Generic[P, R_co]):
    """How type checkers see a function with a contract: its own type, and `.contract`."""

    contract: Contract
    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Contracted[P, R_co]: ...
    @overload
    def __get__(
        self: Contracted[Concatenate[S, Q], R_co], instance: S, owner: type | None = None
    ) -> Contracted[Q, R_co]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any: ...


class _Decorator(Protocol):
    @overload
    def __call__(self, function: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]
    @overload  # what overrides Module.forward, and what classmethod takes, has to be a function
    def __call__(
        self, function: Callable[Concatenate[M, P], R], /
    ) -> Callable[Concatenate[M, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[type[C], P], R], /
    ) -> Callable[Concatenate[type[C], P], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Contracted[P, R]: ...
    def __call__(self, function: Any, /) -> Any: ...


@overload
def contract(function: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]
@overload
def contract(
    *rules: Rule | About | str,
    outputs: Callable[..., Any] | None = None,
    name: str | None = None,
    mode: str | None = None,
    document: bool = False,
) -> _Decorator: ...
@overload
def contract(function: Callable[P, R], /) -> Contracted[P, R]: ...
def contract(
    *rules: Any,
    outputs: Callable[..., Any] | None = None,
    name: str | None = None,
    mode: str | None = None,
    document: bool = False,
) -> Any:
    """Check every call of a function against its annotations and these rules.

    Works on functions, methods, static and class methods, coroutine functions, generators, classes
    (their `__init__`) and any other callable with a signature; with parentheses or without.

    Args:
        rules: expressions (`"head_dim % 2 == 0"`) and rule objects (`same_device()`).
        outputs: a function of arguments and axes, by name, that allocates what the return
            annotation cannot say: views of one buffer, a dtype that follows an input.
        name: what errors call the function; by default its qualified name.
        mode: the mode of every call, whatever the thread's: see `contracts.mode`.
        document: append `contract.describe()` to the function's docstring.

    Raises:
        ContractDefinitionError: the contract cannot be honoured. Calls raise ContractError.

    Example:
        >>> import torch
        >>> from jaxtyping import Float32
        >>> @contract("head_dim % 2 == 0")
        ... def rotate(x: Float32[torch.Tensor, "seq_len head_dim"]):
        ...     return x
        >>> rotate.contract.check(torch.zeros(5, 8))
        {'seq_len': 5, 'head_dim': 8}
    """
    if mode is not None:
        mode = modes.checked(mode, "contract")
    bare = len(rules) == 1 and not isinstance(rules[0], Rule | About | str)
    if bare and _is_decoratable(rules[0]):
        return _Decoration((), outputs, name, mode).apply(rules[0], _caller_names())
    for item in rules:
        if not isinstance(item, Rule | About | str):
            raise ContractDefinitionError(f"{item!r} is neither a rule nor a callable")
    decoration = _Decoration(rules, outputs, name, mode)

    def decorate(function: Any) -> Any:
        decorated = decoration.apply(function, _caller_names())
        if document:
            _document(decorated)
        return decorated

    return decorate


@dataclass(frozen=True)
class _Decoration:
    """What `@contract(...)` was given, ready for a function."""

    rules: tuple[Rule | About | str, ...]
    outputs: Callable[..., Any] | None
    name: str | None
    mode: str | None

    def apply(self, function: Any, localns: Mapping[str, Any]) -> Any:
        """The function, method or class behind its contract."""
        if isinstance(function, staticmethod | classmethod):
            return type(function)(self.apply(function.__func__, localns))
        if isinstance(function, type):
            return self.apply_to_class(function, localns)
        if not callable(function):
            raise ContractDefinitionError(f"{function!r} is neither a rule nor a callable")
        return self.enforce(declare(function, self.rules, localns, self.outputs, self.name))

    def apply_to_class(self, cls: type[C], localns: Mapping[str, Any]) -> type[C]:
        init = vars(cls).get("__init__")
        if init is None:
            raise ContractDefinitionError(
                f"{cls.__qualname__} has no __init__ of its own; put @contract above @dataclass, "
                "or on the class that defines __init__"
            )
        name = self.name or cls.__qualname__
        declaration = declare(init, self.rules, localns, self.outputs, name, owner=cls)
        cls.__init__ = self.enforce(declaration)  # type: ignore[method-assign]
        return cls

    def enforce(self, declaration: Declaration) -> Any:
        check_notes(declaration)
        check_contents(declaration)
        return decorate(Contract(declaration, self.mode), declaration.function)


def _document(decorated: Any) -> None:
    """Put the contract's description at the end of the docstring."""
    function = getattr(decorated, "__func__", decorated)
    owner: Any = vars(function)["__init__"] if isinstance(function, type) else function
    function.__doc__ = describe.appended(function.__doc__, owner.contract.declaration)


def _is_decoratable(value: Any) -> bool:
    return callable(value) or isinstance(value, staticmethod | classmethod)


def _caller_names() -> dict[str, Any]:
    """The local names that a string annotation may mean, the nearest scope first to win."""
    caller = sys._getframe(2)
    module = caller.f_globals
    frame: FrameType | None = caller
    scopes = []
    while frame is not None and frame.f_globals is module and frame.f_locals is not module:
        scopes.append(frame.f_locals)
        frame = frame.f_back
    return {name: value for scope in reversed(scopes) for name, value in scope.items()}
