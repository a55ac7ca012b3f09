"""hypothesis strategies: random legal calls of a contract, and calls that break one rule each.

hypothesis is an optional dependency; only this module imports it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ..facts import facts
from ..interface import Contract
from ..model import Declaration
from ..rules.base import Rule
from ..spec import ItemsSpec, UnionSpec, tensor_specs
from .cases import Case
from .edits import edits, layouts
from .filling import settled
from .forms import Form, presences
from .making import PREFERRED_DTYPES
from .plans import Plan
from .problem import Problem
from .solver import attempt, broken_by
from .suite import generate

LARGEST = 12
"""Sizes that no rule mentions are drawn up to this."""


class Call(dict[str, Any]):
    """Arguments by name; prints as the code that makes the call.

    `breaks` is the one rule that the call breaks, None for a legal one.
    """

    def __init__(self, declaration: Declaration, plan: Plan, breaks: str | None = None) -> None:
        super().__init__(plan.build())
        self.declaration = declaration
        self.plan = plan
        self.breaks = breaks

    def __repr__(self) -> str:
        name = self.declaration.name.rpartition(".")[2]
        return self.plan.source(name, self.declaration.call_signature)


def calls(contract: Contract, *, given: Mapping[str, Any] | None = None) -> st.SearchStrategy[Call]:
    """Legal calls of a contract, as `fn(**call)` takes them; they shrink to few, small arguments.

    @given(calls(fn.contract))
    def test_fn(call):
        fn(**call)
    """
    source = _Source(contract.declaration, dict(given or {}))
    return source.plans().map(lambda plan: Call(contract.declaration, plan))


def broken_calls(
    contract: Contract, *, given: Mapping[str, Any] | None = None
) -> st.SearchStrategy[Call]:
    """Calls that break exactly one rule, `call.breaks`: any but those on contents, which a call
    breaks only in the modes that read them."""
    source = _Source(contract.declaration, dict(given or {}))
    return source.broken().map(
        lambda case: Call(contract.declaration, case.plan, breaks=case.breaks)
    )


class _Source:
    """Draws the plans of one contract's calls."""

    def __init__(self, declaration: Declaration, given: dict[str, Any]) -> None:
        self.declaration = declaration
        self.given = given
        self.problem = functools.lru_cache(maxsize=256)(self._problem)

    def _problem(self, form: Form) -> Problem:
        return Problem(self.declaration, form, self.given)

    @functools.cached_property
    def legal_forms(self) -> list[Form]:
        """Sets of optional arguments with which some call is legal, the smallest first."""
        found = [
            form
            for form in presences(self.declaration)
            if (plan := attempt(self.problem(form))) is not None and self.is_legal(plan)
        ]
        if not found:
            raise ValueError(f"no legal call of {self.declaration.name} was found")
        return sorted(found, key=lambda form: -len(form.absent))

    @functools.cached_property
    def cases(self) -> dict[str, list[Case]]:
        """The suite's broken calls, by the rule they break."""
        found: dict[str, list[Case]] = {}
        for case in generate(self.declaration, self.given).broken:
            if not (case.besides or case.contents) and case.breaks is not None:
                found.setdefault(case.breaks, []).append(case)
        return found

    def is_legal(self, plan: Plan) -> bool:
        return not broken_by(self.declaration, plan, self.given)

    def forms(self) -> st.SearchStrategy[Form]:
        specs = [argument.inner for argument in self.declaration.arguments]
        optional = [argument.name for argument in self.declaration.arguments if argument.optional]
        allowed = {d for s in specs for t in tensor_specs(s) for d in t.dtypes or PREFERRED_DTYPES}
        dtypes = [dtype for dtype in PREFERRED_DTYPES if dtype in allowed]
        branches = max((len(s.branches) for s in specs if isinstance(s, UnionSpec)), default=1)
        items = any(isinstance(spec, ItemsSpec) for spec in specs)
        present = st.sets(st.sampled_from(optional)) if optional else st.just(set[str]())
        return st.builds(
            lambda present, length, branch, dtype: Form(
                absent=frozenset(optional) - present, length=length, branch=branch, dtype=dtype
            ),
            present,
            st.integers(0, 3) if items else st.just(2),
            st.integers(0, branches - 1),
            st.sampled_from([None, *dtypes]) if len(dtypes) > 1 else st.none(),
        )

    def sizes(self, problem: Problem) -> st.SearchStrategy[dict[str, list[Any]]]:
        """A wish for each variable; the solver keeps those that fit together."""
        wishes = {}
        for name, domain in problem.domains.items():
            if name in self.declaration.axes and all(isinstance(size, int) for size in domain):
                marks = problem.landmarks(name)
                small = st.integers(0, LARGEST)
                wishes[name] = small | st.sampled_from(marks) if marks else small
            else:
                wishes[name] = st.sampled_from(list(domain))
        return st.fixed_dictionaries(wishes).map(
            lambda drawn: {name: [size] for name, size in drawn.items()}
        )

    def plans(self) -> st.SearchStrategy[Plan]:
        @st.composite
        def draw_plan(draw: st.DrawFn) -> Plan:
            form = draw(self.forms())
            plan = self.solved(form, draw(self.sizes(self.problem(form))))
            if plan is None or not self.is_legal(plan):
                fallback = replace(form, absent=draw(st.sampled_from(self.legal_forms)).absent)
                plan = self.solved(fallback, {})
            if plan is None or not self.is_legal(plan):
                plan = self.solved(self.legal_forms[0], {})
            assert plan is not None
            settled_plan = settled(self.declaration, plan, self.given)
            return self.laid_out(draw, settled_plan or plan)

        return draw_plan()

    def solved(self, form: Form, wishes: dict[str, list[Any]]) -> Plan | None:
        return attempt(self.problem(form), prefer=wishes)

    def laid_out(self, draw: st.DrawFn, plan: Plan) -> Plan:
        """The same call with some tensors strided, expanded or misaligned, as far as is legal."""
        for path, tensor in plan.tensors():
            options: list[dict[str, Any]] = [{}, {}, {}, {"offset": 1}]
            options += [{"strides": strides} for _, strides in layouts(tensor.shape)]
            changes = draw(st.sampled_from(options))
            if changes:
                moved = plan.put(path, replace(tensor, **changes))
                if self.is_legal(moved):
                    plan = moved
        return plan

    def broken(self) -> st.SearchStrategy[Case]:
        @st.composite
        def draw_case(draw: st.DrawFn) -> Case:
            target = draw(st.sampled_from(sorted(self.cases)))
            form = draw(self.forms())
            wishes = draw(self.sizes(self.problem(form)))
            for plan in self.attempts(target, form, wishes):
                if broken_by(self.declaration, plan, self.given) == {target}:
                    return Case("drawn", plan, breaks=target)
            return draw(st.sampled_from(self.cases[target]))

        return draw_case()

    def attempts(self, target: str, form: Form, wishes: dict[str, list[Any]]) -> Iterator[Plan]:
        """Calls near the drawn one that may break the target."""
        rule: Rule | None = next((r for r in self.declaration.rules if r.id == target), None)
        if rule is not None:
            plan = attempt(self.problem(form), prefer=wishes, broken=rule)
            if plan is not None:
                yield plan
        plan = self.solved(form, wishes)
        if plan is None:
            return
        about = {fact.argument for fact in facts(self.declaration) if fact.id == target}
        about |= frozenset(getattr(rule, "names", ()))
        for edit in edits(self.declaration, plan):
            if edit.argument in about or not edit.argument:
                yield edit.plan
