"""Choosing a backend for a call: quickly when warm, with every reason when it has to explain."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from contracts import Contract, ContractDefinitionError, tracing
from contracts.tensors import describe, misread
from contracts.traceable import constant_of_trace

from .errors import BackendWarning, NoBackendError, Reason
from .narrowing import DIRECT, LIBRARY, is_transformed, tensor_arguments
from .registry import REFERENCE, Backend
from .setting import Key, demand_on, target_of, thread
from .target import Target

Inner = Callable[..., Any]
is_dynamo_compiling = torch.compiler.is_dynamo_compiling


@dataclass(frozen=True)
class Verdict:
    """What one backend says to one call: eligible without reasons, refusing with them."""

    backend: Backend
    reasons: tuple[Reason, ...]


def with_numbers(arguments: Sequence[Any]) -> list[Any]:
    """The arguments with numbers for the symbolic sizes of fakes: a message can print them."""
    with unset_fake_temporarily():
        return [tracing.concrete(value) for value in arguments]


@constant_of_trace
def transformed_in_trace() -> bool:
    """Whether the code that is being traced stands within a functorch transform."""
    return is_transformed()


NOTED = 16  # tables to a layout: a few devices and demands


class Entry(NamedTuple):
    """A backend that a device can serve, as the hot path walks over them."""

    route: Callable[..., int]
    direct: Inner | None
    library: Inner


class Table:
    """What a device can serve, best first. Notes on layouts are kept by its identity."""

    def __init__(self, entries: Sequence[tuple[Backend, Entry]]) -> None:
        self.backends = [backend for backend, _ in entries]
        self.entries = tuple(entry for _, entry in entries)

    def narrowed(self, arguments: tuple[Any, ...]) -> tuple[Entry, ...]:
        """The entries for calls of this one's layout, with what is left to ask of each call."""
        tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
        if any(x.requires_grad or misread(x) is not None for x in tensors):
            return self.entries  # of these, more has to be asked in every call
        return tuple(
            entry._replace(route=backend.recheck)
            for backend, entry in zip(self.backends, self.entries, strict=True)
            if backend.lasting(*arguments)
        )


Notes = dict[Table, tuple[Entry, ...]]
"""What one layout of tensors was found to be served by."""


