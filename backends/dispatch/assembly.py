"""How an op is put together: one generated function with the op's signature, and what it carries.

Calling the function is what a user pays for, so it is a plain function: the check, the choice and
the inner call in a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from contracts import Contract, ContractDefinitionError, Rule, modes
from contracts.compiler import compile_wrapper
from contracts.enforce import call_in_mode
from contracts.model import Declaration

from .errors import Reason
from .inner import Inner, check_inner
from .library import Gradient, mark_written
from .narrowing import (
    axis_sources,
    compile_halves,
    compile_route,
    compile_trace_test,
    may_need_gradients,
    narrow,
    refusing_gradients,
)
from .registry import REFERENCE, Backend, check_arguments
from .report import Answer, Report
from .selection import Selection, with_numbers
from .setting import assume_target, demand_on, known_ops, target_of
from .target import Need

_CHECKED = """\
if {thread}.mode is not {static}:
    return {in_mode}({values}, {call})
{check}
"""
_RETURNING = """\
return {unpack}({choose}(backend, {values}, {notes})(INNER))"""

_WRITING = """\
backend = {choose}(backend, {values}, {notes})
given = GIVEN
BUFFERS = {outputs}(OUTPUTS)
backend(INNER)
if given:
    {mark_written}(BUFFERS)
