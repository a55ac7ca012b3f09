"""One annotation -> one spec. The only reader of jaxtyping and beartype.

jaxtyping's annotations are read as syntax, once, at decoration: `dtypes`, `dim_str` and
`array_type` mean the same in every release, and its `isinstance` is never called.
"""

from __future__ import annotations

import collections.abc as abc
import functools
import operator
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass
from typing import Any

import torch

from .axes import ANY_SHAPE, Shape, parse_shape
from .errors import ContractDefinitionError
from .tensors import dtype_name
from .traceable import constant_of_trace


@dataclass(frozen=True, slots=True)
class AnySpec:
    """No annotation: every value passes."""

    text: str = "Any"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of one of `dtypes` (None: of any) whose shape matches `shape`."""

    text: str
    shape: Shape
    dtypes: tuple[torch.dtype, ...] | None = None
    array_type: type[torch.Tensor] = torch.Tensor


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """Anything else, judged by `isinstance` with `types` where that is the whole meaning of the
    annotation, and by beartype otherwise."""

    text: str
    hint: Any
    types: tuple[type, ...] | None = None

    @property
    def choices(self) -> list[tuple[tuple[type, ...], list[Any]]]:
        """The values of a Literal by the types that they may have, where a trace can compare them
        one by one: beartype, which judges the rest, sees no value that is dynamic."""
        if typing.get_origin(self.hint) is not typing.Literal:
            return []
        values = typing.get_args(self.hint)
        kinds = {type(value) for value in values}
        if not kinds <= {int, bool, str}:
            return []
        numbers = int if int in kinds else bool  # 1 is among True and 2, and not among True alone
        groups = (
            (_SIMPLE[numbers], [numbers(value) for value in values if isinstance(value, int)]),
            (_SIMPLE[str], [value for value in values if isinstance(value, str)]),
        )
        return [group for group in groups if group[1]]


@dataclass(frozen=True, slots=True)
class OptionalSpec:
    inner: Spec

    @property
    def text(self) -> str:
        return f"{self.inner.text} | None"


@dataclass(frozen=True, slots=True)
class UnionSpec:
    """The first branch that matches binds its axes; a branch that fails binds nothing."""

    branches: tuple[Spec, ...]

    @property
    def text(self) -> str:
        return " | ".join(branch.text for branch in self.branches)


@dataclass(frozen=True, slots=True)
class ItemsSpec:
    """A container whose every item (for mappings: every value) matches `item`."""

    text: str
    container: type
    item: Spec
    key: Spec = AnySpec()


@dataclass(frozen=True, slots=True)
class TupleSpec:
    """A tuple of fixed length."""

    text: str
    items: tuple[Spec, ...]


Spec = AnySpec | TensorSpec | ValueSpec | OptionalSpec | UnionSpec | ItemsSpec | TupleSpec


@dataclass(frozen=True, slots=True)
class Scope:
    """What an annotation may refer to: the function's arguments, and integers it can see."""

    arguments: frozenset[str]
    constants: Mapping[str, int]


# int admits SymInt, which is what an int becomes while a graph is being traced.
_SIMPLE: dict[Any, tuple[type, ...]] = {
    int: (int, torch.SymInt),
    float: (float, torch.SymFloat),
    bool: (bool, torch.SymBool),
    str: (str,),
    type(None): (type(None),),
}
_CONTAINERS: dict[Any, type] = {
    list: list,
    tuple: tuple,
    dict: dict,
    abc.Sequence: abc.Sequence,
    abc.MutableSequence: abc.MutableSequence,
    abc.Mapping: abc.Mapping,
    abc.MutableMapping: abc.MutableMapping,
}
_TRANSPARENT = (typing.Annotated, typing.Final, typing.ClassVar)
_UNIONS = (typing.Union, types.UnionType)


def read_annotation(annotation: Any, scope: Scope) -> Spec:
    """The spec of an evaluated annotation; ContractDefinitionError where it cannot be honoured."""
    annotation = _strip(annotation)
    if annotation is Any or annotation is object:
        return AnySpec()
    if annotation is None:
        annotation = type(None)
    if _is_jaxtyping(annotation):
        return _read_jaxtyping(annotation, scope)
    if isinstance(annotation, type) and issubclass(annotation, torch.Tensor):
        return TensorSpec(annotation.__name__, ANY_SHAPE, None, annotation)
    if typing.is_typeddict(annotation) and _mentions_tensors(annotation):
        raise ContractDefinitionError(
            f"{annotation.__qualname__}: tensors inside a TypedDict cannot be checked key by key; "
            "make them arguments, or use dict[str, ...]"
        )
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:
        return _read_union(args, scope)
    if any(_mentions_tensors(arg) for arg in args) or _has_checkable_items(origin, args):
        return _read_container(annotation, origin, args, scope)
    return _read_value(annotation)


