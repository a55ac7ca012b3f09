"""A function under test: its contract, its generated suite, and what no call of it changes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..axes import Computed
from ..expressions import value_names
from ..facts import facts
from ..interface import Contract
from ..model import Declaration
from ..spec import tensor_specs
from . import coverage
from .cases import Suite
from .suite import generate


@dataclass(frozen=True)
class Subject:
    """A function under test, and its contract."""

    function: Any
    given: Mapping[str, Any]

    @functools.cached_property
    def contract(self) -> Contract:
        found = self.function if isinstance(self.function, Contract) else None
        found = found or getattr(self.function, "contract", None)
        if found is None and isinstance(self.function, type):
            found = getattr(self.function.__init__, "contract", None)  # type: ignore[misc]
        if not isinstance(found, Contract):
            raise TypeError(f"{self.function!r} has no contract")
        receiver = found.declaration.receiver
        known = receiver in self.given or hasattr(self.function, "__self__")
        if receiver is not None and not known and reads_receiver(found.declaration):
            raise TypeError(
                f"{found.name} looks at {receiver}: test the method of an object, or give it as "
                f"given={{{receiver!r}: ...}}"
            )
        return found

    @functools.cached_property
    def suite(self) -> Suite:
        return generate(self.contract.declaration, self.fixed)

    @property
    def fixed(self) -> dict[str, Any]:
        """What no call changes: the values given, and the object of a bound method."""
        receiver = self.contract.declaration.receiver
        instance = getattr(self.function, "__self__", None)
        bound = {receiver: instance} if receiver is not None and instance is not None else {}
        return {**bound, **self.given}

    @functools.cached_property
    def guarded(self) -> Any:
        """The contract's own wrapper, in front of nothing."""
        return self.contract.guard(_accepted)

    @property
    def refuses_by_itself(self) -> bool:
        """Whether a broken call can be made of the function as it is."""
        if isinstance(self.function, Contract | type):
            return False
        return self.contract.declaration.receiver is None or hasattr(self.function, "__self__")

    def declare(self) -> None:
        """Tell the session's coverage what there is to see."""
        session = coverage.current.get()
        if session is not None:
            declaration = self.contract.declaration
            session.declare(
                self.contract.name,
                (rule.id for rule in declaration.rules),
                (fact.id for fact in facts(declaration)),
            )


def reads_receiver(declaration: Declaration) -> bool:
    """Whether an axis is an attribute of the object: `{self.dim}`."""
    return any(
        declaration.receiver in value_names(axis.expression)
        for argument in declaration.arguments
        for spec in tensor_specs(argument.spec)
        for axis in spec.shape.axes
        if isinstance(axis, Computed)
    )


def _accepted(*args: Any, **kwargs: Any) -> None:
    """Stands for the body of a function whose calls are only judged."""


def subject(function: Any, given: Mapping[str, Any] | None = None) -> Subject:
    """A function with a contract, or a contract itself, ready to be tested.

    Args:
        given: values for arguments of types that nothing here can make up.
    """
    return Subject(function, dict(given or {}))
