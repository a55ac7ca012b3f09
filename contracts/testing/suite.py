"""A contract's own tests: legal calls at every boundary, and calls that break one rule each.

Every case was judged by the contract's explaining path when it was made: a legal call breaks
nothing, a broken one breaks exactly its rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..explain import contents_rules
from ..model import Declaration
from ..rules.base import Rule
from ..rules.custom import Custom
from ..rules.expression import Expression, When
from ..rules.tensor import Device
from .cases import Case, Defect, Suite, declared
from .defects import unsatisfiable, why_never
from .edits import HARMLESS, edits
from .filling import settled, unsettled
from .forms import presences
from .plans import Plan
from .problem import Problem, rule_nodes
from .solver import attempt, broken_by, judged
from .suggestions import edges
from .variations import needed_forms, other_forms

ROOMY = (4, 6, 8, 5)
"""Sizes that leave room for a half and for one less."""
PER_RULE = 8
"""Broken calls of one expression rule that a suite keeps."""
SPARE_BASES = 24
"""Legal calls whose edits are tried for what those of the first ones did not break."""


def generate(declaration: Declaration, given: Mapping[str, Any] | None = None) -> Suite:
    """The tests of a contract. `given` fixes arguments for which no value can be made up."""
    return _Generator(declaration, dict(given or {})).run()


@dataclass
class _Generator:
    declaration: Declaration
    given: dict[str, Any]
    legal: dict[str, Case] = field(default_factory=dict)
    broken: dict[tuple[Any, ...], Case] = field(default_factory=dict)
    together: dict[str, set[frozenset[str]]] = field(default_factory=dict)
    """For each id, the sets of ids with which it was seen broken."""

    def run(self) -> Suite:
        bases = self.bases()
        if not self.legal:
            return Suite(self.declaration, (), (unsatisfiable(self.declaration, self.given),))
        fullest = max(bases, key=lambda base: len(base[0].domains))
        barest = min(bases, key=lambda base: len(base[0].domains))
        for text, form in other_forms(self.declaration, fullest[0].form, self.given):
            self.tried(Problem(self.declaration, form, self.given), text, kind=f"form {text}")
        for problem, plan in (fullest, barest) if fullest != barest else (fullest,):
            self.boundaries(problem, plan)
            self.neighbours(self.roomy(problem) or plan)
        self.contents()
        self.insist()
        for case in list(self.legal.values())[:SPARE_BASES]:
            if not self.missing():
                break
            self.neighbours(case.plan, only=self.missing())
        self.without_device()
        return Suite(self.declaration, self.selection(), tuple(self.defects()))

    # -- legal calls

    def bases(self) -> list[tuple[Problem, Plan]]:
        """A call for each set of optional arguments that is legal, with the variants it needs."""
        found = []
        for form in presences(self.declaration):
            for variant in needed_forms(self.declaration, form, self.given):
                problem = Problem(self.declaration, variant, self.given)
                plan = self.tried(problem, form.describe(self.declaration), kind="presence")
                if plan is not None:
                    found.append((problem, plan))
                    break
        return found

    def tried(self, problem: Problem, text: str, *, kind: str) -> Plan | None:
        """A legal call of a form; where an expression rule forbids the form, a call that breaks
        that rule is filed instead."""
        plan = attempt(problem)
        if plan is not None:
            return plan if self.record(plan, text, kind=kind, legal=True) else None
        for rule in self.declaration.rules:
            broken = attempt(problem, broken=rule)
            if broken is not None:
                self.record(broken, text, kind=kind)
        return None

    def roomy(self, problem: Problem) -> Plan | None:
        """The same form with sizes that leave room: computed axes stay larger than 1 as well."""
        prefer = {
            name: ROOMY[index % len(ROOMY) :] + ROOMY[: index % len(ROOMY)]
            for index, name in enumerate(problem.domains)
            if name in self.declaration.axes and name not in self.declaration.names.variadic
        }
        plan = attempt(problem, prefer=prefer)
        legal = plan is not None and self.record(plan, "roomy sizes", kind="size", legal=True)
        return plan if legal else None

    def boundaries(self, problem: Problem, base: Plan) -> None:
        """Sizes at and beside every constant and every comparison, inside and outside."""
        near = {name: [size] for name, size in base.sizes.items()}
        for name, domain in problem.domains.items():
            values = domain
            if name in self.declaration.axes and isinstance(domain[0], int):
                values = [0, 1, *problem.landmarks(name)]
            for value in values:
                plan = attempt(problem, {name: value}, prefer=near)
                if plan is not None:
                    self.record(plan, f"{_axis(name)}={value}", kind="size", legal=True)
        for rule in self.declaration.rules:
            for node in rule_nodes(rule):
                for edge in edges(node):
                    for broken in (None, rule):
                        plan = attempt(problem, prefer=near, broken=broken, also=[edge])
                        if plan is not None:
                            text = self.sizes(problem, rule, plan)
                            self.record(plan, text, kind="edge", legal=broken is None)
            if isinstance(rule, Expression | When | Custom):
                self.break_sizes(problem, rule, near)

    def break_sizes(self, problem: Problem, rule: Rule, near: Mapping[str, list[Any]]) -> None:
        """Calls that break an expression rule, for each value of each of its names."""
        for name in sorted(problem.variables(frozenset(getattr(rule, "names", ())))):
            domain = problem.domains.get(name, ())
            for value in [*problem.landmarks(name), *domain] if _sized(domain) else domain:
                plan = attempt(problem, {name: value}, prefer=near, broken=rule)
                if plan is not None:
                    self.record(plan, self.sizes(problem, rule, plan), kind="size")

    def insist(self) -> None:
        """Rules that neither of the first forms broke, in every other form."""
        for rule in self.declaration.rules:
            if rule.id in self.missing() and isinstance(rule, Expression | When | Custom):
                for form in presences(self.declaration):
                    for variant in needed_forms(self.declaration, form, self.given):
                        problem = Problem(self.declaration, variant, self.given)
                        plan = attempt(problem, broken=rule)
                        if plan is not None:
                            self.record(plan, self.sizes(problem, rule, plan), kind="size")

    def sizes(self, problem: Problem, rule: Rule, plan: Plan) -> str:
        names = sorted(problem.variables(frozenset(getattr(rule, "names", ()))))
        return ", ".join(
            f"{_axis(name)}={plan.sizes[name]}" for name in names if name in plan.sizes
        )

    # -- single edits

    def neighbours(self, plan: Plan, only: frozenset[str] | None = None) -> None:
        for edit in edits(self.declaration, plan):
            self.record(
                edit.plan,
                edit.text,
                kind=edit.kind,
                argument=edit.argument,
                legal=edit.kind in HARMLESS and only is None,
            )

    def record(
        self, plan: Plan, text: str, *, kind: str, argument: str = "", legal: bool = False
    ) -> bool:
        """File a call under what it breaks; whether it breaks nothing."""
        found = judged(self.declaration, plan, self.given)
        ids = frozenset(fault.rule for fault in found)
        if not ids:
            if legal and all(case.plan != plan for case in self.legal.values()):
                self.legal.setdefault(text, Case(text, plan))
            return True
        if len(ids) == 1:
            places = tuple((fault.argument, fault.actual) for fault in found)
            sized = kind in ("size", "edge")
            key = (*ids, text if sized else (kind, argument, places[0][0]))
            self.broken.setdefault(key, Case(text, plan, breaks=next(iter(ids))))
        else:
            for id in ids:
                self.together.setdefault(id, set()).add(ids - {id})
        return False

    def without_device(self) -> None:
        """Rules on addresses, where the device that the contract asks for is not there.

        Fake tensors have no address. The call is made of CPU tensors instead, and is allowed to
        break the device rules too.
        """
        devices = frozenset(r.id for r in self.declaration.rules if isinstance(r, Device))
        pointers = {rule.id for rule in self.declaration.rules if rule.pointers}
        if not devices or not pointers & self.missing():
            return
        for case in list(self.legal.values())[:SPARE_BASES]:
            plan = case.plan.map(lambda tensor: replace(tensor, device="cpu"))
            for edit in edits(self.declaration, plan):
                ids = broken_by(self.declaration, edit.plan, self.given)
                broken = ids - devices
                if len(broken) == 1 and broken <= pointers & self.missing():
                    (id,) = broken
                    self.broken[id, edit.kind] = Case(edit.text, edit.plan, id, ids & devices)

    def contents(self) -> None:
        """Let legal calls hold what the rules on contents allow, and break each of these rules."""
        rules = [rule for _, rule in contents_rules(self.declaration)]
        if not rules:
            return
        plans = {
            text: settled(self.declaration, case.plan, self.given)
            for text, case in self.legal.items()
        }
        if any(plans.values()):
            self.legal = {text: Case(text, plan) for text, plan in plans.items() if plan}
        for rule in rules:
            for case in self.legal.values():
                broken = unsettled(self.declaration, case.plan, rule, self.given)
                for text, plan in islice(broken, PER_RULE):
                    self.broken[rule.id, text] = Case(text, plan, breaks=rule.id, contents=True)
                if rule.id not in self.missing():
                    break

    # -- what came of it

    def missing(self) -> frozenset[str]:
        fired = {case.breaks for case in self.broken.values()}
        return frozenset(declared(self.declaration)) - fired

    def selection(self) -> tuple[Case, ...]:
        """Legal calls, then broken ones in the order of the contract, with distinct names."""
        order = {id: index for index, id in enumerate(declared(self.declaration))}
        kept: dict[str, int] = {}
        chosen = []
        for (_, what), case in self.broken.items():
            assert case.breaks is not None
            kept[case.breaks] = kept.get(case.breaks, 0) + 1
            if not isinstance(what, str) or kept[case.breaks] <= PER_RULE:
                chosen.append(case)
        chosen.sort(key=lambda case: order.get(case.breaks or "", len(order)))
        named: dict[str, Case] = {}
        for case in [*self.legal.values(), *chosen]:
            named.setdefault(case.id, case)
        return tuple(named.values())

    def defects(self) -> Iterator[Defect]:
        """Rules and facts that no call breaks alone."""
        missing = self.missing()
        for id in declared(self.declaration):
            if id in missing:
                yield Defect(id, why_never(self.declaration, id, self.together, self.given))


def _sized(domain: Any) -> bool:
    return bool(domain) and all(isinstance(value, int) for value in domain)


def _axis(name: str) -> str:
    """A variable as a test's name shows it: `q_scale:0` is an axis without a name of its own."""
    return name if ":" not in name else f"shape of {name.partition(':')[0]}"
