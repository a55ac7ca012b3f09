"""The generated checks: `passes` says yes or no, `sizes` gives the axis sizes of a right call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from ..model import Declaration
from .body import Body
from .module import Module


@dataclass(frozen=True)
class Compiled:
    """A generated function, which takes every argument by position, and its source."""

    function: Callable[..., Any]
    source: str


def compile_passes(declaration: Declaration) -> Compiled:
    """The check of every call: True for a right one."""
    body = _body(declaration, "return False")
    body.line("return True")
    return _load(body, "passes")


def compile_sizes(declaration: Declaration) -> Compiled:
    """The same check for those who want the sizes of axes: a dict of them and the notes of the
    call's layout, which is None where that is not known; None for a wrong call.

    Calls of a known layout are given one and the same dict."""
    body = _body(declaration, "return None", declaration.axes)
    sure = [name for name in declaration.axes if name not in body.loose]
    found = body.local("found")
    entries = ", ".join(f"{name!r}: {body.name(name)}" for name in sure)
    noted = bool(body.notes) and body.remembered.issuperset(map(body.name, declaration.axes))
    if noted:
        body.line(f"{found} = None if {body.notes} is None else {body.notes}.get('sizes')")
    with body.block(f"if {found} is None:") if noted else nullcontext():
        body.line(f"{found} = {{{entries}}}")
        for name in declaration.axes:
            if name in body.loose:
                with body.block(f"if {body.name(name)} is not None:"):
                    body.line(f"{found}[{name!r}] = {body.name(name)}")
        if noted:
            with body.block(f"if {body.notes} is not None:"):
                body.line(f"{body.notes}['sizes'] = {found}")
    body.line(f"return {found}, {body.notes if noted else None}")
    return _load(body, "sizes")


def new_module(declaration: Declaration) -> Module:
    return Module(declaration.name, frozenset(declaration.signature.parameters))


def _body(declaration: Declaration, failure: str, needed: Sequence[str] = ()) -> Body:
    body = Body(new_module(declaration), declaration, failure)
    body.everything(needed)
    return body


def _load(body: Body, name: str) -> Compiled:
    name = body.module.global_name(name)
    body.module.functions.append(body.function(name, check_parameters(body.declaration)))
    return Compiled(body.module.load()[name], body.module.source)


def check_parameters(declaration: Declaration) -> list[str]:
    names = [argument.name for argument in declaration.arguments]
    return [declaration.receiver, *names] if declaration.receiver else names