def _has_checkable_items(origin: Any, args: tuple[Any, ...]) -> bool:
    """Whether items are judged here: beartype looks at one item, chosen at random."""
    return origin in _CONTAINERS and any(
        arg is not Ellipsis and _strip(arg) not in (Any, object) for arg in args
    )


def _strip(annotation: Any) -> Any:
    """Through aliases and wrappers that do not change which values are meant."""
    while True:
        if typing.get_origin(annotation) in _TRANSPARENT:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, InitVar):
            annotation = annotation.type
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif isinstance(annotation, typing.TypeVar):
            if annotation.__constraints__:
                annotation = functools.reduce(operator.or_, annotation.__constraints__)
            elif annotation.__bound__ is not None:
                annotation = annotation.__bound__
            else:
                return Any
        elif isinstance(annotation, typing.ParamSpecArgs | typing.ParamSpecKwargs):
            return Any
        else:
            return annotation


def _is_jaxtyping(annotation: Any) -> bool:
    return isinstance(annotation, type) and all(
        hasattr(annotation, name) for name in ("dim_str", "dtypes", "array_type")
    )


def _read_jaxtyping(annotation: Any, scope: Scope) -> Spec:
    array_type = annotation.array_type
    if not (isinstance(array_type, type) and issubclass(array_type, torch.Tensor)):
        advice = (
            "; write the None outside: Float32[Tensor, ...] | None"
            if array_type in (type(None), None)
            else ""
        )
        name = getattr(array_type, "__name__", array_type)
        raise ContractDefinitionError(
            f"{annotation.__name__}: {name} is not a torch tensor type{advice}"
        )
    shape = parse_shape(annotation.dim_str, scope.constants, scope.arguments)
    family = getattr(annotation.dtype, "__name__", "Shaped")
    dtypes = _torch_dtypes(annotation.dtypes)
    if dtypes == ():
        raise ContractDefinitionError(f"{annotation.__name__}: torch has no such dtype")
    return TensorSpec(f'{family}[{array_type.__name__}, "{shape}"]', shape, dtypes, array_type)


@functools.cache
def _all_dtypes() -> tuple[torch.dtype, ...]:
    return tuple(
        dict.fromkeys(value for value in vars(torch).values() if isinstance(value, torch.dtype))
    )


def _torch_dtypes(patterns: Any) -> tuple[torch.dtype, ...] | None:
    """jaxtyping's dtype names and patterns as torch dtypes; None where any dtype is meant."""
    if isinstance(patterns, str | re.Pattern):
        patterns = (patterns,)
    if not isinstance(patterns, tuple | list):
        return None  # the sentinel of Shaped

    return _named(tuple(patterns))


@functools.lru_cache(256)
def _named(patterns: tuple[str | re.Pattern[str], ...]) -> tuple[torch.dtype, ...]:
    """Most arguments of a signature have one of a few families of dtypes."""

    def matches(name: str) -> bool:
        return any(
            pattern == name if isinstance(pattern, str) else bool(pattern.match(name))
            for pattern in patterns
        )

    return tuple(dtype for dtype in _all_dtypes() if matches(dtype_name(dtype)))


def _read_union(args: tuple[Any, ...], scope: Scope) -> Spec:
    specs: list[Spec] = []
    optional = False
    for arg in args:
        spec = read_annotation(arg, scope)
        if isinstance(spec, OptionalSpec):
            optional, spec = True, spec.inner
        if isinstance(spec, ValueSpec) and spec.types == (type(None),):
            optional = True
        elif isinstance(spec, AnySpec):
            return spec
        else:
            specs += spec.branches if isinstance(spec, UnionSpec) else (spec,)
    merged = _merge(specs)
    inner = merged[0] if len(merged) == 1 else UnionSpec(tuple(merged))
    return OptionalSpec(inner) if optional else inner


def _merge(specs: list[Spec]) -> list[Spec]:
    """Unions over dtype alone, or over simple types alone, need no branches."""
    merged: list[Spec] = []
    for spec in specs:
        last = merged[-1] if merged else None
        if (
            isinstance(spec, TensorSpec)
            and isinstance(last, TensorSpec)
            and spec.shape == last.shape
            and spec.array_type is last.array_type
        ):
            both = None
            if spec.dtypes is not None and last.dtypes is not None:
                both = tuple(dict.fromkeys(last.dtypes + spec.dtypes))
            merged[-1] = TensorSpec(f"{last.text} | {spec.text}", spec.shape, both, spec.array_type)
        elif (
            isinstance(spec, ValueSpec)
            and isinstance(last, ValueSpec)
            and spec.types is not None
            and last.types is not None
        ):
            hint = last.hint | spec.hint
            merged[-1] = ValueSpec(f"{last.text} | {spec.text}", hint, last.types + spec.types)
        else:
            merged.append(spec)
    return merged


