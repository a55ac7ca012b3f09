"""A call as data: what each argument is, how it lies in memory, and the code that makes it.

A plan is built into real tensors, into fake ones where the machine lacks the device or the memory,
and into Python source that makes the same call when it is pasted.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .tensor_plans import TensorPlan

MEMORY_LIMIT = 2**28
"""Bytes beyond which a call is built of fake tensors."""

Path = tuple[str | int, ...]
"""Where a value stands in a call: an argument's name, then an index or key per container."""


@dataclass(frozen=True)
class Plan:
    """One call: the value of every argument by name, tensors as plans."""

    values: Mapping[str, Any]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """What the axes and scalar arguments were when it was solved."""

    def tensors(self) -> Iterator[tuple[Path, TensorPlan]]:
        for name, value in self.values.items():
            yield from _tensors(value, (name,))

    def put(self, path: Path, value: Any) -> Plan:
        """The same call with another value at one place."""
        return replace(self, values=_put(self.values, path, value))

    def map(self, change: Callable[[TensorPlan], TensorPlan]) -> Plan:
        """The same call with every tensor changed."""
        plan = self
        for path, tensor in self.tensors():
            plan = plan.put(path, change(tensor))
        return plan

    @property
    def fake(self) -> bool:
        """Whether it can only be built of fake tensors on this machine."""
        tensors = [tensor for _, tensor in self.tensors()]
        return any(not has_device(tensor.device) for tensor in tensors) or (
            sum(tensor.nbytes for tensor in tensors if tensor.device != "meta") > MEMORY_LIMIT
        )

    @property
    def has_memory(self) -> bool:
        """Whether every tensor has an address on this machine."""
        return not self.fake and all(tensor.device != "meta" for _, tensor in self.tensors())

    def build(self, *, fake: bool | None = None, filled: bool = True) -> dict[str, Any]:
        """Fresh arguments by name. Those who look at metadata alone need no `filled` contents."""
        if self.fake if fake is None else fake:
            with FakeTensorMode():
                return {
                    name: _replace_tensors(value, lambda tensor: tensor.imagine())
                    for name, value in self.values.items()
                }
        built: dict[str, Any] = {}

        def build(tensor: TensorPlan) -> torch.Tensor:
            owner = built.get(tensor.shares) if tensor.shares else None
            return tensor.build(owner, filled=filled)

        with torch.enable_grad():
            for name in self._owners_first():
                built[name] = _replace_tensors(self.values[name], build)
        return {name: built[name] for name in self.values}

    def _owners_first(self) -> list[str]:
        def borrows(name: str) -> bool:
            return any(tensor.shares for _, tensor in _tensors(self.values[name], (name,)))

        return sorted(self.values, key=borrows)

    def source(
        self, function: str, signature: inspect.Signature, *, module: str | None = None
    ) -> str:
        """Python that makes this call."""
        fake = self.fake
        lines = ["import torch"]
        if fake:
            lines.append("from torch._subclasses.fake_tensor import FakeTensorMode")
        if module is not None:
            lines.append(f"from {module} import {function.partition('.')[0]}")
        lines.append("")
        made = [
            f"{name} = {source_of(self.values[name], fake=fake)}"
            for name in self._owners_first()
            if _holds_tensors(self.values[name])
        ]
        if fake:
            lines += ["with FakeTensorMode():", *(f"    {line}" for line in made)]
        else:
            lines += made
        return "\n".join([*lines, f"{function}({', '.join(self._given(signature))})"])

    def _given(self, signature: inspect.Signature) -> Iterator[str]:
        by_position = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
        for name, parameter in signature.parameters.items():
            if name not in self.values:
                continue
            value = self.values[name]
            if value is None and parameter.default is None and not by_position:
                continue
            text = name if _holds_tensors(value) else source_of(value)
            match parameter.kind:
                case parameter.VAR_POSITIONAL:
                    yield f"*{text}"
                case parameter.VAR_KEYWORD:
                    yield f"**{text}"
                case parameter.POSITIONAL_ONLY:
                    yield text
                case parameter.POSITIONAL_OR_KEYWORD if by_position:
                    yield text
                case _:
                    yield f"{name}={text}"


def has_device(device: str) -> bool:
    """Whether this machine can hold a tensor there."""
    wanted = torch.device(device)
    if wanted.type in ("cpu", "meta"):
        return True
    module = getattr(torch, wanted.type, None)
    count = module.device_count() if module is not None and module.is_available() else 0
    return (wanted.index or 0) < count


def can_fake(device: str) -> bool:
    """Whether a fake tensor can stand there: where there is CUDA, torch initialises the device of
    a fake tensor too, and one that does not exist fails."""
    wanted = torch.device(device)
    return wanted.type != "cuda" or not torch.cuda.is_available() or has_device(device)


def _tensors(value: Any, path: Path) -> Iterator[tuple[Path, TensorPlan]]:
    if isinstance(value, TensorPlan):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, (*path, index))


def _holds_tensors(value: Any) -> bool:
    return next(_tensors(value, ()), None) is not None


def _put(container: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    key, *rest = path
    inner = _put(container[key], tuple(rest), value)
    if isinstance(container, Mapping):
        return {**container, key: inner}
    assert isinstance(key, int)
    return type(container)([*container[:key], inner, *container[key + 1 :]])


def _replace_tensors(value: Any, make: Callable[[TensorPlan], torch.Tensor]) -> Any:
    if isinstance(value, TensorPlan):
        return make(value)
    if isinstance(value, dict):
        return {key: _replace_tensors(item, make) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace_tensors(item, make) for item in value)
    return value


def source_of(value: Any, *, fake: bool = False) -> str:
    """Python that makes a value of a plan."""
    if isinstance(value, TensorPlan):
        return value.source(fake=fake)
    if isinstance(value, dict):
        entries = (f"{source_of(key)}: {source_of(item, fake=fake)}" for key, item in value.items())
        return f"{{{', '.join(entries)}}}"
    if type(value) is list:
        return f"[{', '.join(source_of(item, fake=fake) for item in value)}]"
    if type(value) is tuple:
        inner = ", ".join(source_of(item, fake=fake) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if callable(value) and "<" not in getattr(value, "__name__", "<"):
        return str(value.__name__)
    return repr(value)
