"""Backends as data: what each one adds to its op's contract and needs of a device."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts import ContractDefinitionError, Violation, explain
from contracts.expressions import IsNone
from contracts.model import Declaration

from .errors import Reason
from .narrowing import is_transformed
from .target import Need, Target

REFERENCE = "reference"


@dataclass(frozen=True)
class Backend:
    """One way to compute an op.

    `source` is the inner function, or where to import it from ("package.module:function"), the
    first time that a call has nothing else against the backend. It takes `arguments`. `narrowed`
    is the op's declaration with this backend's rules in place of the contract's; `route` is
    their generated form, `lasting` and `recheck` its two halves for a call whose layout is known,
    and `accepts_in_trace` that for a call which is being traced.
    """

    name: str
    source: Callable[..., Any] | str
    arguments: tuple[str, ...]
    narrowed: Declaration
    needs: tuple[Need, ...]
    packages: tuple[str, ...]
    priority: float
    route: Callable[..., int]
    lasting: Callable[..., int]
    recheck: Callable[..., int]
    accepts_in_trace: Callable[..., int]
    loaded: Loaded = field(default_factory=lambda: Loaded(), compare=False)

    @property
    def is_reference(self) -> bool:
        return self.name == REFERENCE

    @property
    def reads_pointers(self) -> bool:
        return any(rule.pointers for rule in self.narrowed.rules)

    @property
    def where(self) -> str:
        """Where the inner function comes from."""
        if isinstance(self.source, str):
            return self.source
        return f"{self.source.__module__}:{self.source.__qualname__}"

    def refusals(
        self, arguments: dict[str, Any], target: Target, demanded: bool
    ) -> Iterator[Reason]:
        """Everything against this backend in a call that the contract accepts.

        Runs nothing, and imports nothing but what a call would import now.
        """
        found = [
            *self.refusals_of_target(target, demanded),
            *(
                Reason(self.name, "rule", self._text(violation), violation.rule)
                for violation in explain.violations(self.narrowed, arguments)
            ),
        ]
        if not self.is_reference and is_transformed():
            text = "a functorch transform or forward-mode AD is active, which it cannot see"
            found.append(Reason(self.name, "transform", text))
        if not found and (failure := self.load()) is not None:
            found.append(Reason(self.name, "import", failure))
        yield from found

    def _text(self, violation: Violation) -> str:
        """A rule "attn_sink is None" is a backend's way to say that it does not know the sink."""
        broken = next(rule for rule in self.narrowed.rules if rule.id == violation.rule)
        match getattr(broken, "node", None):
            case IsNone(name=name, negated=False):
                hint = f"\n  hint: {broken.hint}" if broken.hint else ""
                return f"does not support {name}{hint}"
        return str(violation)

    def refusals_of_target(self, target: Target, demanded: bool) -> Iterator[Reason]:
        """What the device lacks, and what is not installed."""
        for need in self.needs:
            if not need.met_by(target, demanded):
                yield Reason(self.name, "need", f"needs {need}, device is {target}", str(need))
        for package in self.packages:
            if not is_installed(package):
                text = f"needs the package {package}, which is not installed"
                yield Reason(self.name, "need", text, package)

    def load(self) -> str | None:
        """Import the inner function; returns why that fails, if it does."""
        state = self.loaded
        if state.function is None and state.failure is None:
            try:
                state.function = self._import()
            except Exception as error:
                state.failure = f"cannot be imported: {type(error).__name__}: {error}"
                state.cause = error
        return state.failure

    def _import(self) -> Callable[..., Any]:
        if not isinstance(self.source, str):
            return self.source
        module, _, name = self.source.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        check_arguments(function, self.arguments)
        return function


@dataclass
class Loaded:
    """What importing a backend gave. Set once; two threads that race set the same."""

    function: Callable[..., Any] | None = None
    failure: str | None = None
    cause: Exception | None = None


def check_arguments(function: Callable[..., Any], arguments: Sequence[str]) -> None:
    """An inner function has to take what the reference takes, so that nothing is ever dropped."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ContractDefinitionError(
            f"{function.__qualname__} cannot be called like the reference, with "
            f"({', '.join(arguments)}): {error}"
        ) from None


def is_installed(package: str) -> bool:
    """Whether a package could be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
