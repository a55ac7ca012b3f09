"""One call against all of a declaration: first its annotations, then its rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import expressions
from ..axes import Named
from ..binding import OUTVOTED, broadcast_names, broadcast_shapes, broadcast_variadics, by_kind
from ..errors import Violation
from ..expressions import Incomputable
from ..model import Argument, Declaration
from ..rules.expression import Expression
from ..spec import TensorSpec, ValueSpec
from ..tensors import misread, tensors_in
from .matching import Matching
from .places import Binding, is_assignable, placed, root, shape_of

VIEWS = ".to_local()"  # a fix that leads to the same memory


@dataclass
class Judgement(Matching):
    """One call being judged. Implements `rules.base.Call`."""

    declaration: Declaration = field(kw_only=True)
    found: list[Violation] = field(default_factory=list)
    misreads: dict[int, tuple[torch.Tensor, str | None]] = field(default_factory=dict)

    def run(self) -> None:
        declaration = self.declaration
        kinds = by_kind(declaration)
        self.match_arguments({})
        if len(self.found) >= OUTVOTED and (elected := self.outvote([*kinds[0], *kinds[1]])):
            self.match_arguments(elected)
        self.join_broadcasts()
        self.known = self._env()
        deferred: list[Violation] = []
        for argument in (argument for kind in kinds[:3] for argument in kind):
            if not argument.has_computed:
                continue
            value = self.arguments.get(argument.name)
            for fault in self.computed(argument.spec, value, argument.name):
                if fault.actual is None:  # could not be computed: a rule may say why
                    deferred.append(fault)
                else:
                    self.report(fault)
        order = {argument.name: i for i, argument in enumerate(declaration.arguments)}
        self.found.sort(key=lambda fault: order.get(root(fault.argument), len(order)))
        for rule in declaration.rules:
            for fault in list(rule.judge(self)):
                self.report(fault, authored=rule.fix is not None)
                self.refused_names |= rule_names(rule)
        for fault in deferred:
            names = set(fault.expected.split()) if fault.expected else set()
            if names.isdisjoint(self.refused_names):  # which are no size to expect
                self.report(replace(fault, expected=None))

    def match_arguments(self, elected: dict[str, Binding]) -> None:
        """Match every argument with its spec, given sizes that some axes have before."""
        declaration = self.declaration
        self.found.clear()
        self.refused_names.clear()
        self.loose.clear()
        self.bindings = {
            axis: Binding(value, axis, None)
            for axis in sorted(declaration.sizes)
            if isinstance(value := self.arguments.get(axis), int | torch.SymInt)
        }
        self.bindings = {**elected, **self.bindings}
        for argument in declaration.arguments:
            if isinstance(argument.inner, ValueSpec):
                self.match_argument(argument)
        for kind in by_kind(declaration):
            for argument in kind:
                self.match_argument(argument)

    def match_argument(self, argument: Argument) -> None:
        value = self.arguments.get(argument.name)
        for fault in self.match(argument.spec, value, argument.name, argument.name):
            self.report(fault)

    def report(self, fault: Violation, *, authored: bool = False) -> None:
        if fault.fix and fault.argument and not (authored or self.is_replaceable(fault)):
            fault = replace(fault, fix=None)
        note = self.declaration.note(fault.rule)
        self.found.append(fault if note is None else note.annotate(fault, self.env))

    def is_replaceable(self, fault: Violation) -> bool:
        """Whether a fix may put another tensor in an argument's place: not where the caller waits
        for what is written to the one that was given, nor where it cannot be assigned."""
        label, fix = fault.argument or "", fault.fix or ""
        if not fix.startswith(f"{label} = ") or fix.endswith(VIEWS):
            return True
        name = root(label)
        return name not in self.declaration.written and is_assignable(
            self.arguments.get(name), label
        )

    def outvote(self, arguments: list[Argument]) -> dict[str, Binding]:
        """The axes of which the first tensor alone has a size that all others contradict.

        A size is otherwise what the first tensor says. But where one tensor stands against three
        or more, the caller wants to hear of the one.
        """
        places: dict[str, list[Binding]] = {}
        for argument in arguments:
            spec = argument.inner
            assert isinstance(spec, TensorSpec)
            shape = shape_of(spec, self.arguments.get(argument.name))
            for index, axis, size, _ in placed(spec, shape) if shape is not None else ():
                if isinstance(axis, Named) and not axis.broadcast:
                    places.setdefault(axis.name, []).append(Binding(size, argument.name, index))
        elected = {}
        for name, (first, *others) in places.items():
            agreed = all(other.size == others[0].size for other in others)
            if len(others) >= OUTVOTED and agreed and first.size != others[0].size:
                elected[name] = others[0]
        return elected

    def join_broadcasts(self) -> None:
        """Names that only ever broadcast are 1 where no tensor says more; `*#names` join."""
        if not broadcast_names(self.declaration):
            return
        for argument in self.declaration.arguments:
            if isinstance(argument.spec, TensorSpec) and not self.refused(
                frozenset({argument.name})
            ):
                for axis in argument.spec.shape.axes:
                    if isinstance(axis, Named) and axis.broadcast:
                        self.bindings.setdefault(axis.name, Binding(1, argument.name, None))
        for name in broadcast_variadics(self.declaration):
            exact = self.bindings.get(name)
            joined: tuple[int, ...] | None = exact.size if exact else None
            first = exact.where() if exact else None
            seen: list[tuple[int, ...]] = []
            for shape, label, rule in self.loose.get(name, []):
                try:
                    joined = broadcast_shapes(exact.size if exact else None, [*seen, shape])
                    seen.append(shape)
                except Incomputable as error:
                    self.report(
                        Violation(
                            rule=rule,
                            message=f"{label} axes (*{name}) are {shape}: {error}",
                            argument=label,
                            expected=f"axes that broadcast to {joined}",
                            actual=str(shape),
                            origin=f"*{name} is {joined}, from {first}" if first else None,
                        )
                    )
                first = first or label
            if joined is not None:
                self.bindings.setdefault(name, Binding(joined, first or name, None))

    def tensors(self, name: str) -> Iterable[tuple[str, torch.Tensor]]:
        value = self.arguments.get(name)
        if value is None or f"{name}:type" in self.refused_names:
            return ()
        return ((name, value),) if isinstance(value, torch.Tensor) else tensors_in(value, name)

    def misread(self, x: torch.Tensor) -> str | None:
        """`tensors.misread`, asked once of each tensor."""
        known = self.misreads.get(id(x))
        if known is None:  # the tensor is kept, so that no other one takes its id
            known = self.misreads[id(x)] = (x, misread(x))
        return known[1]

    def refused(self, names: frozenset[str]) -> bool:
        """Whether any of these names is already part of a violation."""
        return not names.isdisjoint(self.refused_names)

    def conditions(self, name: str) -> list[expressions.Node]:
        """What the contract's expression rules demand of this name alone."""
        return [
            rule.node
            for rule in self.declaration.rules
            if isinstance(rule, Expression) and rule.names == {name}
        ]


def rule_names(rule: Any) -> frozenset[str]:
    names = getattr(rule, "names", ())
    return frozenset(names) if isinstance(names, frozenset) else frozenset()
