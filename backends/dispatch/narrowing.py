"""A backend's own rules, on top of a contract that already holds, as one generated function.

What the contract has judged is not judged again: axes are not bound but read where a rule needs
them, so a backend without rules costs a call and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from contracts import ContractDefinitionError, Rule, no_grad, rule
from contracts.axes import Named
from contracts.compiler.body import Body
from contracts.compiler.code import words
from contracts.compiler.module import Module
from contracts.model import Declaration
from contracts.rules.memory import MemoryRule
from contracts.rules.tensor import NoGrad
from contracts.spec import TensorSpec, tensor_specs
from contracts.tensors import PLAIN_TYPES

REFUSED, DIRECT, LIBRARY = 0, 1, 2
"""How a backend would serve a call: not at all, by calling it, or through the library op."""


def is_transformed() -> bool:
    """Whether a functorch transform or forward-mode AD is active, whose tensors carry more than
    the memory that they point to."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def are_plain(*tensors: torch.Tensor | None) -> bool:
    """Whether these are tensors or parameters, and no subclass with a memory of its own kind."""
    return all(x is None or type(x) in PLAIN_TYPES for x in tensors)


def is_indirect(*tensors: torch.Tensor | None) -> bool:
    """Whether one is not what it points to: a lazy negative or conjugate view, or not strided."""
    return any(
        x is not None and (x.is_neg() or x.is_conj() or x.layout is not torch.strided)
        for x in tensors
    )


def narrow(declaration: Declaration, rules: Iterable[Rule | str]) -> Declaration:
    """The declaration with a backend's rules in place of the contract's own."""
    resolved: dict[str, Rule] = {}
    for item in rules:
        found = rule(item) if isinstance(item, str) else item
        if not isinstance(found, Rule):
            raise ContractDefinitionError(f"{item!r} is not a rule")
        found = found.resolve(declaration.names).identified()
        found.check_fix(declaration.names)
        if found.id in resolved:
            raise ContractDefinitionError(f"two rules have the id {found.id!r}")
        resolved[found.id] = found
    return replace(declaration, rules=tuple(resolved.values()))


def may_need_gradients(declaration: Declaration) -> tuple[str, ...]:
    """Arguments with tensors that could require a gradient, and that no rule forbids to."""
    forbidden: set[str] = set()
    for found in declaration.rules:
        if isinstance(found, NoGrad):
            forbidden.update(found.names)
    return tuple(
        argument.name
        for argument in declaration.arguments
        if argument.name not in forbidden
        and any(
            spec.dtypes is None or any(x.is_floating_point or x.is_complex for x in spec.dtypes)
            for spec in tensor_specs(argument.spec)
        )
    )


def refusing_gradients(narrowed: Declaration) -> Declaration:
    """The same for a backend that computes no gradient. The contract's own rules do not count: in
    mode `off` nothing has judged them."""
    names = may_need_gradients(narrowed)
    if not names:
        return narrowed
    hint = "only the reference is differentiable"
    return replace(narrowed, rules=(*narrowed.rules, no_grad(*names, hint=hint).identified()))


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
    narrowed: Declaration,
    *,
    judged: Sequence[Rule],
    differentiable: bool,
    is_reference: bool,
    opaque: bool,
) -> Callable[..., int]:
    """The function that says how a backend would serve a call; it takes the arguments by position.

    The reference is plain torch: every transform, subclass and gradient composes with it; under a
    dispatch mode (fake tensors, tracing) an `opaque` one is the library op. Other backends follow
    pointers. They are called directly on plain tensors that need no gradient, and through the
    library op where autograd, a dispatch mode or a tensor subclass has to be told. `judged` are the
    contract's own rules, which hold already.
    """
    code = _Test(narrowed)
    for memory in (item for item in judged if isinstance(item, MemoryRule)):
        code.body.strided.update(memory.names)
    code.rules(narrowed)
    if is_reference:
        if opaque:
            code.line(f"return {LIBRARY} if {code.constant(_len_torch_dispatch_stack)}() else 1")
        else:
            code.line(f"return {DIRECT}")
    else:
        _emit_way(code, narrowed, differentiable)
    return code.load("route")


def compile_halves(
    narrowed: Declaration, is_reference: bool
) -> tuple[Callable[..., int], Callable[..., int]]:
    """The route in two parts, for plain tensors that need no gradient.

    The first is what kinds, sizes and strides decide: it is asked once a layout. The second is left
    for each call: addresses, scalars, rules that only they themselves understand, and forward-mode
    AD. Under a dispatch mode or a functorch transform no layout is known: they change what a
    tensor's dispatch keys are.
    """
    lasting, recheck = _Test(narrowed), _Test(narrowed)
    recheck.body.strided.update(tensor_arguments(narrowed))
    for found in narrowed.rules:
        in_layout = found.emit_layout if found.pointers else found.emit
        if _is_lasting(narrowed, found):
            in_layout(lasting.body)
        else:
            in_layout(recheck.body)
        if found.pointers:
            found.emit(recheck.body)
    if not is_reference:
        level = f"{recheck.constant(forward_ad, 'forward_ad')}._current_level"
        with recheck.body.block(f"if {level} >= 0:"):
            recheck.line(f"return {REFUSED}")
    for code in (lasting, recheck):
        code.line(f"return {DIRECT}")
    return lasting.load("lasting"), recheck.load("recheck")


