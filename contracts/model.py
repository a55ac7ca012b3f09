"""A contract as data: a function's signature, the spec of each argument, rules and outputs."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import expressions
from .axes import Computed, Named, Variadic
from .errors import ContractDefinitionError
from .rules.about import About
from .rules.base import Names, Rule, check_fix
from .rules.expression import Expression, When
from .rules.memory import NoOverlap
from .spec import (
    AnySpec,
    ItemsSpec,
    OptionalSpec,
    Scope,
    Spec,
    TensorSpec,
    UnionSpec,
    ValueSpec,
    read_annotation,
    tensor_specs,
)

_VARIADIC_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Argument:
    """One checked parameter. `*args` and `**kwargs` are containers of what they hold."""

    name: str
    spec: Spec
    factory: bool = False
    """The default is a dataclass's marker for a default factory: it counts as absent."""

    @functools.cached_property
    def inner(self) -> Spec:
        """The spec of a value that is not None."""
        return self.spec.inner if isinstance(self.spec, OptionalSpec) else self.spec

    @functools.cached_property
    def optional(self) -> bool:
        return isinstance(self.spec, OptionalSpec)

    @functools.cached_property
    def holds_tensors(self) -> bool:
        return next(tensor_specs(self.spec), None) is not None

    @functools.cached_property
    def has_computed(self) -> bool:
        """Whether the size of any axis in it follows from others."""
        return any(spec.shape.has_computed for spec in tensor_specs(self.spec))

    @functools.cached_property
    def is_tensor(self) -> bool:
        """Whether the value, where there is one, is a single tensor."""
        branches = self.inner.branches if isinstance(self.inner, UnionSpec) else (self.inner,)
        return all(isinstance(branch, TensorSpec) for branch in branches)

    @functools.cached_property
    def is_size(self) -> bool:
        """An int that is always there: an axis of the same name is this number."""
        return isinstance(self.spec, ValueSpec) and self.spec.hint is int