return BUFFERS"""

assembled: dict[str, Assembly] = {}
"""Every op, by the name that its library op has: there can be one of each."""


class Assembly:
    """One op: `function` is what users call, and carries the public methods below."""

    def __init__(
        self,
        function: Any,
        module: str,
        reference: Callable[..., Any],
        buffers: Sequence[str],
        unpack: Callable[[Any], Any] | None,
        pack: Callable[[Any], Any] | None,
        gradient: Gradient | None,
    ) -> None:
        self.contract: Contract = function.contract
        self.gradient = gradient
        # Without a gradient of its own, the library op would cut that of a reference that has one.
        self.opaque = gradient is not None or not may_need_gradients(self.contract.declaration)
        hides = compile_trace_test(self._narrow((), False)) if self.opaque else None
        self.selection = Selection(self.contract, self._through_library, reference, hides)
        self.inner = Inner(self.contract, reference, tuple(buffers), pack, gradient, self.selection)
        check_inner(self.contract, self.inner)
        name = self.contract.name.rpartition(".")[2]
        _make_room(name, self.contract)
        self.library, self.library_op = self.inner.define(name)
        self.function = self._compile(unpack)
        self._dress(function, module)
        self.add(REFERENCE, reference, (), (), (), float("-inf"))
        known_ops.add(self.contract.name)
        assembled[name] = self

    # -- what the function carries

    def explain(self, *args: Any, backend: str | None = None, **kwargs: Any) -> Report:
        """What would serve this call and why nothing else would; runs nothing.

        Takes what the op takes, fake and meta tensors too. A call that breaks the contract has
        `report.error`, the ContractError that the call would raise.
        """
        named = self.contract.bind(*args, **kwargs)
        arguments = with_numbers([named[name] for name in self.selection.names])
        demanded, origin = (backend, "backend=") if backend else demand_on(self.contract.name)
        name = self.function.__name__
        error = self.contract.error(arguments)
        if error is not None:
            return Report(name, "", demanded=demanded, error=error)
        target = target_of(self.selection.device(arguments))
        answers = tuple(
            Answer(
                item.name,
                self.selection.verdict(item, arguments, target, item.name == demanded).reasons,
            )
            for item in self.selection.backends
        )
        choice = next(
            (
                answer.backend
                for answer in answers
                if not answer.reasons and demanded in (None, answer.backend)
            ),
            None,
        )
        origin_of_demand = origin if demanded is not None else None
        return Report(name, str(target), choice, demanded, origin_of_demand, answers)

    def availability(self, device: str | torch.device) -> dict[str, tuple[Reason, ...]]:
        """What speaks against each backend on a device, whatever the call.

        Imports those that nothing speaks against.
        """
        target = target_of(torch.device(device))
        found = {}
        for backend in self.selection.backends:
            reasons = tuple(backend.refusals_of_target(target, True))
            if not reasons and (failure := backend.load()) is not None:
                reasons = (Reason(backend.name, "import", failure),)
            found[backend.name] = reasons
        return found

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
        """Register another way to compute this op; see `Op.backend`."""
        if source is not None:
            self.add(name, source, rules, needs, packages, priority)
            return None

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.add(name, function, rules, needs, packages, priority)
            return function

        return register

    # -- how it is put together

    def _dress(self, function: Any, module: str) -> None:
        """Name, documentation and signature of the contract's function, and the public methods."""
        op: Any = self.function
        op.__name__ = function.__name__
        op.__qualname__ = function.__qualname__
        op.__doc__ = function.__doc__
        op.__module__ = module
        op.__annotations__ = {**function.__annotations__, "backend": "str | None"}
        op.__wrapped__ = function
        op.__signature__ = self._signature()
        op.contract = self.contract
        op.inner = self.library_op
        op.explain = self.explain
        op.availability = self.availability
        op.backend = self.backend
        op.reference = partial(op, backend=REFERENCE)
        op.assume_target = assume_target

    def _signature(self) -> inspect.Signature:
        signature = self.contract.declaration.signature
        choice = inspect.Parameter(
            "backend", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None"
        )
        return signature.replace(parameters=[*signature.parameters.values(), choice])

    def _compile(self, unpack: Callable[[Any], Any] | None) -> Callable[..., Any]:
        """The check, the choice and the inner call, with the op's own signature."""
        declaration = self.contract.declaration
        objects: dict[str, Any] = {"choose": self.selection.choose}
        if self.inner.buffers:
            objects |= {"outputs": declaration.outputs, "mark_written": mark_written}
            sources, _ = axis_sources(declaration)
            taken = inspect.signature(declaration.outputs).parameters
            outputs = ", ".join(f"{name}={sources.get(name, name)}" for name in taken)
            body = _WRITING.replace("OUTPUTS", outputs)
            body = body.replace("BUFFERS", ", ".join(self.inner.buffers))
            body = body.replace(
                "GIVEN", " or ".join(f"{name} is not None" for name in self.inner.buffers)
            )
        elif unpack is not None:
            objects["unpack"] = unpack
            body = _RETURNING
        else:
            body = _RETURNING.replace("{unpack}(", "").removesuffix(")")
        body = body.replace("INNER", ", ".join(self.inner.names))
        entry = replace(declaration, signature=self._signature())
        unchecked = compile_wrapper(entry, body, objects)
        objects |= {
            "refuse": self.contract.refuse,
            "at_run_time": self.contract.at_run_time,
            "in_mode": partial(call_in_mode, self.contract, unchecked),
            "thread": modes.thread,
            "static": modes.STATIC,
        }
        return compile_wrapper(entry, _CHECKED + body, objects)

    def add(
        self,
        name: str,
        source: Callable[..., Any] | str,
        rules: Sequence[Rule | str],
        needs: str | Sequence[str],
        packages: Sequence[str],
        priority: float,
    ) -> None:
        """Register a backend."""
        if name in self.selection.by_name:
            raise ContractDefinitionError(
                f"{self.function.__name__} has a backend {name!r} already"
            )
        is_reference = name == REFERENCE
        if not isinstance(source, str):
            check_arguments(source, self.inner.names)
        narrowed = self._narrow(rules, is_reference)
        lasting, recheck = compile_halves(narrowed, is_reference)
        self.selection.register(
            Backend(
                name=name,
                source=source,
                arguments=self.inner.names,
                narrowed=narrowed,
                needs=tuple(Need(need) for need in ([needs] if isinstance(needs, str) else needs)),
                packages=tuple(packages),
                priority=priority,
                route=compile_route(
                    narrowed,
                    judged=self.contract.declaration.rules,
                    differentiable=self.gradient is not None,
                    is_reference=is_reference,
                    opaque=self.opaque,
                ),
                lasting=lasting,
                recheck=recheck,
                accepts_in_trace=compile_trace_test(narrowed),
            )
        )
        op: Any = self.function
        op.registered = self.selection.backends
        op.backends = tuple(backend.name for backend in self.selection.backends)

    def _narrow(self, rules: Sequence[Rule | str], is_reference: bool) -> Declaration:
        narrowed = narrow(self.contract.declaration, rules)
        if is_reference or self.gradient is not None:
            return narrowed
        return refusing_gradients(narrowed)

    def _through_library(self, name: str, demanded: bool) -> Callable[..., Any]:
        library_op = self.library_op

        def call(*inner: Any) -> Any:
            return library_op(*inner, name, demanded)

        return call


def _make_room(name: str, contract: Contract) -> None:
    """Defining an op again, as a notebook does, replaces it; another op of its name is an error."""
    old = assembled.get(name)
    if old is None:
        return
    here, there = (c.declaration.function for c in (contract, old.contract))
    if (here.__module__, here.__qualname__) != (there.__module__, there.__qualname__):
        raise ContractDefinitionError(f"there is an op {name!r} already, of {there.__module__}")
    del assembled[name]
    old.library._destroy()
