"""What a contract does inside a graph that torch.compile, torch.export or make_fx traces.

The generated check traces as plain Python: its comparisons become the graph's guards, so that a
right call costs nothing in the compiled code and a wrong one is traced anew. What cannot be traced
is left to library operators:

- `refuse` stands on the failing branch. Tracing it raises the ContractError, in a class that Dynamo
  lets through unchanged; were it ever to run, it would raise the same.
- `judge` stands behind a check that has rules on addresses, which a graph does not know, and in
  place of the check in the modes that read contents. It judges the whole call each time the graph
  runs. It has no result, and is kept because it is declared effectful.
- `judge_result` does the same for a result, in `debug`.

All take a call in flat form: see `flat.py`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch._library.effects import EffectType
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from .errors import ContractError, raise_any
from .flat import DISTRIBUTED, Paths, flatten, unflatten
from .identity import identify

P = ParamSpec("P")
R = TypeVar("R")


class Judge(Protocol):
    """What a graph needs of a contract: verdicts on a call given by position."""

    declaration: Any
    mode: str | None

    def error(self, values: Sequence[Any]) -> ContractError | None: ...
    def judge(self, values: Sequence[Any], mode: str) -> None: ...
    def judge_result(self, values: Sequence[Any], result: Any) -> None: ...


_library = torch.library.Library("tensor_contracts", "DEF")
_FLAT_CALL = "(Tensor[] tensors, SymInt[] ints, float[] floats, str[] nesting, str contract"
for _name, _more in (("refuse", ""), ("judge", ", str mode"), ("judge_result", "")):
    _library.define(f"{_name}{_FLAT_CALL}{_more}) -> ()")
    _library._register_effectful_op(f"tensor_contracts::{_name}", EffectType.ORDERED)


_equals: dict[str, weakref.WeakSet[Judge]] = {}
"""By handle, all contracts that demand the same: each can answer for the others."""
_alone: weakref.WeakValueDictionary[str, Judge] = weakref.WeakValueDictionary()
"""By handle, those of which nobody can say that another demands the same."""
_declared: Counter[str] = Counter()
_lock = threading.Lock()


def handle_of(judge: Judge, name: str) -> str:
    """A name by which a graph can mean a contract: `name`, and a digest of what is demanded.

    A graph may outlive its contract, and be saved: so a handle never comes to mean a contract that
    demands something else, and the next process that declares the same contract finds it. Where the
    digest may not tell two apart, in the order of their declaration they are numbered.
    """
    identity = identify(judge.declaration, judge.mode)
    handle = f"{name}@{identity.digest}"
    with _lock:
        if identity.certain:
            _equals.setdefault(handle, weakref.WeakSet()).add(judge)
            return handle
        _declared[handle] += 1
        if _declared[handle] > 1:
            handle = f"{handle}#{_declared[handle]}"
        _alone[handle] = judge
    return handle


def judge_of(handle: str) -> Judge:
    """A living contract that the handle means."""
    with _lock:
        found = next(iter(_equals.get(handle, ())), None)
    found = found or _alone.get(handle)
    if found is None:
        raise _unknown(handle)
    return found


def _unknown(handle: str) -> RuntimeError:
    with _lock:
        others = [*(known for known, equals in _equals.items() if equals), *_alone]
    name = handle.partition("@")[0]
    module, _, path = name.partition(":")
    outer, local, _ = path.partition(".<locals>")
    if any(other.partition("@")[0] == name for other in others):
        what = "is declared otherwise in this process: trace anew what was compiled or exported"
    elif local:
        what = (
            f"nothing in this process declares, or nothing holds any more: call {module}.{outer}, "
            "which declares it, and keep what that makes for as long as the graph runs"
        )
    else:
        what = f"nothing in this process declares: import {module} before running it"
    return RuntimeError(f"this graph was traced with the contract {name!r}, which {what}")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """The function, out of Dynamo's reach: below a frame that it gave up tracing, it tries every
    function that runs, also one that only makes a message."""
    dynamo = sys.modules.get("torch._dynamo")
    return function if dynamo is None else _disabled(function, dynamo)


@functools.cache
def _disabled(function: Callable[..., Any], dynamo: Any) -> Any:
    return dynamo.disable(function)


def refuse(handle: str, values: Sequence[Any], paths: Paths) -> None:
    """The failing branch, as it is traced."""
    torch.ops.tensor_contracts.refuse(*flatten(values, paths), handle)


def judge(handle: str, values: Sequence[Any], paths: Paths, mode: str) -> None:
    """A call that is judged each time the graph runs, as it is traced."""
    torch.ops.tensor_contracts.judge(*flatten(values, paths), handle, mode)


def judge_result(handle: str, values: Sequence[Any], paths: Paths, result: Any) -> None:
    """A result that is judged each time the graph runs, as it is traced."""
    torch.ops.tensor_contracts.judge_result(*flatten([*values, result], paths), handle)


def _apart_from_dynamo(run: Callable[..., None]) -> Callable[..., None]:
    """Where a graph breaks, Dynamo tries the frames below an operator, too, and would fail for good
    on what imitates a distributed tensor."""

    def run_apart(tensors: Any, ints: Any, floats: Any, nesting: Any, *rest: Any) -> None:
        judged = untraced(run) if DISTRIBUTED in nesting else run
        judged(tensors, ints, floats, nesting, *rest)

    return run_apart


def _refuse(tensors: Any, ints: Any, floats: Any, nesting: Any, contract: str) -> None:
    raise_any(judge_of(contract).error(unflatten(tensors, ints, floats, nesting)))


def _judge(tensors: Any, ints: Any, floats: Any, nesting: Any, contract: str, mode: str) -> None:
    judge_of(contract).judge(unflatten(tensors, ints, floats, nesting), mode)


def _judge_result(tensors: Any, ints: Any, floats: Any, nesting: Any, contract: str) -> None:
    *values, result = unflatten(tensors, ints, floats, nesting)
    judge_of(contract).judge_result(values, result)


for _name, _run in (("refuse", _refuse), ("judge", _judge), ("judge_result", _judge_result)):
    torch.library.impl(_library, _name, "CompositeExplicitAutograd")(_apart_from_dynamo(_run))


def _example(in_dims: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What one example of a vmap sees of its tensors."""
    return [
        x if dim is None else x.select(dim, 0) for x, dim in zip(tensors, in_dims[0], strict=True)
    ]