@dataclass(frozen=True, eq=False)
class Declaration:
    """Everything that a contract says, resolved and frozen."""

    name: str
    function: Callable[..., Any]
    signature: inspect.Signature
    receiver: str | None
    """`self` or `cls` of a method: passed on, never checked."""
    arguments: tuple[Argument, ...]
    rules: tuple[Rule, ...]
    notes: tuple[About, ...]
    """Advice on annotation facts."""
    returns: Spec
    outputs: Any
    names: Names
    sizes: frozenset[str]
    """Axes whose size is an int argument of the same name."""

    def argument(self, name: str) -> Argument:
        return next(argument for argument in self.arguments if argument.name == name)

    def note(self, fact: str) -> About | None:
        """The advice on a fact, by its id."""
        return next((note for note in self.notes if fact in note.facts), None)

    @functools.cached_property
    def call_signature(self) -> inspect.Signature:
        """The signature as a caller of the bound method sees it."""
        parameters = [
            parameter
            for parameter in self.signature.parameters.values()
            if parameter.name != self.receiver
        ]
        return self.signature.replace(parameters=parameters)

    @property
    def paths(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """For the receiver and each argument, the attributes that axes read: `{self.dim}`."""
        names = [argument.name for argument in self.arguments]
        found: dict[str, dict[tuple[str, ...], None]] = {name: {} for name in names}
        if self.receiver is not None:
            found = {self.receiver: {}, **found}
        for spec in (*(argument.spec for argument in self.arguments), self.returns):
            for axis in (axis for tensor in tensor_specs(spec) for axis in tensor.shape.axes):
                for node in expressions.walk(axis.expression) if isinstance(axis, Computed) else ():
                    if isinstance(node, expressions.Name) and node.path:
                        found[node.id][node.path] = None
        return tuple(map(tuple, found.values()))

    @functools.cached_property
    def written(self) -> frozenset[str]:
        """The arguments that the function writes to: those that may overlap no other."""
        rules = (rule.rule if isinstance(rule, When) else rule for rule in self.rules)
        return frozenset(
            name for rule in rules if isinstance(rule, NoOverlap) for name in rule.names
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of all axes, in the order in which they are first written."""
        seen: dict[str, None] = {}
        for argument in self.arguments:
            for spec in tensor_specs(argument.spec):
                for axis in spec.shape.axes:
                    if isinstance(axis, Named | Variadic) and axis.name is not None:
                        seen[axis.name] = None
        return tuple(seen)


def stars(parameter: inspect.Parameter) -> str:
    """What stands before the parameter's name in a signature and, but for keywords, in a call."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return "*"
    return "**" if parameter.kind is parameter.VAR_KEYWORD else ""


def declare(
    function: Callable[..., Any],
    rules: tuple[Rule | About | str, ...],
    localns: Mapping[str, Any],
    outputs: Any = None,
    name: str | None = None,
    owner: type | None = None,
) -> Declaration:
    """Read a function's annotations and resolve the rules against them.

    `owner` is the class whose `__init__` the function is: a dataclass takes annotations over from
    its bases, where their names had a meaning of their own.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ContractDefinitionError(f"{function!r} shows no signature: {error}") from None
    hints = _resolve_hints(function, localns, owner)
    receiver = _receiver(function, signature, hints)
    scope = Scope(frozenset(signature.parameters), _visible_integers(function, localns))
    arguments = tuple(
        _read_argument(parameter, hints, scope)
        for parameter in signature.parameters.values()
        if parameter.name != receiver
    )
    returns = (
        read_annotation(hints["return"], scope)
        if "return" in hints and _reads_returns(function)
        else AnySpec()
    )
    sizes = _check_axes(arguments, returns, frozenset(signature.parameters))
    names = _names(arguments, sizes, receiver)
    return Declaration(
        name=name or _qualified_name(function),
        function=function,
        signature=signature,
        receiver=receiver,
        arguments=arguments,
        rules=_resolve_rules([rule for rule in rules if not isinstance(rule, About)], names),
        notes=_checked_notes([rule for rule in rules if isinstance(rule, About)], names),
        returns=returns,
        outputs=outputs,
        names=names,
        sizes=sizes,
    )


def _qualified_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__)


def _receiver(
    function: Callable[..., Any], signature: inspect.Signature, hints: Mapping[str, Any]
) -> str | None:
    """The first parameter, if it is called like a method's and is not annotated as an argument:
    with a type of its own (`self: Self`) it has to stand in the body of a class."""
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.name not in ("self", "cls"):
        return None
    owner = _qualified_name(function).rpartition(".")[0]
    in_a_class = bool(owner) and not owner.endswith("<locals>")
    return first.name if first.name not in hints or in_a_class else None


def _reads_returns(function: Callable[..., Any]) -> bool:
    """A coroutine's or generator's annotation is not that of a value the call returns."""
    function = inspect.unwrap(function)
    if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
        function = type(function).__call__
    return not (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )


def _resolve_hints(
    function: Callable[..., Any], localns: Mapping[str, Any], owner: type | None
) -> dict[str, Any]:
    """Every annotation evaluated, one at a time, so that the culprit can be named."""
    target = inspect.unwrap(function)
    while isinstance(target, functools.partial):
        target = target.func
    if not isinstance(target, types.FunctionType):
        target = getattr(target, "__func__", None) or type(target).__call__
    raw = dict(getattr(target, "__annotations__", {}))
    globalns = getattr(target, "__globals__", {})
    parameters = {item.__name__: item for item in getattr(target, "__type_params__", ())}
    here = globalns, {**localns, **_closure(target), **parameters}
    hints = {}
    for name, annotation in raw.items():
        try:
            globalns, names = _field_scope(owner, name, here) if owner else here
            resolved = typing.get_type_hints(
                types.SimpleNamespace(__annotations__={name: annotation}),
                globalns,
                names,
                include_extras=True,
            )
        except ContractDefinitionError:
            raise
        except Exception as error:
            raise ContractDefinitionError(
                f"the annotation of {name!r}, {annotation!r}, cannot be resolved: "
                f"{type(error).__name__}: {error}"
            ) from error
        hints[name] = resolved[name]
    return hints


def _field_scope(
    owner: type, name: str, here: tuple[dict[str, Any], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Globals and locals of the class body in which a dataclass's field was declared."""
    for base in owner.__mro__:
        if name in vars(base).get("__annotations__", {}):
            globalns = vars(sys.modules[base.__module__])
            return globalns, {**(here[1] if globalns is here[0] else {}), **vars(base)}
    return here


def _closure(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    found = {}
    for name, cell in zip(names, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _visible_integers(function: Callable[..., Any], localns: Mapping[str, Any]) -> dict[str, int]:
    target = inspect.unwrap(function)
    visible = {**getattr(target, "__globals__", {}), **localns, **_closure(target)}
    return {
        name: value
        for name, value in visible.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }


def _read_argument(parameter: inspect.Parameter, hints: dict[str, Any], scope: Scope) -> Argument:
    name = parameter.name
    if name not in hints:
        spec: Spec = AnySpec()
    else:
        try:
            spec = read_annotation(hints[name], scope)
        except ContractDefinitionError as error:
            raise ContractDefinitionError(f"argument {name!r}: {error}") from None
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL and not isinstance(spec, AnySpec):
        spec = ItemsSpec(f"*{spec.text}", tuple, spec)
    if parameter.kind is inspect.Parameter.VAR_KEYWORD and not isinstance(spec, AnySpec):
        spec = ItemsSpec(f"**{spec.text}", dict, spec)
    factory = type(parameter.default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS"
    absent = factory or parameter.default is None
    if absent and not isinstance(spec, OptionalSpec | AnySpec):
        spec = OptionalSpec(spec)
    return Argument(name, spec, factory)


def _check_axes(
    arguments: tuple[Argument, ...], returns: Spec, parameters: frozenset[str]
) -> frozenset[str]:
    """Refuse axes that no call could bind or that mean two things; find those that are ints."""
    by_name = {argument.name: argument for argument in arguments}
    named, variadic = _declared(
        spec for argument in arguments for spec in tensor_specs(argument.spec)
    )
    own, own_variadic = _declared(tensor_specs(returns))
    for axis in sorted(named & variadic):
        raise ContractDefinitionError(f"{axis!r} is one axis in one place and *{axis} in another")
    sizes = set()
    for axis in sorted(named | variadic):
        argument = by_name.get(axis)
        if argument is None and axis not in parameters:
            continue
        if argument is None or not argument.is_size or axis in variadic:
            raise ContractDefinitionError(
                f"{axis!r} is an axis and an argument that is not an int: two meanings of one "
                "name; rename one"
            )
        sizes.add(axis)
    for argument in arguments:
        where = f"argument {argument.name!r}"
        _check_computed(where, argument.spec, named, variadic, parameters)
    _check_computed("the result", returns, named | own, variadic | own_variadic, parameters)
    return frozenset(sizes)


def _declared(specs: Iterator[TensorSpec] | Any) -> tuple[set[str], set[str]]:
    named, variadic = set(), set()
    for spec in specs:
        for axis in spec.shape.axes:
            if isinstance(axis, Named):
                named.add(axis.name)
            elif isinstance(axis, Variadic) and axis.name is not None:
                variadic.add(axis.name)
    return named, variadic


def _check_computed(
    where: str, spec: Spec, named: set[str], variadic: set[str], parameters: frozenset[str]
) -> None:
    for tensor in tensor_specs(spec):
        for axis in tensor.shape.axes:
            if isinstance(axis, Computed):
                names = expressions.value_names(axis.expression)
                for name in sorted(names - named - variadic - parameters):
                    raise ContractDefinitionError(
                        f"{where}: {name!r} in the axis {axis} is bound by no argument's own axis"
                    )
                lengths = expressions.len_names(axis.expression)
                for name in sorted((names & variadic) ^ (lengths - parameters)):
                    raise ContractDefinitionError(
                        f"{where}: in the axis {axis}, len() stands around each variadic name and "
                        f"around nothing else, unlike {name!r}"
                    )
    if isinstance(spec, OptionalSpec):
        spec = spec.inner
    if isinstance(spec, UnionSpec):
        for tensor in tensor_specs(spec):
            if any(isinstance(axis, Variadic) and axis.broadcast for axis in tensor.shape.axes):
                raise ContractDefinitionError(
                    f"{where}: {tensor.text} broadcasts several axes inside a union, which cannot "
                    "be undone when the branch fails"
                )


def _names(arguments: tuple[Argument, ...], sizes: frozenset[str], receiver: str | None) -> Names:
    axes, variadic = _declared(
        spec for argument in arguments for spec in tensor_specs(argument.spec)
    )
    sure = set(sizes)
    for argument in arguments:
        if isinstance(argument.spec, TensorSpec):
            sure |= set().union(*_declared([argument.spec]))
    return Names(
        tensors=tuple(argument.name for argument in arguments if argument.holds_tensors),
        single=frozenset(argument.name for argument in arguments if argument.is_tensor),
        arguments=frozenset(argument.name for argument in arguments)
        | ({receiver} if receiver else set()),
        optional=frozenset(
            argument.name
            for argument in arguments
            if argument.optional or isinstance(argument.spec, AnySpec)
        ),
        flags=frozenset(
            argument.name
            for argument in arguments
            if isinstance(argument.inner, ValueSpec) and argument.inner.hint is bool
        ),
        axes=frozenset(axes),
        unsure=frozenset((axes | variadic) - sure),
        variadic=frozenset(variadic),
    )


def _resolve_rules(rules: Sequence[Rule | str], names: Names) -> tuple[Rule, ...]:
    resolved: dict[str, Rule] = {}
    for item in rules:
        if isinstance(item, str):
            item = Expression(item)
        if not isinstance(item, Rule):
            raise ContractDefinitionError(f"{item!r} is not a rule")
        item = item.resolve(names).identified()
        item.check_fix(names)
        if item.id in resolved:
            raise ContractDefinitionError(f"two rules have the id {item.id!r}")
        resolved[item.id] = item
    return tuple(resolved.values())


def _checked_notes(notes: Sequence[About], names: Names) -> tuple[About, ...]:
    for note in notes:
        if note.fix is not None:
            check_fix(note.fix, names.numbers, f"about {', '.join(note.facts)}")
    return tuple(notes)


def default_device(values: Any) -> torch.device:
    """The device of the first tensor among `values`."""
    return next((x.device for x in values if isinstance(x, torch.Tensor)), torch.device("cpu"))
