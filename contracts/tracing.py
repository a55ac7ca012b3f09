"""What a contract does inside a graph that torch.compile or torch.export traces.

The generated check traces as plain Python: its comparisons become the graph's guards, so that a
right call costs nothing in the compiled code and a wrong one is traced anew. What cannot be traced
is left to two library operators:

- `refuse` stands on the failing branch. Tracing it raises the ContractError, in a class that Dynamo
  lets through unchanged; were it ever to run, it would raise the same.
- `judge` stands behind a check that has rules on addresses, which a graph does not know. It judges
  them each time the graph runs. It has no result, and is kept because it is declared effectful.

Both take a call in flat form: its tensors, its numbers, and a spelling of how they nest.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch._library.effects import EffectType
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from .errors import ContractError


class Judge(Protocol):
    """What a graph needs of a contract: a verdict on the arguments, by position."""

    @property
    def name(self) -> str: ...
    def error(self, values: Sequence[Any]) -> ContractError | None: ...


_judges: weakref.WeakValueDictionary[str, Judge] = weakref.WeakValueDictionary()

_library = torch.library.Library("tensor_contracts", "DEF")
_FLAT_CALL = "(Tensor[] tensors, SymInt[] ints, float[] floats, str[] nesting, str contract) -> ()"
for _name in ("refuse", "judge"):
    _library.define(_name + _FLAT_CALL)
    _library._register_effectful_op(f"tensor_contracts::{_name}", EffectType.ORDERED)


def handle_of(judge: Judge) -> str:
    """A name by which a graph can mean a contract."""
    handle = f"{judge.name}@{id(judge):x}"
    _judges[handle] = judge
    return handle


def refuse(handle: str, values: Sequence[Any]) -> None:
    """The failing branch, as it is traced."""
    torch.ops.tensor_contracts.refuse(*_flatten(values), handle)


def judge(handle: str, values: Sequence[Any]) -> None:
    """Rules on addresses, as they are traced."""
    torch.ops.tensor_contracts.judge(*_flatten(values), handle)


def _flatten(
    values: Sequence[Any],
) -> tuple[list[torch.Tensor], list[int], list[float], list[str]]:
    tensors: list[torch.Tensor] = []
    ints: list[int] = []
    floats: list[float] = []
    nesting: list[str] = []

    def add(value: Any) -> None:
        if value is None or isinstance(value, bool):
            nesting.append(f"={value}")
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
            nesting.append("tensor")
        elif isinstance(value, int):
            ints.append(value)
            nesting.append("int")
        elif isinstance(value, float):
            floats.append(value)
            nesting.append("float")
        elif isinstance(value, str):
            nesting.append("'" + value)
        elif isinstance(value, list | tuple):
            nesting.append("[" if isinstance(value, list) else "(")
            for item in value:
                add(item)
            nesting.append("]")
        elif isinstance(value, dict):
            nesting.append("{")
            for key, item in value.items():
                add(key)
                add(item)
            nesting.append("]")
        else:
            nesting.append("object")

    for value in values:
        add(value)
    return tensors, ints, floats, nesting


_CONSTANTS = {"=None": None, "=True": True, "=False": False}


def _unflatten(
    tensors: list[torch.Tensor], ints: list[int], floats: list[float], nesting: list[str]
) -> list[Any]:
    sources = {"tensor": iter(tensors), "int": iter(ints), "float": iter(floats)}
    words = iter(nesting)

    def until_end() -> Iterator[Any]:
        for word in words:
            if word == "]":
                return
            yield value(word)

    def value(word: str) -> Any:
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if word in sources:
            return next(sources[word])
        if word.startswith("'"):
            return word[1:]
        if word == "[":
            return list(until_end())
        if word == "(":
            return tuple(until_end())
        if word == "{":
            entries = list(until_end())
            return dict(zip(entries[::2], entries[1::2], strict=True))
        return object()

    return [value(word) for word in words]


def _judge(tensors: Any, ints: Any, floats: Any, nesting: Any, contract: str) -> None:
    error = _judges[contract].error(_unflatten(tensors, ints, floats, nesting))
    if error is not None:
        raise error


for _name in ("refuse", "judge"):
    torch.library.impl(_library, _name, "CompositeExplicitAutograd")(_judge)


@torch.library.register_fake("tensor_contracts::refuse", lib=_library)
def _refuse_fake(tensors: Any, ints: Any, floats: Any, nesting: Any, contract: str) -> None:
    with unset_fake_temporarily():
        concrete = [_concrete(x) for x in tensors]
        values = _unflatten(concrete, [_hint(n) for n in ints], floats, nesting)
        error = _judges[contract].error(values)
    if error is not None:
        raise traced(error)


@torch.library.register_fake("tensor_contracts::judge", lib=_library)
def _judge_fake(tensors: Any, ints: Any, floats: Any, nesting: Any, contract: str) -> None:
    """A graph has no addresses to judge."""


def _hint(size: Any) -> int:
    """The number behind a symbolic size."""
    if isinstance(size, torch.SymInt):
        hint = size.node.hint
        return int(hint) if hint is not None else -1
    return int(size)


def _concrete(x: torch.Tensor) -> torch.Tensor:
    """The same metadata with numbers for sizes, so that a message can print them."""
    if not isinstance(x, FakeTensor) or x.is_nested or x.layout is not torch.strided:
        return x
    with FakeTensorMode() as mode:
        sizes, strides = map(_hint, x.shape), map(_hint, x.stride())
        y = torch.empty_strided(tuple(sizes), tuple(strides), dtype=x.dtype, device="meta")
        return FakeTensor(mode, y, x.device).requires_grad_(x.requires_grad)


@functools.cache
def _traced_class() -> type[ContractError]:
    """ContractError as Dynamo lets it pass: a user sees our class and our text first.

    Dynamo's own refusal to trace is the only exception that it re-raises as it is; where a release
    has no such class, the plain error is raised, and Dynamo wraps it.
    """
    try:
        from torch._dynamo.exc import Unsupported
    except ImportError:
        return ContractError

    class TracedContractError(ContractError, Unsupported):
        def __init__(self, *args: Any) -> None:
            ContractError.__init__(self, *args)
            self.real_stack = torch._guards.TracingContext.extract_stack()
            self.msg = str(self)
            self.skip_frame = False
            self.category = None
            self.gb_type = None
            self.logged = False
            self.add_to_stats()

        def __reduce__(self) -> tuple[Any, ...]:
            return ContractError, self.args_of()

    TracedContractError.__name__ = ContractError.__name__
    TracedContractError.__qualname__ = ContractError.__qualname__
    TracedContractError.__module__ = ContractError.__module__
    return TracedContractError


def traced(error: ContractError) -> ContractError:
    """The error in the form that a trace lets through."""
    return _traced_class()(*error.args_of())