def _mentions_tensors(annotation: Any) -> bool:
    annotation = _strip(annotation)
    if _is_jaxtyping(annotation):
        return True
    if isinstance(annotation, type) and issubclass(annotation, torch.Tensor):
        return True
    if typing.get_origin(annotation) in (abc.Callable, type):
        return False  # judged as a callable or a class, never called or instantiated here
    if typing.is_typeddict(annotation):
        return any(map(_mentions_tensors, typing.get_type_hints(annotation).values()))
    return any(_mentions_tensors(arg) for arg in typing.get_args(annotation))


def _read_container(annotation: Any, origin: Any, args: tuple[Any, ...], scope: Scope) -> Spec:
    text = _text(annotation)
    if origin in (abc.Callable, type):
        return _read_value(annotation)
    if origin not in _CONTAINERS:
        raise ContractDefinitionError(
            f"{text}: tensors inside {getattr(origin, '__name__', origin)} cannot be checked item "
            "by item; use a list, tuple, Sequence, dict or Mapping"
        )
    if any(_is_unpacked(arg) for arg in args):
        raise ContractDefinitionError(f"{text}: a tuple has a fixed length, or items of one kind")
    container = _CONTAINERS[origin]
    if container is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        return TupleSpec(text, tuple(read_annotation(arg, scope) for arg in args))
    if issubclass(container, abc.Mapping) and _mentions_tensors(args[0]):
        raise ContractDefinitionError(f"{text}: tensors cannot be the keys of a mapping")
    if issubclass(container, abc.Mapping):
        key, item = (read_annotation(arg, scope) for arg in args)
        return ItemsSpec(text, container, item, key)
    return ItemsSpec(text, container, read_annotation(args[0], scope))


def _is_unpacked(annotation: Any) -> bool:
    """`*tuple[int, ...]` or `Unpack[...]`."""
    return getattr(annotation, "__unpacked__", False) or (
        typing.get_origin(annotation) is typing.Unpack
    )


def _read_value(annotation: Any) -> Spec:
    if isinstance(annotation, str | typing.ForwardRef):
        raise ContractDefinitionError(f"the annotation {annotation!r} cannot be resolved")
    if annotation in _SIMPLE if isinstance(annotation, type) else False:
        return ValueSpec(_text(annotation), annotation, _SIMPLE[annotation])
    if typing.get_origin(annotation) is abc.Callable:  # nobody can see what it takes and gives
        return ValueSpec(_text(annotation), annotation, (abc.Callable,))
    if typing.get_origin(annotation) is typing.Literal or not isinstance(annotation, type):
        spec = ValueSpec(_text(annotation), annotation)
    elif type(annotation).__instancecheck__ is type.__instancecheck__:
        return ValueSpec(_text(annotation), annotation, (annotation,))
    else:
        spec = ValueSpec(_text(annotation), annotation)
    try:
        is_bearable(None, annotation)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ContractDefinitionError(
            f"the annotation {_text(annotation)} cannot be judged: {reason}"
        ) from error
    return spec


def is_bearable(value: Any, hint: Any) -> bool:
    """beartype's verdict on a value that is not a tensor."""
    # Imported late: it takes longer than the rest of this package, and few contracts need it.
    from beartype.door import is_bearable as judge

    return judge(value, hint)


def judge_of(hint: Any) -> Callable[[Any], bool]:
    """The same for one annotation, which a trace need not know."""

    @constant_of_trace
    def judge(value: Any) -> bool:
        return is_bearable(value, hint)

    return judge


def _text(annotation: Any) -> str:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return "None" if annotation is type(None) else annotation.__qualname__
    return re.sub(r"\b(jaxtyping|typing|collections\.abc)\.", "", str(annotation))


def tensor_specs(spec: Spec) -> Iterator[TensorSpec]:
    """Every tensor spec within `spec`."""
    match spec:
        case TensorSpec():
            yield spec
        case OptionalSpec(inner=inner) | ItemsSpec(item=inner):
            yield from tensor_specs(inner)
        case UnionSpec(branches=specs) | TupleSpec(items=specs):
            for inner in specs:
                yield from tensor_specs(inner)
