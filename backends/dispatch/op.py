"""`Op`: one contract, one reference that serves all of it, and backends that narrow it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from contracts import Contract, ContractDefinitionError, Rule, modes, no_grad, tracing
from contracts import outputs as language_outputs
from contracts.compiler import compile_sizes, compile_wrapper
from contracts.decorator import Contracted
from contracts.enforce import call_in_mode
from contracts.rules.tensor import NoGrad

from . import library
from .errors import NoBackendError, Reason
from .library import Gradient
from .narrowing import (
    axis_sources,
    compile_route,
    compile_trace_test,
    narrow,
    tensor_arguments,
)
from .registry import REFERENCE, Backend, check_arguments
from .report import Answer, Report
from .selection import Selection
from .setting import assume_target, demand_on, known_ops, target_of
from .target import Need

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

_registry: dict[str, Op[..., Any]] = {}
"""Every op, by the name that its library op has: there can be one of each."""


def registered() -> tuple[Op[..., Any], ...]:
    """Every op that was defined, this package's and others', in the order of definition."""
    return tuple(_registry.values())


def _make_room(name: str, contract: Contract) -> None:
    """Defining an op again, as a notebook does, replaces it; another op of its name is an error."""
    old = _registry.pop(name, None)
    if old is None:
        return
    here, there = (c.declaration.function for c in (contract, old.contract))
    if (here.__module__, here.__qualname__) != (there.__module__, there.__qualname__):
        _registry[name] = old
        raise ContractDefinitionError(f"there is an op {name!r} already, of {there.__module__}")
    old._library._destroy()


_CHECKED = """\
if {thread}.mode is not {static}:
    return {in_mode}({values}, {call})
{check}
"""
_RETURNING = """\
return {unpack}({choose}(backend, {values})(INNER))"""

_WRITING = """\
backend = {choose}(backend, {values})
BUFFERS = {outputs}(OUTPUTS)
backend(INNER)
return BUFFERS"""


class Op(Generic[P, R_co]):
    """An operation: called like its contract's function, served by one of its backends.

    A call is judged by the contract first, whichever backend would serve it; then `backend=`, a
    `backends.use` block or the environment demands a backend, or the one of highest priority among
    those that serve the call is chosen.

    Args:
        function: a function with a contract. Its body is never run.
        reference: the inner function in plain torch, which serves every call that the contract
            accepts, on any device. Its parameters are parameters of `function`; those of
            `function` that it leaves out must have defaults.
        buffers: the parameters that inner functions write their results into. The op allocates
            those that a call leaves out, as the contract's `outputs=` says, and returns them as
            that does; inner functions return nothing.
        unpack: makes the public result of what an inner function returns, if they differ.
        pack: the inverse of `unpack`, for shapes alone.
        gradient: how to differentiate inner functions. Without it only the reference serves calls
            that need a gradient.

    Raises:
        ContractError: a call breaks the contract. Nothing was allocated or launched.
        NoBackendError: a call is right, and the backend that it demands cannot serve it.

    Example:
        >>> import torch, backends
        >>> from contracts import contract
        >>> from jaxtyping import Float32
        >>> @contract("n % 2 == 0")
        ... def halve(x: Float32[torch.Tensor, "n"]) -> Float32[torch.Tensor, "n"]:
        ...     '''Half of x.'''
        >>> def halve_reference(x: torch.Tensor) -> torch.Tensor:
        ...     return x / 2
        >>> halve = backends.Op(halve, reference=halve_reference)
        >>> @halve.backend("shifted", rules=["n >= 4"], priority=1)
        ... def halve_shifted(x: torch.Tensor) -> torch.Tensor:
        ...     return torch.ldexp(x, torch.tensor(-1))
        >>> halve(torch.ones(2))
        tensor([0.5000, 0.5000])
        >>> print(halve.explain(torch.ones(2)))
        halve on cpu: reference
          shifted    no: n >= 4 does not hold; nearest size: 4: n is 2, from x axis 0
          reference  yes: chosen
    """

    def __init__(
        self,
        function: Contracted[P, R_co],
        *,
        reference: Callable[..., Any],
        buffers: Sequence[str] = (),
        unpack: Callable[[Any], R_co] | None = None,
        pack: Callable[[R_co], Any] | None = None,
        gradient: Gradient | None = None,
    ) -> None:
        self.contract: Contract = function.contract
        self.buffers = tuple(buffers)
        self.gradient = gradient
        self._pack = pack
        self._names = tuple(argument.name for argument in self.contract.declaration.arguments)
        self._inner = self._inner_names(reference)
        self._sources, _ = axis_sources(self.contract.declaration)
        self._sizes = compile_sizes(self.contract.declaration).function
        short = self.contract.name.rpartition(".")[2]
        _make_room(short, self.contract)
        self._library, self.inner = library.define(
            short,
            reference,
            self.buffers,
            run=self._run,
            fake=self._fake,
            gradient=gradient,
        )
        # Without a gradient of its own, the library op would cut that of a reference that has one.
        self._opaque = gradient is not None or self._refuses_gradients(())
        self._selection = Selection(
            self.contract,
            self._through_library,
            self._device_position(),
            reference,
            self._opaque,
        )
        self._add(REFERENCE, reference, (), (), (), float("-inf"))
        self._describe(function)
        known_ops.add(self.contract.name)
        _registry[short] = self
        # A call looks `__call__` up on the class: each op gets a class with its own signature.
        self.__class__ = type(
            self.__name__,
            (type(self),),
            {"__call__": self._compile(unpack), "__doc__": self.__doc__, "__slots__": ()},
        )

    # -- what users call

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Any, backend: str | None, **kwargs: Any) -> R_co: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError  # each op's class has its own

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the backends, by falling priority."""
        return tuple(backend.name for backend in self._selection.backends)

    @property
    def registered(self) -> tuple[Backend, ...]:
        """The backends as data: their rules, and what they need of a device."""
        return self._selection.backends

    def availability(self, device: str | torch.device) -> dict[str, tuple[Reason, ...]]:
        """What speaks against each backend on a device, whatever the call.

        Imports those that nothing speaks against.
        """
        target = target_of(torch.device(device))
        found = {}
        for backend in self.registered:
            reasons = tuple(backend.refusals_of_target(target, True))
            if not reasons and (failure := backend.load()) is not None:
                reasons = (Reason(backend.name, "import", failure),)
            found[backend.name] = reasons
        return found

    assume_target = staticmethod(assume_target)
    """`backends.assume_target`, for tools that know ops and not this package."""

    @property
    def reference(self) -> Callable[P, R_co]:
        """The op, served by its reference whatever else could."""
        return partial(self, backend=REFERENCE)

    def explain(self, *args: Any, backend: str | None = None, **kwargs: Any) -> Report:
        """What would serve this call and why nothing else would; runs nothing.

        Takes what the op takes, fake and meta tensors too. A call that breaks the contract has
        `report.error`, the ContractError that the call would raise.
        """
        named = self.contract.bind(*args, **kwargs)
        arguments = [named[name] for name in self._names]
        demanded, origin = (backend, "backend=") if backend else demand_on(self.contract.name)
        error = self.contract.error(arguments)
        if error is not None:
            return Report(self.__name__, "", demanded=demanded, error=error)
        target = target_of(arguments[self._selection.device_position].device)
        answers = tuple(
            Answer(
                item.name,
                self._selection.verdict(item, arguments, target, item.name == demanded).reasons,
            )
            for item in self._selection.backends
        )
        choice = next(
            (
                answer.backend
                for answer in answers
                if not answer.reasons and demanded in (None, answer.backend)
            ),
            None,
        )
        return Report(
            self.__name__,
            str(target),
            choice,
            demanded,
            origin if demanded is not None else None,
            answers,
        )

    @overload
    def backend(
        self,
        name: str,
        source: str,
        /,
        *,
        rules: Sequence[Rule | str] = ...,
        needs: str | Sequence[str] = ...,
        packages: Sequence[str] = ...,
        priority: float = ...,
    ) -> None: ...
    @overload
    def backend(
        self,
        name: str,
        /,
        *,
        rules: Sequence[Rule | str] = ...,
        needs: str | Sequence[str] = ...,
        packages: Sequence[str] = ...,
        priority: float = ...,
    ) -> Callable[[F], F]: ...
    def backend(
        self,
        name: str,
        source: str | None = None,
        /,
        *,
        rules: Sequence[Rule | str] = (),
        needs: str | Sequence[str] = (),
        packages: Sequence[str] = (),
        priority: float = 0,
    ) -> Any:
        """Register another way to compute this op; a decorator of its inner function.

        Args:
            name: what `backend=` calls it.
            source: "package.module:function" instead of a decorated function: imported the first
                time that nothing else speaks against the backend.
            rules: what it demands of a call beyond the contract, in the contract's language:
                `["head_dim % 8 == 0", aligned(16, "kv")]`.
            needs: conditions on the device: `"sm >= 90"`, `"sm >= 80 or interpreter"`.
            packages: packages that have to be installed: `["triton"]`.
            priority: the highest among the backends that serve a call is chosen.

        The inner function takes the arguments of the reference, by position, and trusts them. It
        serves only calls that the contract and these rules accept. An exception out of it is a
        bug, never a refusal.
        """
        if source is not None:
            self._add(name, source, rules, needs, packages, priority)
            return None

        def register(function: F) -> F:
            self._add(name, function, rules, needs, packages, priority)
            return function

        return register

    def __repr__(self) -> str:
        return f"<op {self.__name__}: {', '.join(self.backends)}>"

    def __reduce__(self) -> str:
        return self.__qualname__

    # -- how it is put together

    def _inner_names(self, reference: Callable[..., Any]) -> tuple[str, ...]:
        declaration = self.contract.declaration
        signature = declaration.signature
        if declaration.receiver is not None:
            raise ContractDefinitionError(f"{self.contract.name} is a method; an op is a function")
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ContractDefinitionError(f"an op cannot take {parameter}")
            if parameter.name in ("self", "backend"):
                raise ContractDefinitionError(f"an op's argument cannot be named {parameter.name}")
        inner = tuple(inspect.signature(reference).parameters)
        for name in (*inner, *self.buffers):
            if name not in self._names:
                raise ContractDefinitionError(
                    f"{name!r}, an argument of {reference.__qualname__}, is no argument of "
                    f"{self.contract.name}"
                )
        for name in self._names:
            if name not in inner and signature.parameters[name].default is inspect.Parameter.empty:
                raise ContractDefinitionError(
                    f"{reference.__qualname__} leaves out {name!r}, which has no default"
                )
        if self.buffers and declaration.outputs is None:
            raise ContractDefinitionError(
                f"the contract of {self.contract.name} does not say how to allocate "
                f"{', '.join(self.buffers)}: give it outputs="
            )
        return inner

    def _device_position(self) -> int:
        """Which argument's device is the call's: the first tensor that is always there."""
        declaration = self.contract.declaration
        for name in tensor_arguments(declaration):
            if name not in declaration.names.optional:
                return self._names.index(name)
        raise ContractDefinitionError(
            f"{self.contract.name} has no argument that is always a tensor, so no device"
        )

    def _describe(self, function: Contracted[P, R_co]) -> None:
        signature = self.contract.declaration.signature
        parameters = list(signature.parameters.values())
        choice = inspect.Parameter(
            "backend", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None"
        )
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__doc__ = function.__doc__
        self.__module__ = sys._getframe(2).f_globals["__name__"]
        self.__signature__ = signature.replace(parameters=[*parameters, choice])

    def _compile(self, unpack: Callable[[Any], Any] | None) -> Callable[..., Any]:
        """`__call__`: the check, the choice and the inner call, with the op's own signature."""
        declaration = self.contract.declaration
        receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if any(p.kind is p.POSITIONAL_ONLY for p in self.__signature__.parameters.values()):
            receiver = receiver.replace(kind=inspect.Parameter.POSITIONAL_ONLY)
        signature = self.__signature__.replace(
            parameters=[receiver, *self.__signature__.parameters.values()]
        )
        objects: dict[str, Any] = {"choose": self._selection.choose}
        if self.buffers:
            objects["outputs"] = declaration.outputs
            taken = inspect.signature(declaration.outputs).parameters
            outputs = ", ".join(f"{name}={self._sources.get(name, name)}" for name in taken)
            body = _WRITING.replace("OUTPUTS", outputs)
            body = body.replace("BUFFERS", ", ".join(self.buffers))
        elif unpack is not None:
            objects["unpack"] = unpack
            body = _RETURNING
        else:
            body = _RETURNING.replace("{unpack}(", "").removesuffix(")")
        body = body.replace("INNER", ", ".join(self._inner))
        entry = replace(declaration, signature=signature)
        unchecked = compile_wrapper(entry, body, objects)
        objects |= {
            "refuse": self.contract.refuse,
            "at_run_time": self.contract.at_run_time,
            "in_mode": partial(call_in_mode, self.contract, unchecked),
            "thread": modes.thread,
            "static": modes.STATIC,
        }
        return compile_wrapper(entry, _CHECKED + body, objects)

    def _add(
        self,
        name: str,
        source: Callable[..., Any] | str,
        rules: Sequence[Rule | str],
        needs: str | Sequence[str],
        packages: Sequence[str],
        priority: float,
    ) -> None:
        if name in self.backends:
            raise ContractDefinitionError(f"{self.__name__} has a backend {name!r} already")
        is_reference = name == REFERENCE
        rules = list(rules)
        if not (is_reference or self.gradient is not None or self._refuses_gradients(rules)):
            rules.append(no_grad(hint="only the reference is differentiable"))
        if not isinstance(source, str):
            check_arguments(source, self._inner)
        narrowed = narrow(self.contract.declaration, rules)
        backend = Backend(
            name=name,
            source=source,
            arguments=self._inner,
            narrowed=narrowed,
            needs=tuple(Need(need) for need in ([needs] if isinstance(needs, str) else needs)),
            packages=tuple(packages),
            priority=priority,
            route=compile_route(
                narrowed,
                differentiable=self.gradient is not None,
                is_reference=is_reference,
                opaque=self._opaque,
            ),
            accepts_in_trace=compile_trace_test(narrowed),
        )
        self._selection.register(backend)

    def _refuses_gradients(self, rules: Sequence[Rule | str]) -> bool:
        declared = self.contract.declaration.rules
        return any(isinstance(rule, NoGrad) for rule in (*declared, *rules))

    # -- the library op

    def _through_library(self, name: str, demanded: bool) -> Callable[..., Any]:
        inner_op = self.inner

        def call(*inner: Any) -> Any:
            return inner_op(*inner, name, demanded)

        return call

    def _arguments(self, inner: Sequence[Any]) -> list[Any]:
        """The op's arguments, from those of its inner function."""
        given = dict(zip(self._inner, inner, strict=True))
        parameters = self.contract.declaration.signature.parameters
        return [given.get(name, parameters[name].default) for name in self._names]

    def _run(self, *values: Any) -> Any:
        """The library op on real tensors: rules on pointers act here."""
        *inner, name, demanded = values
        backend = self._selection.by_name.get(name)
        if backend is None or backend.reads_pointers or backend.loaded.function is None:
            arguments = self._arguments(inner)
            target = target_of(arguments[self._selection.device_position].device)
            wanted = name if demanded else None
            backend, _ = self._selection.select(wanted, arguments, target)
        assert backend.loaded.function is not None
        return backend.loaded.function(*inner)

    def _fake(self, *values: Any) -> Any:
        """The library op on fake tensors: results as the contract describes them."""
        *inner, name, demanded = values
        arguments = self._arguments(inner)
        if demanded:
            self._refuse_while_tracing(name, arguments)
        if self.buffers:
            return None
        results = self._empty_outputs(arguments)
        return results if self._pack is None else self._pack(results)

    def _refuse_while_tracing(self, name: str, arguments: Sequence[Any]) -> None:
        """What metadata says against a demanded backend is said when the graph is made."""
        target = target_of(arguments[self._selection.device_position].device)
        try:
            self._selection.select(name, arguments, target)
        except NoBackendError:
            with unset_fake_temporarily():
                known = [tracing.concrete(value) for value in arguments]
                try:
                    self._selection.select(name, known, target)
                except NoBackendError as error:
                    raise tracing.traced(error) from None

    def _empty_outputs(self, arguments: Sequence[Any]) -> Any:
        declaration = self.contract.declaration
        sizes = self._sizes(*arguments)
        assert sizes is not None
        named = dict(zip(self._names, arguments, strict=True))
        return language_outputs.empty(declaration, named, sizes)
