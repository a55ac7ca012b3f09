"""A generated check behind a cache of layouts: what passed once is not tested again."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..axes import ANY_SHAPE
from ..binding import by_kind
from ..layouts import KNOWN, Layouts, absent
from ..model import Argument, Declaration
from ..spec import TensorSpec, ValueSpec
from ..tensors import PLAIN_TYPES
from .code import Code, words

TESTED = 8  # fewer tests are as cheap as the cache
_COMPARABLE = frozenset({int, bool, str, type(None), torch.SymInt, torch.SymBool})
"""Types of scalars whose equal values no expression can tell apart: it can an int and an equal
float, once they are large, and two zeros."""


class Remembering:
    """The tests that depend on nothing but kinds, sizes, strides and scalars, put behind a cache.

    They are written between the making of this object and `end`; `emit` comes when all tests are
    there, and keeps with each layout what the later ones read of their locals.
    """

    def __init__(self, body: Code) -> None:
        self.body = body
        self.anchor = _anchor(body.declaration) if body.cached else None
        if self.anchor is not None:
            body.tracing()
            body.read_shapes[self.anchor] = body.read_shape(self.anchor, self.anchor)
        self.bound_before = set(body.taken)
        self.first = len(body.lines)
        self.last = 0
        self.scalars: list[str] | None = None
        self.words: set[str] = set()

    def end(self) -> None:
        """Here end the tests that a layout decides."""
        if self.anchor is None or self.body.tests < TESTED:
            return
        self.words = words(self.body.lines[self.first :])
        self.scalars = self._scalars()
        if self.scalars is None:
            return
        measured = len(self.body.lines)
        pointers = [rule for rule in self.body.declaration.rules if rule.pointers]
        if pointers:
            with self.body.block(f"if not ({self.body.addressless()}):"):
                self.body.conditions -= 1  # what reads them stands under the same condition
                for rule in pointers:
                    rule.emit_reaches(self.body)
                self.body.conditions += 1
        self.last = len(self.body.lines)
        self.words |= words(self.body.lines[measured:])

    def emit(self, needed: Iterable[str]) -> None:
        """`needed` are axes that somebody will read after all tests."""
        body, anchor, scalars = self.body, self.anchor, self.scalars
        if anchor is None or scalars is None:
            return
        block, later = body.lines[self.first : self.last], body.lines[self.last :]
        wanted = words(later) | {body.name(axis) for axis in needed}
        own = (body.taken & self.words) - self.bound_before
        kept = sorted(own & wanted)

        cache = Layouts(
            gradless="requires_grad" in self.words,
            carried=len(scalars) + len(kept) + 1,
        )
        layouts = body.constant(cache, "layouts")
        plain = body.constant(PLAIN_TYPES, "PLAIN_TYPES")
        met = body.constant(cache.met, "met")
        usual, same = body.local("usual"), body.local("same")
        sizes, place = body.local("sizes"), body.local("place")
        hash_ = body.builtin("hash")
        body.notes = body.local("notes")
        body.remembered = frozenset([*scalars, *kept])
        shape = body.read_shapes[anchor]
        known = {name: body.local(name) for name in scalars}
        tensors, nested = self._tensors(anchor)
        alike = [
            usual,
            *(f"{name} == {value}" for name, value in known.items()),
            f"not ({nested})",
            f"{same}({tensors})",
        ]
        unpacked = ", ".join([same, *known.values(), *kept, body.notes])
        learnt = ", ".join([f"({tensors})", sizes, *scalars, *kept])
        worth = f"{usual} and not {body.unaddressed}" if body.unaddressed else usual
        pad = "    " * body.depth
        body.lines[self.first : self.last] = [
            f"{pad}{usual} = not {body.any_mode} and {body.builtin('type')}({anchor}) in {plain}",
            f"{pad}if {usual}:",
            f"{pad}    {unpacked} = {layouts}.known.get({shape}, {layouts}.unknown)",
            f"{pad}if not ({' and '.join(alike)}):",
            f"{pad}    {' = '.join([body.notes, *kept])} = None",
            *(f"    {line}" for line in block),
            f"{pad}    if {worth}:",
            f"{pad}        {sizes} = ({self._sizes(scalars)})",
            f"{pad}        {place} = {hash_}({sizes}) % {KNOWN}",
            f"{pad}        if {met}[{place}] == {sizes}:",
            f"{pad}            {layouts}.learn({learnt})",
            f"{pad}        else:",
            f"{pad}            {met}[{place}] = {sizes}",
        ]

    def _sizes(self, scalars: list[str]) -> str:
        """All that was bound, to tell one call's sizes from another's at little cost."""
        axes = [self.body.name(axis) for axis in self.body.declaration.axes]
        names = list(dict.fromkeys([*scalars, *axes]))
        return f"{names[0]}," if len(names) == 1 else ", ".join(names)

    def _scalars(self) -> list[str] | None:
        """The scalars that the tests read; None where equal ones might be judged differently, and
        where an attribute is read that no guard looks at."""
        declaration = self.body.declaration
        if declaration.receiver in self.words or any(declaration.paths):
            return None
        read = []
        for argument in declaration.arguments:
            if argument.name in self.words:
                if not is_comparable(argument):
                    return None
                if not isinstance(argument.inner, TensorSpec):
                    read.append(argument.name)
        return read

    def _tensors(self, anchor: str) -> tuple[str, str]:
        """The tensors as the guard takes them, the anchor first, and the test of whether one of
        the others is nested, which no guard may be asked about."""
        sure, optional, *_ = by_kind(self.body.declaration)
        names = [argument.name for argument in (*sure, *optional)]
        names.sort(key=lambda name: name != anchor)
        tensors, nested = [], []
        for index, name in enumerate(names):
            if self.body.conditional(name):
                stand_in = self.body.constant(absent(index), "absent")
                tensors.append(f"{stand_in} if {name} is None else {name}")
                nested.append(f"{name} is not None and {name}.is_nested")
            else:
                tensors.append(name)
                nested.append(f"{name}.is_nested")
        return ", ".join(tensors), " or ".join(nested[1:])


def is_comparable(argument: Argument) -> bool:
    """Whether equal values of this argument are judged alike: tensors are, by the guard."""
    spec = argument.inner
    if isinstance(spec, ValueSpec):
        return spec.types is not None and _COMPARABLE.issuperset(spec.types)
    return argument.is_tensor


def _anchor(declaration: Declaration) -> str | None:
    """A tensor that is always there and whose shape the tests read; None where some tensors are
    not arguments of their own."""
    sure, _, containers, unions = by_kind(declaration)
    if containers or unions:
        return None
    for argument in sure:
        if isinstance(argument.spec, TensorSpec) and argument.spec.shape != ANY_SHAPE:
            return argument.name
    return None