class Selection:
    """The backends of one op, and for each device those that it can serve, best first.

    `tables` is filled once a key, and replaced, never changed; registering a backend forgets it.
    Threads that race build the same thing.
    """

    def __init__(
        self,
        contract: Contract,
        library: Callable[[str, bool], Inner],
        reference: Inner,
        hides_reference: Callable[..., int] | None,
    ) -> None:
        self.op = contract.name
        self.names = tuple(argument.name for argument in contract.declaration.arguments)
        self.contract = contract
        self.library = library
        self.device_position = self._device_position()
        self.backends: tuple[Backend, ...] = ()
        self.reference = reference
        self.hides_reference = hides_reference
        """Whether a graph may show a call of the reference as the library op; None for never."""
        self.tables: dict[Key, Table] = {}
        self.by_name: dict[str, Backend] = {}
        self.said: frozenset[Target] = frozenset()
        self.names_for_trace = self._names_for_trace()

    def _device_position(self) -> int:
        """Which argument's device is the call's: the first tensor that is always there."""
        declaration = self.contract.declaration
        for name in tensor_arguments(declaration):
            if name not in declaration.names.optional:
                return self.names.index(name)
        raise ContractDefinitionError(
            f"{self.op} has no argument that is always a tensor, so no device"
        )

    def device(self, arguments: Sequence[Any]) -> torch.device:
        """The device of a call."""
        device: torch.device = arguments[self.device_position].device
        return device

    def register(self, backend: Backend) -> None:
        """Backends by falling priority, the reference last."""
        found = [*self.backends, backend]
        found.sort(key=lambda item: (item.is_reference, -item.priority))
        self.by_name = {**self.by_name, backend.name: backend}
        self.backends = tuple(found)
        self.tables = {}

    # -- the hot path

    def choose(
        self,
        backend: str | None,
        arguments: tuple[Any, ...],
        notes: Notes | None,
    ) -> Inner:
        """The inner function that serves a call which the contract accepts; `notes` belong to its
        layout, where that is known."""
        if is_dynamo_compiling():
            return self.choose_in_trace(backend, arguments)
        device = arguments[self.device_position].device
        setting = thread.setting
        if setting is not None:
            key = setting.key(self.op, device, backend)
        else:
            key = device if backend is None else (device, backend)
        table = self.tables.get(key)
        if table is None:
            return self.choose_slowly(key, backend, arguments)
        entries = table.entries
        if notes is not None:
            known = notes.get(table)
            if known is None:
                if len(notes) >= NOTED:
                    notes.clear()
                known = notes[table] = table.narrowed(arguments)
            entries = known
        for route, direct, library in entries:
            way = route(*arguments)
            if way == DIRECT:
                return direct or self.choose_slowly(key, backend, arguments)
            if way:
                return library
        return self.choose_slowly(key, backend, arguments)

    def choose_in_trace(self, backend: str | None, arguments: tuple[Any, ...]) -> Inner:
        """The choice while torch.compile traces, by metadata; pointer rules act at run time.

        A demanded backend is taken at its word here: the library op refuses the call. Within a
        functorch transform the reference is traced through, as it is run in an eager call.
        """
        if backend is None and thread.setting is not None:
            backend = thread.setting.demand.of(self.op)
        chosen = backend
        if chosen in (None, REFERENCE) and transformed_in_trace():
            return self.reference
        if chosen is None:
            chosen = REFERENCE
            for name in self.names_for_trace(self.device(arguments)):
                if self.by_name[name].accepts_in_trace(*arguments):
                    chosen = name
                    break
        hides = self.hides_reference
        if chosen == REFERENCE and (hides is None or not hides(*arguments)):
            return self.reference
        return self.library(chosen, backend is not None)

    def _names_for_trace(self) -> Callable[[torch.device], tuple[str, ...]]:
        """The backends that a device can serve, best first, as a constant of a trace: reading
        devices and importing modules cannot be traced."""

        @constant_of_trace
        def names(device: torch.device) -> tuple[str, ...]:
            target = target_of(device)
            return tuple(
                candidate.name
                for candidate in self.backends
                if not list(candidate.refusals_of_target(target, False))
                and candidate.load() is None
            )

        return names

    # -- the slow path

    def choose_slowly(self, key: Key, backend: str | None, arguments: tuple[Any, ...]) -> Inner:
        """The first call of its kind, and every call that is refused."""
        target = target_of(self.device(arguments))
        backend = backend if backend is not None else demand_on(self.op)[0]
        chosen, verdicts = self.select(backend, with_numbers(arguments), target)
        if chosen.is_reference and backend is None and target not in self.said:
            self.say(target, verdicts)
        self.remember(key, target, backend)
        way = chosen.route(*arguments) or (DIRECT if chosen.is_reference else LIBRARY)
        if way == DIRECT and chosen.loaded.function is not None:
            return chosen.loaded.function
        return self.library(chosen.name, backend is not None)

    def select(
        self, backend: str | None, arguments: Sequence[Any], target: Target
    ) -> tuple[Backend, list[Verdict]]:
        """The backend for a call, and what every one before it says; NoBackendError."""
        verdicts: list[Verdict] = []
        for verdict in self.judge(backend, arguments, target):
            verdicts.append(verdict)
            if not verdict.reasons:
                return verdict.backend, verdicts
        raise self.no_backend(backend, arguments, target, verdicts)

    def judge(
        self, backend: str | None, arguments: Sequence[Any], target: Target
    ) -> Iterator[Verdict]:
        """What the demanded backend, or each by falling priority, says to a call."""
        for candidate in self.backends:
            if backend is None or candidate.name == backend:
                yield self.verdict(candidate, arguments, target, backend is not None)

    def verdict(
        self, backend: Backend, arguments: Sequence[Any], target: Target, demanded: bool
    ) -> Verdict:
        named = dict(zip(self.names, arguments, strict=True))
        return Verdict(backend, tuple(backend.refusals(named, target, demanded)))

    def no_backend(
        self,
        backend: str | None,
        arguments: Sequence[Any],
        target: Target,
        verdicts: Sequence[Verdict],
    ) -> NoBackendError:
        """The error for a call that nothing serves, or not what was demanded."""
        others = list(self.judge(None, arguments, target)) if backend is not None else []
        others = [verdict for verdict in others if verdict.backend.name != backend]
        reasons = [reason for verdict in (*verdicts, *others) for reason in verdict.reasons]
        if backend is not None and backend not in self.by_name:
            has = ", ".join(item.name for item in self.backends)
            text = f"this op has no such backend; it has {has}"
            reasons.insert(0, Reason(backend, "name", text))
        eligible = [verdict.backend.name for verdict in others if not verdict.reasons]
        width = max(map(len, self.names))
        lines = [
            f"{name:<{width}}  {describe(value)}"
            for name, value in zip(self.names, arguments, strict=True)
        ]
        error = NoBackendError(self.op, backend, reasons, eligible, lines)
        error.__cause__ = next(
            (v.backend.loaded.cause for v in verdicts if v.backend.loaded.cause is not None), None
        )
        return error

    def remember(self, key: Key, target: Target, backend: str | None) -> None:
        """Let the hot path find what this target can serve, now that something was loaded.

        Where falling back deserves a warning, the reference is left out until that was said.
        """
        silent = backend is None and target.falls_back_loudly and target not in self.said
        entries = [
            (
                candidate,
                Entry(
                    candidate.route,
                    candidate.loaded.function,
                    self.library(candidate.name, backend is not None),
                ),
            )
            for candidate in self.backends
            if (backend is None or candidate.name == backend)
            and candidate.loaded.failure is None
            and not (silent and candidate.is_reference)
            and not list(candidate.refusals_of_target(target, backend is not None))
        ]
        self.tables = {**self.tables, key: Table(entries)}

    def say(self, target: Target, verdicts: Sequence[Verdict]) -> None:
        """Warn, once a device, that nothing faster than the reference serves this call."""
        self.said |= {target}
        reasons = [reason for verdict in verdicts for reason in verdict.reasons]
        if not target.falls_back_loudly or not reasons:
            return
        why = "; ".join(f"{reason.backend}: {reason.text}" for reason in reasons)
        warnings.warn(
            f"{self.op} on {target} is served by its reference, which is right and slow ({why}). "
            "Said once.",
            BackendWarning,
            stacklevel=5,  # past say, choose_slowly, choose and the op: its caller
        )
