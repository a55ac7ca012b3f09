"""A backend's own rules, on top of a contract that already holds, as one generated function.

What the contract has judged is not judged again: axes are not bound but read where a rule needs
them, so a backend without rules costs a call and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from contracts import ContractDefinitionError, Rule, rule
from contracts.axes import Named
from contracts.compiler.body import Body
from contracts.compiler.module import Module
from contracts.model import Declaration
from contracts.spec import TensorSpec
from contracts.tensors import PLAIN_TYPES

REFUSED, DIRECT, LIBRARY = 0, 1, 2
"""How a backend would serve a call: not at all, by calling it, or through the library op."""

PLAIN_OR_ABSENT = PLAIN_TYPES | {type(None)}


def is_transformed() -> bool:
    """Whether a functorch transform or forward-mode AD is active, whose tensors carry more than
    the memory that they point to."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def narrow(declaration: Declaration, rules: Iterable[Rule | str]) -> Declaration:
    """The declaration with a backend's rules in place of the contract's own."""
    resolved: dict[str, Rule] = {}
    for item in rules:
        found = rule(item) if isinstance(item, str) else item
        if not isinstance(found, Rule):
            raise ContractDefinitionError(f"{item!r} is not a rule")
        found = found.resolve(declaration.names).identified()
        if found.id in resolved:
            raise ContractDefinitionError(f"two rules have the id {found.id!r}")
        resolved[found.id] = found
    return replace(declaration, rules=tuple(resolved.values()))


def tensor_arguments(declaration: Declaration) -> list[str]:
    return [argument.name for argument in declaration.arguments if argument.is_tensor]


def axis_sources(declaration: Declaration) -> tuple[dict[str, str], set[str]]:
    """Each axis as an expression over the arguments, and which of them may be None."""
    sources = {axis: axis for axis in declaration.sizes}
    unsure: set[str] = set()
    for optional in (False, True):
        for argument in declaration.arguments:
            spec = argument.inner
            if argument.optional is not optional or not isinstance(spec, TensorSpec):
                continue
            for index, axis in enumerate(spec.shape.axes):
                if not isinstance(axis, Named) or axis.broadcast or axis.name in sources:
                    continue
                position = spec.shape.variadic
                before = position is None or index < position
                place = index if before else index - len(spec.shape.axes)
                source = f"{argument.name}.shape[{place}]"
                if optional:
                    source = f"({source} if {argument.name} is not None else None)"
                    unsure.add(axis.name)
                sources[axis.name] = source
    return sources, unsure


def compile_route(
    narrowed: Declaration, *, differentiable: bool, is_reference: bool
) -> Callable[..., int]:
    """The function that says how a backend would serve a call; it takes the arguments by position.

    The reference is plain torch: every transform, subclass and gradient composes with it. Other
    backends follow pointers. They are called directly on plain tensors only, and through the
    library op where autograd, a dispatch mode or a tensor subclass has to be told.
    """
    module = Module(f"{narrowed.name} route", frozenset(narrowed.signature.parameters))
    body = Body(module, narrowed, f"return {REFUSED}")
    body.strided_by_rule = set()  # the rules here look at types themselves
    sources, unsure = axis_sources(narrowed)
    body.variables.update(sources)
    body.loose |= unsure
    body.rules()
    tracing = module.constant(torch.compiler.is_dynamo_compiling, "is_dynamo_compiling")
    modes = module.constant(_len_torch_dispatch_stack, "len_torch_dispatch_stack")
    if not is_reference:
        transformed = module.constant(is_transformed, "is_transformed")
        with body.block(f"if {tracing}():"):
            body.line(f"return {LIBRARY}")
        with body.block(f"if {transformed}():"):
            body.line(f"return {REFUSED}")
        plain = module.constant(PLAIN_OR_ABSENT, "PLAIN_OR_ABSENT")
        names, kind = tensor_arguments(narrowed), body.builtin("type")
        special = [f"{modes}()", *(f"{kind}({name}) not in {plain}" for name in names)]
        with body.block(f"if {' or '.join(special)}:"):
            body.line(f"return {LIBRARY}")
        if differentiable:
            grad = module.constant(torch.is_grad_enabled, "is_grad_enabled")
            wanted = " or ".join(
                f"{name} is not None and {name}.requires_grad"
                if name in narrowed.names.optional
                else f"{name}.requires_grad"
                for name in names
            )
            with body.block(f"if {grad}() and ({wanted}):"):
                body.line(f"return {LIBRARY}")
        body.line(f"return {DIRECT}")
    else:
        body.line(f"return {LIBRARY} if {tracing}() or {modes}() else {DIRECT}")
    name = module.global_name("route")
    parameters = [argument.name for argument in narrowed.arguments]
    module.functions.append(body.function(name, parameters))
    return module.load()[name]
