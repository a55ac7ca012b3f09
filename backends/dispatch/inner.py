"""The inner form of an op: what its backends compute, and how a graph sees it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch._subclasses.fake_tensor import unset_fake_temporarily

from contracts import (
    Contract,
    ContractDefinitionError,
    explain,
    modes,
    outputs,
    tensors,
    tracing,
)

from . import library
from .errors import NoBackendError
from .library import Gradient
from .selection import Selection, with_numbers
from .setting import target_of


@dataclass(frozen=True)
class Inner:
    """An op without its door: arguments trusted, buffers allocated, results not yet unpacked.

    `names` are the arguments that backends take, all of them arguments of the op. Backends write
    into `buffers` and return nothing, or return fresh tensors; `pack` makes the shape of these out
    of that of the op's results.
    """

    contract: Contract
    reference: Callable[..., Any]
    buffers: tuple[str, ...]
    pack: Callable[[Any], Any] | None
    gradient: Gradient | None
    selection: Selection

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.reference).parameters)

    def define(self, name: str) -> tuple[Any, Any]:
        """The library that keeps `tensor_backends::name` registered, and the library op."""
        return library.define(
            name,
            self.reference,
            self.buffers,
            run=self.run,
            fake=self.fake,
            gradient=self.gradient,
        )

    def run(self, *values: Any) -> Any:
        """The library op on real tensors: rules on pointers act here."""
        *inner, name, demanded = values
        backend = self.selection.by_name.get(name)
        if backend is None or backend.reads_pointers or backend.loaded.function is None:
            arguments = self._outer(inner)
            target = target_of(self.selection.device(arguments))
            wanted = name if demanded else None
            backend, _ = self.selection.select(wanted, arguments, target)
        assert backend.loaded.function is not None
        result = backend.loaded.function(*inner)
        if self.buffers:
            given = dict(zip(self.names, inner, strict=True))
            library.mark_written(*(given[name] for name in self.buffers))
        elif self.contract.declaration.outputs is None:
            self._check_strides(backend.name, result)
        return result

    def _check_strides(self, name: str, result: Any) -> None:
        """A graph is made with the strides that `fake` says, and reads memory by them."""
        for x in tensors.each_tensor(result):
            if not x.is_contiguous():
                raise RuntimeError(
                    f"{self.contract.name}: {name} returned strides {x.stride()} for the shape "
                    f"{tuple(x.shape)}, and a graph was told that it is contiguous: return it so, "
                    "or describe it by outputs= of the contract"
                )

    def fake(self, *values: Any) -> Any:
        """The library op on fake tensors: results as the contract describes them."""
        *inner, name, demanded = values
        arguments = self._outer(inner)
        if demanded:
            self._refuse_while_tracing(name, arguments)
        if self.buffers:
            return None
        named = dict(zip(self.selection.names, arguments, strict=True))
        if modes.thread.mode is modes.OFF:
            sizes: Mapping[str, Any] = explain.sizes(self.contract.declaration, named)
        else:
            sizes, _ = self.contract.measure(arguments)
        results = outputs.empty(self.contract.declaration, named, sizes)
        return results if self.pack is None else self.pack(results)

    def _outer(self, inner: Sequence[Any]) -> list[Any]:
        """The op's arguments, from those of its inner form."""
        given = dict(zip(self.names, inner, strict=True))
        parameters = self.contract.declaration.signature.parameters
        return [given.get(name, parameters[name].default) for name in self.selection.names]

    def _refuse_while_tracing(self, name: str, arguments: Sequence[Any]) -> None:
        """What metadata says against a demanded backend is said when the graph is made."""
        backend = self.selection.by_name.get(name)
        if backend is not None and backend.accepts_in_trace(*arguments):
            target = target_of(self.selection.device(arguments))
            if not list(backend.refusals_of_target(target, True)):
                return
        known = with_numbers(arguments)
        with unset_fake_temporarily():
            try:
                self.selection.select(name, known, target_of(self.selection.device(known)))
            except NoBackendError as error:
                raise tracing.traced(error) from None


def check_inner(contract: Contract, inner: Inner) -> None:
    """Refuse an op that some call could not be passed on to its inner form."""
    declaration = contract.declaration
    signature = declaration.signature
    if declaration.receiver is not None:
        raise ContractDefinitionError(f"{contract.name} is a method; an op is a function")
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ContractDefinitionError(f"an op cannot take {parameter}")
        if parameter.name == "backend":
            raise ContractDefinitionError("an op's own argument cannot be named backend")
    of = inner.reference.__qualname__
    for name in (*inner.names, *inner.buffers):
        if name not in signature.parameters:
            raise ContractDefinitionError(
                f"{name!r}, an argument of {of}, is no argument of {contract.name}"
            )
    for name, parameter in signature.parameters.items():
        if name not in inner.names and parameter.default is inspect.Parameter.empty:
            raise ContractDefinitionError(f"{of} leaves out {name!r}, which has no default")
    if inner.buffers and declaration.outputs is None:
        raise ContractDefinitionError(
            f"the contract of {contract.name} does not say how to allocate "
            f"{', '.join(inner.buffers)}: give it outputs="
        )
    taken = inspect.signature(declaration.outputs).parameters if inner.buffers else ()
    for name in inner.buffers:
        if name not in taken:
            raise ContractDefinitionError(
                f"outputs= of {contract.name} does not take {name!r}, so that a caller's buffer "
                "would be ignored: take it, and return it where it is not None"
            )
