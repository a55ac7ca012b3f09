"""A function behind its contract: what `@contract` and `contract.guard` give back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from . import enforce, modes
from .compiler import compile_wrapper
from .enforce import Enforced
from .errors import ContractDefinitionError
from .model import Declaration

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
_OFF_WRAPPER = """\
return {function}({call})"""


def decorate(contract: Enforced, function: Any) -> Any:
    """The contract's own function behind it; in `off`, that function itself."""
    if _is_off(contract):
        try:
            function.contract = contract
            return function
        except AttributeError:
            pass  # a bound method, or an object with slots
    return wrap(contract, function)


def guard(contract: Enforced, function: Any) -> Any:
    """Another function behind the contract. It takes what the contract's takes."""
    _check_takes(contract.declaration, function)
    return wrap(contract, function)


def wrap(contract: Enforced, function: Any) -> Any:
    """A wrapper with the contract's signature and the function's name and documentation."""
    templates = {None: _WRAPPER, modes.STATIC: _STATIC_WRAPPER}
    template = _OFF_WRAPPER if _is_off(contract) else templates.get(contract.mode, _MODE_WRAPPER)
    wrapper: Any = compile_wrapper(
        contract.declaration,
        template,
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
    wrapper.contract = contract
    return wrapper


def _is_off(contract: Enforced) -> bool:
    return (contract.mode or modes.DEFAULT) == modes.OFF


def _mark_coroutine(wrapper: Any) -> None:
    """The call is judged at once and the coroutine comes from the function itself."""
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(wrapper)
    else:  # Python 3.11, whose inspect looks at this flag alone; it changes nothing else
        code = wrapper.__code__
        wrapper.__code__ = code.replace(co_flags=code.co_flags | inspect.CO_COROUTINE)


def _check_takes(declaration: Declaration, function: Callable[..., Any]) -> None:
    """ContractDefinitionError where the function cannot be called as the contract's is, or would
    not see a default of its own: the wrapper passes on the contract's."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin says nothing of itself
    name = getattr(function, "__qualname__", repr(function))
    try:
        landed = dict(_landings(declaration, signature))
    except TypeError as error:
        raise ContractDefinitionError(
            f"{name} does not take the arguments of {declaration.name}: {error}"
        ) from None
    for parameter in declaration.signature.parameters.values():
        own = landed.get(parameter.name)
        defaults = [x.default for x in (parameter, own) if x is not None]
        if inspect.Parameter.empty in defaults or len(defaults) < 2:
            continue
        if not _are_same(*defaults):
            raise ContractDefinitionError(
                f"{parameter.name} is {defaults[0]!r} by default in the contract of "
                f"{declaration.name}, and {defaults[1]!r} in {name}: give both the same default"
            )


def _landings(
    declaration: Declaration, signature: inspect.Signature
) -> Iterator[tuple[str, inspect.Parameter]]:
    """Which of a function's parameters each one of the contract's is passed to. TypeError."""
    positional, keyword = [], {}
    for name, parameter in declaration.signature.parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            keyword[name] = name
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            positional.append(name)
    for own, passed in signature.bind(*positional, **keyword).arguments.items():
        if isinstance(passed, str):  # neither *args nor **kwargs
            yield passed, signature.parameters[own]


def _are_same(here: Any, there: Any) -> bool:
    try:
        return here is there or bool(type(here) is type(there) and here == there)
    except Exception:  # what an array makes of ==
        return False
