"""An op's inner function as a torch.library op, for whatever has to see it as one operation.

torch.compile, torch.export, FakeTensorMode, autograd and tensor subclasses meet the op in this
form; a plain eager call does not pay for it. The inner op returns fresh tensors that alias
nothing, or writes into its buffers and returns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

NAMESPACE = "tensor_backends"


@dataclass(frozen=True)
class Gradient:
    """How to differentiate an inner function, whichever backend computes it.

    `save(ctx, inputs, output)` keeps what the backward needs, as `setup_context` of
    `torch.autograd.Function` does. `backward(ctx, run, *grads)` returns one gradient, or None, for
    each input of the inner function; `run` is the inner function on the same backend.
    """

    save: Callable[..., None]
    backward: Callable[..., Sequence[Any]]


def define(
    name: str,
    inner: Callable[..., Any],
    buffers: Sequence[str],
    *,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    gradient: Gradient | None,
) -> tuple[torch.library.Library, Any]:
    """Register the op `tensor_backends::name`.

    Its arguments are those of `inner`, then `str backend, bool demanded`: the choice that was made
    at the door. `run` and `fake` take the same. The returned library keeps the op registered.
    """
    schema = torch.library.infer_schema(inner, mutates_args=tuple(buffers))
    arguments, arrow, returns = schema.rpartition(") -> ")
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define(
        f"{name}{arguments}, str backend, bool demanded{arrow}{returns}",
        tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
    )
    library.impl(name, run, "CompositeExplicitAutograd")
    qualified = f"{NAMESPACE}::{name}"
    torch.library.register_fake(qualified, fake, lib=library)
    overload = getattr(getattr(torch.ops, NAMESPACE), name).default
    if gradient is not None:
        _register_gradient(qualified, gradient, overload, library)
    return library, overload


def mark_written(*buffers: torch.Tensor) -> None:
    """Tell autograd what a kernel wrote, as torch's own in-place operators do: a backward that
    saved one of these has to refuse what it finds there."""
    if not torch.compiler.is_dynamo_compiling():  # a graph knows it from the schema
        torch.autograd.graph.increment_version(buffers)


def _register_gradient(
    qualified: str, gradient: Gradient, overload: Any, library: torch.library.Library
) -> None:
    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *inner, ctx.backend, ctx.demanded = inputs
        gradient.save(ctx, tuple(inner), output)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        def run(*inner: Any) -> Any:
            return overload(*inner, ctx.backend, ctx.demanded)

        return (*gradient.backward(ctx, run, *grads), None, None)

    torch.library.register_autograd(qualified, backward, setup_context=save, lib=library)
