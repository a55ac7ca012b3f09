"""A call as a graph can hold it: tensors, numbers, and words that say how they nest.

A graph holds no other objects. Of those it is told the type, by name, and the attributes that axes
read (`{self.dim}`): a stand-in has both, so that it is judged as the object itself would be. No
operator takes a distributed tensor: of one, a graph holds the metadata.

A compiler may compute equal tensors once: two buffers of zeros arrive as one. Which arguments are
one tensor is therefore said when the graph is made, and where more of them have become one since,
each gets a copy of its own. Not so in an exported program, whose caller nothing keeps from passing
one tensor twice.
"""

from __future__ import annotations

import enum
import functools
import importlib
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from .tensors import is_distributed
from .traceable import constant_of_trace

Paths = tuple[tuple[tuple[str, ...], ...], ...]
"""For each value of a call, the attributes of it that axes read."""


class Flat(NamedTuple):
    """The arguments of a library operator that takes a call."""

    tensors: list[torch.Tensor]
    ints: list[int | torch.SymInt]
    floats: list[float | torch.SymFloat]
    words: list[str]


_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_PLAIN = (list, tuple, dict)
DISTRIBUTED = "distributed"
"""The word that begins a distributed tensor."""
_CONSTANTS = {"=None": None, "=True": True, "=False": False}

_types: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


@constant_of_trace
def name_of(kind: type) -> str:
    """A name by which a graph can mean a type, numbered where several local ones share it."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    names = (name if number == 1 else f"{name}#{number}" for number in count(1))
    found = next(free for free in names if _types.get(free, kind) is kind)
    _types[found] = kind
    return found


def type_of(name: str) -> type:
    """The type of that name, imported where a saved graph names one that is not known yet."""
    known = _types.get(name)
    if known is not None:
        return known
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    assert isinstance(found, type)
    return found


@constant_of_trace
def _is_exporting() -> bool:
    """Asked of torch itself: some releases say yes to every trace."""
    return torch.compiler.is_exporting()


class StandIn:
    """Takes the place of an object: an instance of its type for `isinstance`, with the items of a
    container and the attributes that were read."""

    def __init__(self, kind: type, items: Any, attributes: dict[str, Any]) -> None:
        if isinstance(items, dict):
            attributes |= {"items": items.items, "values": items.values}
        self.__dict__.update(attributes, __stands_for=kind, __items=items)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.__dict__["__stands_for"]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__dict__["__items"])

    def __len__(self) -> int:
        return len(self.__dict__["__items"])

    def __getitem__(self, place: Any) -> Any:
        return self.__dict__["__items"][place]


def flatten(values: Sequence[Any], paths: Paths = ()) -> Flat:
    """A call given by position, in flat form. Traces."""
    tensors: list[torch.Tensor] = []
    ints: list[int | torch.SymInt] = []
    floats: list[float | torch.SymFloat] = []
    words: list[str] = []
    new = "given" if _is_exporting() else "tensor"

    def add(value: Any) -> None:
        if value is None or isinstance(value, bool):
            words.append(f"={value}")
        elif isinstance(value, torch.Tensor):
            for place in range(len(tensors)):
                if tensors[place] is value:
                    words.extend(("same", str(place)))
                    return
            if is_distributed(type(value)):
                distributed(value)
            else:
                tensors.append(value)
                words.append(new)
        elif isinstance(value, enum.Flag):  # several have no name, and none has none
            words.extend(("flags", name_of(type(value)), str(value.value)))
        elif isinstance(value, enum.Enum):
            words.extend(("enum", name_of(type(value)), value.name))
        elif isinstance(value, int | torch.SymInt):
            ints.append(value)
            words.append("int")
        elif isinstance(value, float | torch.SymFloat):
            floats.append(value)
            words.append("float")
        elif isinstance(value, str):
            words.append("'" + value)
        elif isinstance(value, _TORCH):
            words.append(str(value))
        elif isinstance(value, torch.device):
            words.extend(("device", str(value)))
        elif isinstance(value, type):
            words.extend(("type", name_of(value)))
        elif isinstance(value, list | tuple):
            opening(value, "[" if isinstance(value, list) else "(")
            for item in value:
                add(item)
            words.append("]")
        elif isinstance(value, dict):
            opening(value, "{")
            entries(value)
        else:
            standing(value, ())

    def distributed(value: torch.Tensor) -> None:
        words.extend((DISTRIBUTED, name_of(type(value)), str(value.dtype), str(value.device)))
        add(value.requires_grad)
        ints.extend((value.ndim, *value.shape, *value.stride()))

    def opening(value: Any, bracket: str) -> None:
        kind = type(value)
        words.append(bracket)
        words.append("" if kind in _PLAIN else name_of(kind))

    def entries(items: dict[Any, Any]) -> None:
        for key, item in items.items():
            add(key)
            add(item)
        words.append("]")

    def standing(value: Any, read: Sequence[tuple[str, ...]]) -> None:
        words.extend(("object", name_of(type(value))))
        if isinstance(value, Mapping):
            add(dict(value.items()))
        elif isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
            add(list(value))
        else:
            add(())
        for path in read:
            found = value
            try:
                for attribute in path:
                    found = getattr(found, attribute)
            except AttributeError:
                continue
            add(".".join(path))
            add(found)
        words.append("]")

    for index, value in enumerate(values):
        if index < len(paths) and len(paths[index]) and value is not None:
            standing(value, paths[index])
        else:
            add(value)
    return Flat(tensors, ints, floats, words)


def unflatten(
    tensors: Sequence[Any], ints: Sequence[Any], floats: Sequence[Any], words: Sequence[str]
) -> list[Any]:
    """The call again, with stand-ins for what the graph could not hold."""
    sources: dict[str, Iterator[Any]] = {
        "given": iter(tensors),
        "tensor": iter(_parted(tensors)),
        "int": iter(ints or ()),  # an empty list may arrive as None
        "float": iter(floats or ()),
    }
    rest = iter(words)

    def until_end() -> Iterator[Any]:
        for word in rest:
            if word == "]":
                return
            yield value(word)

    def entries() -> dict[Any, Any]:
        items = list(until_end())
        return dict(zip(items[::2], items[1::2], strict=True))

    def value(word: str) -> Any:
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if word in sources:
            return next(sources[word])
        match word:
            case "[" | "(" | "{":
                name = next(rest)
                plain = {"[": list, "(": tuple, "{": dict}[word]
                items = entries() if word == "{" else plain(until_end())
                return items if not name else _rebuilt(plain, type_of(name), items)
            case "same":
                return tensors[int(next(rest))]
            case "type":
                return type_of(next(rest))
            case "enum":
                return type_of(next(rest))[next(rest)]  # type: ignore[index]
            case "flags":
                return type_of(next(rest))(int(next(rest)))
            case "device":
                return torch.device(next(rest))
            case _ if word == DISTRIBUTED:
                name, dtype, device = next(rest), next(rest), next(rest)
                numbers = sources["int"]
                wanted = value(next(rest))
                rank = next(numbers)
                sizes, strides = ([next(numbers) for _ in range(rank)] for _ in range(2))
                return torch.Tensor._make_wrapper_subclass(
                    _imitation(type_of(name)),
                    sizes,
                    strides=strides,
                    dtype=getattr(torch, dtype.removeprefix("torch.")),
                    device=torch.device(device),
                    requires_grad=wanted,
                )
            case "object":
                return StandIn(type_of(next(rest)), value(next(rest)), _nested(entries()))
        return word[1:] if word.startswith("'") else getattr(torch, word.removeprefix("torch."))

    return [value(word) for word in rest]


def _parted(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Tensors that were made apart, each in memory of its own."""
    for place, x in enumerate(tensors):
        if any(x is earlier for earlier in tensors[:place]):
            storage = x.untyped_storage().clone()
            x = x.new_empty(0).set_(storage, x.storage_offset(), x.shape, x.stride())
        yield x