def _is_lasting(narrowed: Declaration, found: Rule) -> bool:
    """Whether a rule, but for addresses, reads nothing but tensors."""
    code = _Test(narrowed)
    (found.emit_layout if found.pointers else found.emit)(code.body)
    scalars = {argument.name for argument in narrowed.arguments if not argument.is_tensor}
    return not found.opaque and scalars.isdisjoint(words(code.body.lines))


def _emit_way(code: _Test, narrowed: Declaration, differentiable: bool) -> None:
    """Transforms, modes, types and gradients, cheapest first."""
    names = tensor_arguments(narrowed)
    always = [name for name in names if name not in narrowed.names.optional]
    kind, tensor = code.body.builtin("type"), code.constant(torch.Tensor)
    with code.body.block(
        f"if {code.constant(peek_interpreter_stack)}() is not None"
        f" or {code.constant(forward_ad, 'forward_ad')}._current_level >= 0:"
    ):
        code.line(f"return {REFUSED}")
    with code.body.block(f"if {code.constant(_len_torch_dispatch_stack)}():"):
        code.line(f"return {LIBRARY}")
    usual = [f"{kind}({name}) is {tensor}" for name in always]
    usual += [
        f"({name} is None or {kind}({name}) is {tensor})" for name in names if name not in always
    ]
    special = f"{code.constant(are_plain)}({', '.join(names)})"
    unsure = [name for name in names if name not in code.body.strided]
    if unsure:  # an indirect one the library op resolves, or refuses
        with code.body.block(f"if {code.constant(is_indirect)}({', '.join(unsure)}):"):
            code.line(f"return {LIBRARY}")
    with code.body.block(f"if not ({' and '.join(usual)} or {special}):"):
        code.line(f"return {LIBRARY}")
    if differentiable:
        wanted = [f"{name}.requires_grad" for name in always]
        wanted += [
            f"{name} is not None and {name}.requires_grad" for name in names if name not in always
        ]
        grad = code.constant(torch.is_grad_enabled)
        with code.body.block(f"if {grad}() and ({' or '.join(wanted)}):"):
            code.line(f"return {LIBRARY}")
    code.line(f"return {DIRECT}")


def compile_trace_test(narrowed: Declaration) -> Callable[..., int]:
    """Whether a backend serves a call that is being traced, by all but its rules on pointers."""
    code = _Test(narrowed)
    code.rules_without_addresses(narrowed)
    code.line(f"return {LIBRARY}")
    return code.load("accepts")


class _Test:
    """A generated function over a declaration's arguments that answers REFUSED where a rule does
    not hold. Axes are expressions over the arguments."""

    def __init__(self, narrowed: Declaration) -> None:
        self.parameters = [argument.name for argument in narrowed.arguments]
        self.module = Module(f"{narrowed.name} route", frozenset(self.parameters))
        self.body = Body(self.module, narrowed, f"return {REFUSED}")
        self.body.strided_by_rule = set()  # the annotations are not tested here: rules look
        sources, unsure = axis_sources(narrowed)
        self.body.variables.update(sources)
        self.body.loose |= unsure
        self.line = self.body.line

    def rules(self, narrowed: Declaration) -> None:
        """All of them; fake tensors, which one speaks for, have no addresses to look at."""
        self.rules_without_addresses(narrowed)
        pointers = [found for found in narrowed.rules if found.pointers]
        if not pointers:
            return
        always = (x for x in tensor_arguments(narrowed) if x not in narrowed.names.optional)
        x = next(always)  # every op has one, whose device is the call's
        kind, tensor = self.body.builtin("type"), self.constant(torch.Tensor)
        fake = f"{self.body.builtin('isinstance')}({x}, {self.constant(FakeTensor)})"
        with self.body.block(f"if {kind}({x}) is {tensor} or not {fake}:"):
            for found in pointers:
                found.emit(self.body)

    def rules_without_addresses(self, narrowed: Declaration) -> None:
        for found in narrowed.rules:
            if found.pointers:
                found.emit_layout(self.body)
            else:
                found.emit(self.body)

    def constant(self, value: Any, hint: str = "") -> str:
        return self.module.constant(value, hint or value.__name__)

    def load(self, name: str) -> Callable[..., int]:
        name = self.module.global_name(name)
        self.module.functions.append(self.body.function(name, self.parameters))
        function: Callable[..., int] = self.module.load()[name]
        return function
