"""`@contract`: a declaration in front of a function, and the object that speaks for it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import torch

from . import describe, enforce, explain, modes, outputs, tracing
from .compiler import Compiled, compile_passes, compile_sizes, compile_wrapper
from .errors import ContractDefinitionError, ContractError, Violation
from .facts import check_notes
from .model import Declaration, declare
from .rules.about import About
from .rules.base import Rule
from .watched import Watched, check_contents

C = TypeVar("C")
M = TypeVar("M", bound=torch.nn.Module)
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

_WRAPPER = """\
if {thread}.mode is not {static}:
    return {in_mode}({values}, {call})
{check}
return {function}({call})"""
_STATIC_WRAPPER = """\
{check}
return {function}({call})"""
_MODE_WRAPPER = """\
return {in_mode}({values}, {call})"""


class Contract:
    """What a function demands of its arguments. Reached as `function.contract`.

    On a method, every call below takes what the bound method takes.
    """

    def __init__(self, declaration: Declaration, mode: str | None = None) -> None:
        self.declaration = declaration
        self.mode = mode
        """The mode that all its calls have; None where the thread decides."""
        self.handle = tracing.handle_of(
            self, f"{getattr(declaration.function, '__module__', '')}:{declaration.name}"
        )
        """The name by which a traced graph means this contract."""

    @functools.cached_property
    def _passes(self) -> Compiled:
        return compile_passes(self.declaration)

    @property
    def passes(self) -> Callable[..., bool]:
        """The generated check: every argument by position, defaults included. What it refuses,
        `violations` still has to confirm."""
        return self._passes.function

    @functools.cached_property
    def _sizes(self) -> Callable[..., dict[str, Any] | None]:
        return compile_sizes(self.declaration).function

    def sizes(self, values: Sequence[Any]) -> Mapping[str, Any]:
        """The sizes of the axes of a call given by position; ContractError for a wrong one."""
        sizes = self._sizes(*values)
        if sizes is None:
            self.refuse(values)
            sizes = explain.sizes(self.declaration, self.named(values))
        return sizes

    @functools.cached_property
    def watched(self) -> Watched:
        """The rules on contents, for the mode that judges them without waiting."""
        return Watched(self.declaration)

    def __repr__(self) -> str:
        lines = [f"Contract of {self.name}"]
        lines += [
            f"  {argument.name}: {argument.spec.text}" for argument in self.declaration.arguments
        ]
        lines += [f"  rule {rule.id}" for rule in self.rules]
        return "\n".join(lines)

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules beyond the annotations, with their ids."""
        return self.declaration.rules

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of all axes, in the order in which they are first written."""
        return self.declaration.axes

    @property
    def source(self) -> str:
        """The generated check."""
        return self._passes.source

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The call's arguments by name, defaults filled in; TypeError as Python gives it."""
        bound = self.declaration.call_signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self._by_name([bound.arguments.get(a.name) for a in self.declaration.arguments])

    def _by_name(self, values: Sequence[Any]) -> dict[str, Any]:
        arguments = {}
        for argument, value in zip(self.declaration.arguments, values, strict=True):
            parameter = self.declaration.signature.parameters[argument.name]
            absent = argument.factory and value is parameter.default
            arguments[argument.name] = None if absent else value
        return arguments

    def _positional(self, arguments: Mapping[str, Any]) -> list[Any]:
        values = [arguments[argument.name] for argument in self.declaration.arguments]
        return [None, *values] if self.declaration.receiver else values

    def check(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The sizes of the axes of a right call; ContractError for a wrong one."""
        return dict(self.sizes(self._positional(self.bind(*args, **kwargs))))

    def violations(self, *args: Any, **kwargs: Any) -> tuple[Violation, ...]:
        """Every broken rule; empty for a right call. Raises only what binding raises."""
        return explain.violations(self.declaration, self.bind(*args, **kwargs))

    def accepts(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the call obeys the contract."""
        arguments = self.bind(*args, **kwargs)
        return self.passes(*self._positional(arguments)) or not explain.violations(
            self.declaration, arguments
        )

    def check_axes(self, **sizes: Any) -> dict[str, Any]:
        """Judge sizes alone, without tensors: a check at start-up, from a configuration.

        Takes axes and scalar arguments by name. Rules that need a name which is not given are
        left for the call. Returns the sizes, raises ContractError.
        """
        known = set(self.axes) | set(self.declaration.names.arguments)
        for name in sizes:
            if name not in known:
                raise TypeError(f"{self.name} has no axis {name!r}; it has {', '.join(self.axes)}")
        found = explain.violations_of_sizes(self.declaration, sizes)
        if found:
            lines = [f"{name} = {size}" for name, size in sizes.items()]
            raise explain.refusal(self.declaration, found, lines)
        return dict(sizes)

    def guard(self, function: Callable[P, R]) -> Callable[P, R]:
        """The same contract in front of another function that takes the same arguments."""
        return _wrap(self, function)

    def empty_outputs(self, *args: Any, **kwargs: Any) -> Any:
        """Uninitialised results of a right call, as the return annotation describes them."""
        sizes = self.check(*args, **kwargs)
        return outputs.empty(self.declaration, self.bind(*args, **kwargs), sizes)

    def example(self, **sizes: int) -> dict[str, Any]:
        """A small legal call, by argument name; `sizes` fixes axes and scalar arguments."""
        from .testing.solver import example  # only tests and documentation need it

        return example(self.declaration, sizes)

    def describe(self) -> str:
        """The contract as Markdown: arguments, and rules with their ids and hints."""
        return describe.describe(self.declaration)

    def error(self, values: Sequence[Any]) -> ContractError | None:
        """The verdict on a call given by position, as the generated checks take it."""
        if self.passes(*values):
            return None
        return tracing.untraced(explain.error)(self.declaration, self.named(values))

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """Arguments by position, a method's receiver included, as arguments by name."""
        receiver = self.declaration.receiver
        if receiver is None:
            return self._by_name(values)
        return {receiver: values[0], **self._by_name(values[1:])}

    def refuse(self, values: Sequence[Any]) -> None:
        """Raise the error for a call that the generated check refused, if it is one."""
        if torch.compiler.is_dynamo_compiling():
            tracing.refuse(self.handle, values)
            return
        error = self.error(values)
        if error is not None:
            raise error from None

    def at_run_time(self, values: Sequence[Any]) -> None:
        """Leave the rules on addresses to the graph that is being traced."""
        tracing.judge(self.handle, values, modes.STATIC)

    def judge(self, values: Sequence[Any], mode: str) -> None:
        """The whole verdict on a call given by position, in a mode: raises, or returns."""
        enforce.judge(self, values, mode)

    def judge_result(self, values: Sequence[Any], result: Any) -> None:
        """The verdict on a result, given the call that made it: raises, or returns."""
        enforce.judge_result(self, values, result)


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
        return _decorate(rules[0], (), _caller_names(), outputs, name, mode)
    for item in rules:
        if not isinstance(item, Rule | About | str):
            raise ContractDefinitionError(f"{item!r} is neither a rule nor a callable")

    def decorate(function: Any) -> Any:
        decorated = _decorate(function, rules, _caller_names(), outputs, name, mode)
        if document:
            _document(decorated)
        return decorated

    return decorate


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


def _decorate(
    function: Any,
    rules: tuple[Rule | About | str, ...],
    localns: Mapping[str, Any],
    outputs: Callable[..., Any] | None,
    name: str | None,
    mode: str | None,
) -> Any:
    if isinstance(function, staticmethod | classmethod):
        inner = _decorate(function.__func__, rules, localns, outputs, name, mode)
        return type(function)(inner)
    if isinstance(function, type):
        return _decorate_class(function, rules, localns, outputs, name, mode)
    if not callable(function):
        raise ContractDefinitionError(f"{function!r} is neither a rule nor a callable")
    return _enforce(declare(function, rules, localns, outputs, name), function, mode)


def _decorate_class(
    cls: type[C],
    rules: tuple[Rule | About | str, ...],
    localns: Mapping[str, Any],
    outputs: Callable[..., Any] | None,
    name: str | None,
    mode: str | None,
) -> type[C]:
    init = vars(cls).get("__init__")
    if init is None:
        raise ContractDefinitionError(
            f"{cls.__qualname__} has no __init__ of its own; put @contract above @dataclass, or on "
            "the class that defines __init__"
        )
    declaration = declare(init, rules, localns, outputs, name or cls.__qualname__, owner=cls)
    cls.__init__ = _enforce(declaration, init, mode)  # type: ignore[method-assign]
    return cls


def _enforce(declaration: Declaration, function: Any, mode: str | None) -> Any:
    check_notes(declaration)
    check_contents(declaration)
    return _wrap(Contract(declaration, mode), function)


def _wrap(contract: Contract, function: Any) -> Any:
    declaration = contract.declaration
    mode = contract.mode
    if mode == modes.OFF or (mode is None and modes.DEFAULT == modes.OFF):
        function.contract = contract
        return function
    templates = {None: _WRAPPER, modes.STATIC: _STATIC_WRAPPER}
    wrapper = compile_wrapper(
        declaration,
        templates.get(mode, _MODE_WRAPPER),
        {
            "function": function,
            "refuse": contract.refuse,
            "at_run_time": contract.at_run_time,
            "in_mode": functools.partial(enforce.call_in_mode, contract, function),
            "thread": modes.thread,
            "static": modes.STATIC,
        },
    )
    functools.update_wrapper(wrapper, function)
    if inspect.iscoroutinefunction(function):
        _mark_coroutine(wrapper)
    wrapper.contract = contract  # type: ignore[attr-defined]
    return wrapper


def _mark_coroutine(wrapper: Any) -> None:
    """The call is judged at once and the coroutine comes from the function itself."""
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(wrapper)
    else:  # Python 3.11, whose inspect looks at this flag alone; it changes nothing else
        code = wrapper.__code__
        wrapper.__code__ = code.replace(co_flags=code.co_flags | inspect.CO_COROUTINE)
