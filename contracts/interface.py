"""What `function.contract` offers."""

from __future__ import annotations

import functools
import importlib
import operator
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import torch

from . import describe, enforce, explain, modes, outputs, tracing, wrapping
from .addresses import Addresses
from .compiler import Compiled, compile_passes, compile_sizes
from .errors import ContractError, Violation, raise_any
from .flat import Paths
from .model import Declaration
from .rules.base import Rule
from .traceable import constant_of_trace
from .watched import Watched

P = ParamSpec("P")
R = TypeVar("R")


class Contract:
    """What a function demands of its arguments. Reached as `function.contract`.

    On a method, every call below takes what the bound method takes.
    """

    def __init__(self, declaration: Declaration, mode: str | None = None) -> None:
        self.declaration = declaration
        self.mode = mode
        """The mode that all its calls have; None where the thread decides."""
        self.paths = declaration.paths
        """What a traced graph has to keep of its arguments' attributes."""
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
    def _sizes(self) -> Callable[..., tuple[dict[str, Any], dict[Any, Any] | None] | None]:
        return compile_sizes(self.declaration).function

    def measure(self, values: Sequence[Any]) -> tuple[Mapping[str, Any], dict[Any, Any] | None]:
        """The sizes of the axes of a call given by position, and the notes of its layout where that
        is known: all that sizes decide is as it was. ContractError for a wrong call."""
        measured = self._sizes(*values)
        if measured is None:
            self.refuse(values)
            return explain.sizes(self.declaration, self.named(values)), None
        return measured

    @functools.cached_property
    def watched(self) -> Watched:
        """The rules on contents, for the mode that judges them without waiting."""
        return Watched(self.declaration)

    def __reduce__(self) -> tuple[Any, ...]:
        function = self.declaration.function
        place = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        if _imported(*place) is not self:
            raise pickle.PicklingError(f"the contract of {self.name} cannot be imported by name")
        return _imported, place

    def __deepcopy__(self, memory: dict[int, Any]) -> Contract:
        return self

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
        return dict(self.measure(self._positional(self.bind(*args, **kwargs)))[0])

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
        """The same contract in front of another function that takes the same arguments.

        Raises:
            ContractDefinitionError: it takes others, or has another default for one of them.
        """
        guarded: Callable[P, R] = wrapping.guard(self, function)
        return guarded

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
        return None if self.passes(*values) else self._explained(values)

    def _explained(self, values: Sequence[Any]) -> ContractError | None:
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
            tracing.refuse(self.handle, values, self.paths)
            return
        raise_any(self._explained(values))

    def at_run_time(self, values: Sequence[Any]) -> None:
        """Leave the rules on addresses to the graph that is being traced."""
        places, paths = self._read_at_run_time()
        tracing.judge(self.handle, [values[place] for place in places], paths, modes.STATIC)

    @constant_of_trace
    def _read_at_run_time(self) -> tuple[tuple[int, ...], Paths]:
        return self.addresses.places, self.addresses.paths

    @functools.cached_property
    def addresses(self) -> Addresses:
        """What is left to a graph's run in `static`."""
        return Addresses(self.declaration)

    def judge(self, values: Sequence[Any], mode: str) -> None:
        """The verdict when a graph runs, on what it was handed: raises, or returns. In `static`
        that is what rules on addresses read, in other modes the call."""
        if mode == modes.STATIC:
            raise_any(self.addresses.error(values))
        else:
            enforce.judge(self, values, mode)

    def judge_result(self, values: Sequence[Any], result: Any) -> None:
        """The verdict on a result, given the call that made it: raises, or returns."""
        enforce.judge_result(self, values, result)


def _imported(module: str, name: str) -> Any:
    """The contract of a function that can be imported; None where there is none."""
    try:
        return operator.attrgetter(name)(importlib.import_module(module)).contract
    except (AttributeError, ImportError, ValueError):
        return None