@functools.cache
def _imitation(kind: type) -> type:
    """A subclass for what looks like an instance and has no elements.

    No operator can be given a tensor of which each process has a part: the metadata alone says what
    is to be judged, and by its type it is refused where more is asked for.
    """
    return type(kind.__name__, (kind,), {"__torch_dispatch__": classmethod(_without_elements)})


def _without_elements(kind: type, function: Any, *call: Any) -> Any:
    raise NotImplementedError(f"{function} of an imitation of {kind.__name__}")


def _rebuilt(plain: type, kind: type, items: Any) -> Any:
    """A container of a class of its own, with its items and nothing else that it may hold."""
    if issubclass(kind, tuple):
        return getattr(kind, "_make", kind)(items)
    made: Any = kind.__new__(kind)
    if plain is list:
        list.extend(made, items)
    else:
        base = OrderedDict if issubclass(kind, OrderedDict) else dict
        base.update(made, items)  # a class may forbid to update what it has made
    return made


def _nested(attributes: dict[str, Any]) -> dict[str, Any]:
    """`{"model.dim": 8}` as attributes of attributes."""
    tree: dict[str, Any] = {}
    for dotted, value in attributes.items():
        *outer, last = dotted.split(".")
        place = tree
        for name in outer:
            place = vars(place.setdefault(name, SimpleNamespace()))
        place[last] = value
    return tree
