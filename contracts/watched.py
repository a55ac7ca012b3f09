"""A contract's rules on contents, handed to whoever watches the device a call runs on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from . import expressions
from .axes import Fixed
from .contents.condition import Unjudgeable, shared_out
from .contents.numbers import Uncomputed, checked, number_of
from .contents.offence import Offence
from .contents.plainly import with_contents
from .contents.promotion import JUDGEABLE
from .contents.watch import Judge, this_thread, watch
from .errors import ContractDefinitionError, ContractError, Violation
from .explain import contents_rules, refusal
from .expressions import Name, Node, Unbound
from .model import Declaration
from .rules.values import Values
from .spec import TensorSpec
from .tensors import dtype_name

_TORCH = str(Path(torch.__file__).parent)
_NOT_THE_USERS = (
    str(Path(__file__).parent),
    _TORCH,
    "<contract ",
    "<eval_with_key>",
)
_COMPILED = "torchinductor"


@dataclass(slots=True)
class WatchedCall:
    """What is kept of a call until its contents are judged: no tensor."""

    watched: Watched
    rules: tuple[int, ...]
    sizes: Mapping[str, Any]
    numbers: Sequence[Any]
    scalars: Mapping[str, Any]
    """Those arguments that a fix names."""
    site: str
    thread: object

    def error(self, found: Sequence[tuple[int, Offence]]) -> ContractError:
        declaration = self.watched.declaration
        conditions = [self.watched.rule(index).resolved for index in self.rules]
        numbers = list(shared_out(conditions, self.numbers))
        violations = [
            self.watched.violation(self.rules[position], offence, self, numbers[position][1])
            for position, offence in found
        ]
        lines = [f"{name} = {size}" for name, size in self.sizes.items()]
        error = refusal(declaration, tuple(violations), lines)
        return ContractError(*error.args_of()[:-1], self.site)


class Watched:
    """The value rules of one contract, ready to judge calls given by position."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self._rules = contents_rules(declaration)
        names = [argument.name for argument in declaration.arguments]
        names = [declaration.receiver, *names] if declaration.receiver else names
        self._positions = {name: position for position, name in enumerate(names)}
        self._needs = [
            [(name, self._positions.get(name)) for name in rule.resolved.names]
            for _, rule in self._rules
        ]
        tensors = {argument.name for argument in declaration.arguments if argument.is_tensor}
        fixes = "".join(rule.fix or "" for _, rule in self._rules)
        self._in_fixes = [name for name in self._positions if f"{{{name}}}" in fixes]
        self._is_settled = (
            not self._in_fixes
            and all(condition is None for condition, _ in self._rules)
            and all(
                position is None or name in tensors
                for needs in self._needs
                for name, position in needs
            )
        )
        """Whether a layout, which has no scalars, decides which rules apply."""
        self.axes = frozenset(declaration.axes).difference(self._positions)
        self._plans: dict[tuple[int, ...], _Plan] = {}

    def __bool__(self) -> bool:
        return bool(self._rules)

    def judge(
        self, values: Sequence[Any], sizes: Mapping[str, Any], notes: dict[Any, Any] | None
    ) -> None:
        """Hand a right call's contents to the observer of its device; returns at once.

        `notes` belong to the call's layout, where that is known; what is judged, and by whom, is
        then found out once. Raises ContractError only where metadata says that a rule cannot be
        judged.
        """
        ready = None if notes is None else notes.get(self)
        if ready is not None:
            try:
                ready.judge(values)
            except Unjudgeable as error:
                raise self._refusal(ready.call.rules, error) from None
            return
        active = tuple(
            index
            for index, needs in enumerate(self._needs)
            if self._is_active(index, needs, values, sizes)
        )
        if not active:
            return
        plan = self._plans.get(active)
        if plan is None:
            plan = self._plans[active] = _Plan(self, active)
        tensors = []
        for position in plan.tensors:
            x = with_contents(values[position])
            if x is None:
                return
            tensors.append(x)
        try:
            numbers = [read(values, sizes) for read in plan.numbers]
            given = ((name, values[self._positions[name]]) for name in self._in_fixes)
            scalars = {name: value for name, value in given if value is not None}
            call = WatchedCall(self, active, sizes, numbers, scalars, call_site(), this_thread())
            judge = plan.judge(tensors[0].device.type)
            judge(tensors, numbers, call, None)
        except Unbound:
            return
        except Unjudgeable as error:
            raise self._refusal(active, error) from None
        if notes is not None and self._is_settled and plan.is_settled:
            notes[self] = _Ready(plan.tensors, numbers, judge, call)

    def _refusal(self, active: Sequence[int], error: Exception) -> ContractError:
        texts = " and ".join(self._rules[index][1].text for index in active)
        rule = self._rules[active[0]][1]
        fault = Violation(rule.id, f"{texts} cannot be judged: {error}", hint=rule.hint)
        return refusal(self.declaration, (fault,), [])

    def _is_active(
        self,
        index: int,
        needs: Sequence[tuple[str, int | None]],
        values: Sequence[Any],
        sizes: Mapping[str, Any],
    ) -> bool:
        for name, position in needs:
            if (sizes.get(name) if position is None else values[position]) is None:
                return False
        condition = self._rules[index][0]
        return condition is None or condition.applies(self.env(values, sizes))

    def env(self, values: Sequence[Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Present arguments and axes, by name."""
        named = {name: values[position] for name, position in self._positions.items()}
        return {**{name: value for name, value in named.items() if value is not None}, **sizes}

    def rule(self, index: int) -> Values:
        return self._rules[index][1]

    def reader(self, node: Node) -> Callable[[Sequence[Any], Mapping[str, Any]], Any]:
        """What reads a number out of a call."""
        if isinstance(node, Name) and not node.path:
            name, position = node.id, self._positions.get(node.id)
            if position is None:
                return lambda values, sizes: sizes[name]
            return lambda values, sizes: checked(node, values[position])
        return lambda values, sizes: number_of(node, self.env(values, sizes))

    def violation(
        self, index: int, offence: Offence, call: WatchedCall, numbers: Sequence[Any]
    ) -> Violation:
        condition, rule = self._rules[index]
        facts = [
            f"{expressions.to_text(node)} is {number}"
            for node, number in zip(rule.resolved.numbers, numbers, strict=True)
            if not isinstance(number, Uncomputed)
        ]
        env = {**call.scalars, **call.sizes}
        fault = rule.broken(offence, facts, env)
        note = self.declaration.note(fault.rule)
        fault = fault if note is None else note.annotate(fault, env)
        return fault if condition is None else condition.qualified(fault)


class _Plan:
    """Those rules that apply to a kind of call, and what they read."""

    def __init__(self, watched: Watched, active: tuple[int, ...]) -> None:
        conditions = tuple(watched.rule(index).resolved for index in active)
        names = dict.fromkeys(name for each in conditions for name in each.tensors)
        self.conditions = conditions
        self.tensors = [watched._positions[name] for name in names]
        nodes = [node for each in conditions for node in each.numbers]
        self.numbers = [watched.reader(node) for node in nodes]
        self.is_settled = all(isinstance(n, Name) and n.id in watched.axes for n in nodes)
        """Whether the numbers are sizes of axes, which a layout decides."""
        self._judges: dict[str, Judge] = {}

    def judge(self, device_type: str) -> Judge:
        judge = self._judges.get(device_type)
        if judge is None:
            judge = watch.observer(device_type).judge_of(self.conditions)
            self._judges[device_type] = judge
        return judge


@dataclass(slots=True)
class _Ready:
    """How calls of one layout are judged."""

    tensors: Sequence[int]
    numbers: Sequence[Any]
    judges: Judge
    call: WatchedCall
    """The last one: the next is mostly made in the same place."""
    memory: dict[Any, Any] = field(default_factory=dict)
    """The observer's own."""

    def judge(self, values: Sequence[Any]) -> None:
        call, site, thread = self.call, call_site(), this_thread()
        if call.site is not site or call.thread is not thread:
            call = replace(call, site=site, thread=thread)
            self.call = call
        self.judges(
            [values[position] for position in self.tensors], self.numbers, call, self.memory
        )


def check_contents(declaration: Declaration) -> None:
    """ContractDefinitionError where annotations say that no call could be judged."""
    for _, rule in contents_rules(declaration):
        what = f"in values({rule.text!r})"
        sizes: dict[int, tuple[int, str]] = {}
        for name in rule.resolved.tensors:
            spec = declaration.argument(name).inner
            if not isinstance(spec, TensorSpec):
                continue
            if spec.dtypes and all(dtype.is_complex for dtype in spec.dtypes):
                raise ContractDefinitionError(
                    f"{name!r} is complex, and its elements have no order, {what}"
                )
            if spec.dtypes and JUDGEABLE.isdisjoint(spec.dtypes):
                dtypes = " or ".join(sorted(map(dtype_name, spec.dtypes)))
                raise ContractDefinitionError(
                    f"{name!r} is {dtypes}, which nothing here computes with, {what}"
                )
            if spec.shape.variadic is not None:
                continue
            for place, axis in enumerate(reversed(spec.shape.axes)):
                if isinstance(axis, Fixed) and axis.size != 1 and not axis.broadcast:
                    size, other = sizes.setdefault(place, (axis.size, name))
                    if size != axis.size:
                        raise ContractDefinitionError(
                            f"{other!r} and {name!r} do not broadcast: sizes {size} and "
                            f"{axis.size}, {what}"
                        )


def call_site() -> str:
    """Where the user's code made the call: the nearest frame outside this package, torch, and
    generated code. A compiled graph is called as a whole, and has one such place for all of it.

    The same text for the same place: calls are kept until they are judged, a thousand of them."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame.f_lineno == frame.f_code.co_firstlineno:
        frame = _past_graphs(frame)
    return _place(frame.f_code.co_filename, frame.f_lineno)


def _past_graphs(frame: FrameType) -> FrameType:
    """Past what Dynamo made of a function: a frame that keeps to the line of its definition, called
    by torch."""
    caller = frame.f_back
    if caller is None or not caller.f_code.co_filename.startswith(_TORCH):
        return frame
    while caller.f_back is not None and not _is_users(caller.f_code.co_filename):
        caller = caller.f_back
    return caller


@functools.lru_cache(1024)
def _is_users(filename: str) -> bool:
    return not filename.startswith(_NOT_THE_USERS) and _COMPILED not in filename


@functools.lru_cache(1024)
def _place(filename: str, line: int) -> str:
    return f"{filename}:{line}"