@torch.library.register_vmap("tensor_contracts::refuse", lib=_library)
def _refuse_vmap(info: Any, in_dims: Any, tensors: Any, *call: Any) -> tuple[None, None]:
    torch.ops.tensor_contracts.refuse(_example(in_dims, tensors), *call)
    return None, None


@torch.library.register_vmap("tensor_contracts::judge", lib=_library)
def _judge_vmap(info: Any, in_dims: Any, tensors: Any, *call: Any) -> tuple[None, None]:
    """Addresses and contents of examples are excused, as in an eager call: metadata is left, which
    in `static` has been judged."""
    *rest, mode = call
    if mode != "static":
        torch.ops.tensor_contracts.refuse(_example(in_dims, tensors), *rest)
    return None, None


@torch.library.register_vmap("tensor_contracts::judge_result", lib=_library)
def _judge_result_vmap(info: Any, in_dims: Any, tensors: Any, *call: Any) -> tuple[None, None]:
    torch.ops.tensor_contracts.judge_result(_example(in_dims, tensors), *call)
    return None, None


@torch.library.register_fake("tensor_contracts::refuse", lib=_library)
def _refuse_fake(tensors: Any, ints: Any, floats: Any, nesting: Any, contract: str) -> None:
    with unset_fake_temporarily():
        values = unflatten(
            [concrete(x) for x in tensors], [_hint(n) for n in ints], floats, nesting
        )
        error = judge_of(contract).error(values)
    if error is not None:
        raise traced(error)


@torch.library.register_fake("tensor_contracts::judge", lib=_library)
def _judge_fake(
    tensors: Any, ints: Any, floats: Any, nesting: Any, contract: str, mode: str
) -> None:
    """What metadata says at trace time is said then; where a size is not known yet, later."""
    sizes = [size for x in tensors for size in (*x.shape, *x.stride())]
    if mode != "static" and all(_is_known(size) for size in (*sizes, *ints)):
        _refuse_fake(tensors, ints, floats, nesting, contract)


@torch.library.register_fake("tensor_contracts::judge_result", lib=_library)
def _judge_result_fake(tensors: Any, ints: Any, floats: Any, nesting: Any, contract: str) -> None:
    """Results are judged when there are some."""


def _is_known(size: Any) -> bool:
    return not isinstance(size, torch.SymInt) or size.node.hint is not None


def _hint(size: Any) -> int:
    """The number behind a symbolic size."""
    if isinstance(size, torch.SymInt):
        hint = size.node.hint
        return int(hint) if hint is not None else -1
    return int(size)


def concrete(x: Any) -> Any:
    """The same metadata with numbers for sizes, so that a message can print them."""
    if isinstance(x, torch.SymInt):
        return _hint(x)
    if not isinstance(x, FakeTensor) or x.is_nested or x.layout is not torch.strided:
        return x
    with _disable_current_modes(), FakeTensorMode() as mode:  # a trace would take it for its own
        sizes, strides = map(_hint, x.shape), map(_hint, x.stride())
        y = torch.empty_strided(tuple(sizes), tuple(strides), dtype=x.dtype, device="meta")
        return FakeTensor(mode, y, x.device).requires_grad_(x.requires_grad)


class Replayable(Protocol):
    """An error that can be made again from what it was made from."""

    def args_of(self) -> tuple[Any, ...]: ...


E = TypeVar("E", bound=Replayable)


@functools.cache
def _traced_class(kind: type[Any]) -> type[Any]:
    """An error class of ours as Dynamo lets it pass: a user sees our class and our text first.

    Dynamo's own refusal to trace is the only exception that it re-raises as it is; where a release
    has no such class, the plain error is raised, and Dynamo wraps it.
    """
    try:
        from torch._dynamo.exc import Unsupported
    except ImportError:
        return kind

    class Traced(kind, Unsupported):
        def __init__(self, *args: Any) -> None:
            kind.__init__(self, *args)
            # What Dynamo looks for on its exceptions differs between releases: one of its own
            # shows what there is to have.
            takes = inspect.signature(Unsupported.__init__).parameters
            more: dict[str, Any] = {"gb_type": ""} if "gb_type" in takes else {}
            model = Unsupported(str(self), **more)
            self.__dict__ = {**vars(model), **vars(self)}

        def __reduce__(self) -> tuple[Any, ...]:
            return kind, self.args_of()

    Traced.__name__ = kind.__name__
    Traced.__qualname__ = kind.__qualname__
    Traced.__module__ = kind.__module__
    return Traced


def traced(error: E) -> E:
    """The error in the form that a trace lets through."""
    kind: type[E] = _traced_class(type(error))
    return kind(*error.args_of())
