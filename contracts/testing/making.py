"""A solution of a contract's sizes -> the call it describes: shapes, dtypes, devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch

from .. import expressions
from ..axes import Anonymous, Computed, Fixed, Named, Variadic
from ..expressions import Binary, Incomputable, Node, Unbound
from ..model import Argument, Declaration
from ..rules.tensor import Device, Dtype, SameDtype
from ..spec import (
    AnySpec,
    ItemsSpec,
    OptionalSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
    ValueSpec,
    tensor_specs,
)
from . import samples
from .forms import Form
from .plans import Plan
from .tensor_plans import TensorPlan

PREFERRED_DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32),
    *(torch.bool, torch.uint8, torch.complex64, torch.float64),
)


class Maker:
    """Makes the calls of one form."""

    def __init__(self, declaration: Declaration, form: Form, given: Mapping[str, Any]) -> None:
        self.declaration = declaration
        self.form = form
        self.given = given

    def plan(self, env: Mapping[str, Any], sizes: Mapping[str, Any]) -> Plan:
        """The call that a solution describes; `sizes` is the part of it that was looked for."""
        arguments = self.declaration.arguments
        return Plan({a.name: self._argument(a, env) for a in arguments}, sizes)

    def tensor(self, name: str, env: Mapping[str, Any]) -> TensorPlan:
        """An argument that is one tensor."""
        made = self.value(self.declaration.argument(name).inner, name, name, env)
        assert isinstance(made, TensorPlan)
        return made

    def _argument(self, argument: Argument, env: Mapping[str, Any]) -> Any:
        name = argument.name
        if name in self.form.absent:
            return None
        if name in self.given or isinstance(argument.inner, ValueSpec | AnySpec):
            return env.get(name)
        return self.value(argument.inner, name, name, env)

    def value(self, spec: Spec, argument: str, label: str, env: Mapping[str, Any]) -> Any:
        match spec:
            case TensorSpec():
                return TensorPlan(
                    shape=self._shape(spec, label, env),
                    dtype=self.dtype(argument, spec),
                    device=self.device(argument),
                    kind=spec.array_type,
                )
            case OptionalSpec(inner=inner):
                return self.value(inner, argument, label, env)
            case UnionSpec():
                return self.value(self.form.branch_of(spec), argument, label, env)
            case ItemsSpec(container=container, item=item, key=key):
                items = [
                    self.value(item, argument, f"{label}[]", env) for _ in range(self.form.length)
                ]
                if hasattr(container, "keys"):
                    return dict(zip(_keys(key, len(items)), items, strict=True))
                return tuple(items) if container is tuple else items
            case TupleSpec(items=specs):
                return tuple(
                    self.value(item, argument, f"{label}[{index}]", env)
                    for index, item in enumerate(specs)
                )
            case ValueSpec():
                return samples.sample(spec, argument)
        return None

    def _shape(self, spec: TensorSpec, label: str, env: Mapping[str, Any]) -> tuple[int, ...]:
        shape: list[int] = []
        for index, axis in enumerate(spec.shape.axes):
            ones = self.form.ones and getattr(axis, "broadcast", False)
            match axis:
                case Variadic(name=name):
                    sizes = env[name or f"{label}:{index}"]
                    shape += [1] * len(sizes) if ones else sizes
                case _ if ones:
                    shape.append(1)
                case Fixed(size=size):
                    shape.append(size)
                case Named(name=name):
                    shape.append(max(0, env[name]))
                case Computed(expression=node):
                    shape.append(_loosely(node, env))
                case Anonymous():
                    shape.append(env[f"{label}:{index}"])
        return tuple(shape)

    def dtype(self, argument: str, spec: TensorSpec) -> torch.dtype:
        """What the annotation, `dtype` and `same_dtype` rules leave, in order of preference."""
        allowed = self.allowed_dtypes(argument, spec)
        if self.form.dtype in allowed:
            return self.form.dtype
        return next((dtype for dtype in PREFERRED_DTYPES if dtype in allowed), allowed[0])

    @functools.cache  # noqa: B019 - a problem lives as long as its solutions
    def allowed_dtypes(self, argument: str, spec: TensorSpec) -> tuple[torch.dtype, ...]:
        allowed = self._own_dtypes(argument, spec)
        for rule in self.declaration.rules:
            if isinstance(rule, SameDtype) and argument in rule.names:
                for name in rule.names:
                    for tensor in tensor_specs(self.declaration.argument(name).spec):
                        shared = self._own_dtypes(name, tensor)
                        allowed = tuple(dtype for dtype in allowed if dtype in shared) or allowed
        return allowed

    def _own_dtypes(self, argument: str, spec: TensorSpec) -> tuple[torch.dtype, ...]:
        allowed = PREFERRED_DTYPES if spec.dtypes is None else spec.dtypes
        for rule in self.declaration.rules:
            if isinstance(rule, Dtype) and argument in rule.names:
                both = tuple(dtype for dtype in rule.dtypes if dtype in allowed)
                allowed = both or (rule.dtypes if spec.dtypes is None else allowed)
        return allowed

    def device(self, argument: str) -> str:
        if self.form.device is not None:
            return self.form.device
        for rule in self.declaration.rules:
            if isinstance(rule, Device) and argument in rule.names:
                return str(rule.device)
        return "cpu"


def _keys(spec: Spec, count: int) -> list[Any]:
    names = [f"item{index}" for index in range(count)]
    if not isinstance(spec, ValueSpec) or samples.fits(spec, "item0"):
        return names
    fitting = [value for value in (*range(count), *samples.SAMPLES) if samples.fits(spec, value)]
    hashable = [value for value in fitting if getattr(value, "__hash__", None) is not None]
    return hashable[:count] if len(hashable) >= count else [samples.sample(spec, "key")] * count


def _loosely(node: Node, env: Mapping[str, Any]) -> int:
    """A computed size; where it leaves something over, rounded down, since nobody will judge it."""
    for candidate in (node, _floored(node)):
        try:
            size = expressions.evaluate(candidate, env)
        except (Incomputable, Unbound):
            continue
        if isinstance(size, int | float) and math.isfinite(size):
            return max(0, int(size))
    return 1


def _floored(node: Node) -> Node:
    match node:
        case Binary(operator=operator, left=left, right=right):
            exact = "//" if operator == "/" else operator
            return Binary(exact, _floored(left), _floored(right))
    return node
