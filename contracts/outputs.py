"""The results of a right call, before they are computed: shapes, dtypes and device."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from . import expressions
from .axes import Axis, Computed, Fixed, Named, Variadic
from .errors import ContractDefinitionError
from .model import Declaration, default_device
from .spec import Spec, TensorSpec, TupleSpec, ValueSpec


def empty(declaration: Declaration, arguments: Mapping[str, Any], sizes: Mapping[str, Any]) -> Any:
    """Uninitialised results on the device of the first tensor argument.

    They follow the return annotation, or the contract's `outputs=`: a function of arguments and
    axes, by name, that returns what the annotation cannot say.
    """
    env = {**arguments, **sizes}
    if declaration.outputs is not None:
        names = inspect.signature(declaration.outputs).parameters
        return declaration.outputs(**{name: env.get(name) for name in names})
    return _empty(declaration, declaration.returns, env, default_device(arguments.values()))


def _empty(
    declaration: Declaration, spec: Spec, env: Mapping[str, Any], device: torch.device
) -> Any:
    match spec:
        case TensorSpec(dtypes=dtypes) if dtypes is not None and len(dtypes) == 1:
            shape = [size for axis in spec.shape.axes for size in _sizes(declaration, axis, env)]
            return torch.empty(shape, dtype=dtypes[0], device=device)
        case TupleSpec(items=items):
            return tuple(_empty(declaration, item, env, device) for item in items)
        case ValueSpec(types=(kind,)) if kind is type(None):
            return None
    raise ContractDefinitionError(
        f"{declaration.name}: the return annotation {spec.text} does not say what to allocate; "
        "give the contract outputs="
    )


def _sizes(declaration: Declaration, axis: Axis, env: Mapping[str, Any]) -> tuple[Any, ...]:
    match axis:
        case Fixed(size=size):
            return (size,)
        case Named(name=name) if env.get(name) is not None:
            return (env[name],)
        case Variadic(name=str(name)) if env.get(name) is not None:
            return tuple(env[name])
        case Computed(expression=expression):
            try:
                return (expressions.evaluate(expression, env),)
            except (expressions.Unbound, expressions.Incomputable):
                pass
    raise ContractDefinitionError(
        f"{declaration.name}: the axis {axis} of the result follows from no argument; give the "
        "contract outputs="
    )
