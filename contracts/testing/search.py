"""A small constraint search, deterministic and bounded: values for variables under conditions.

Each variable has a list of values in the order in which they are preferred. Conditions that tie a
variable to others suggest further values (`table_len >= img_len` suggests img_len and its
neighbours), so that a solution need not stand in any list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..expressions import Incomputable, Node, Unbound, evaluate, value_names
from .suggestions import suggestions

BUDGET = 8_000
"""Conditions tried before a search gives up."""

Env = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """Holds or not once every one of `names` has a value; `node` is its text, where it has one."""

    names: frozenset[str]
    holds: Callable[[Env], bool]
    node: Node | None = None


def expression(node: Node, *, negated: bool = False) -> Condition:
    """A condition of the rule language. What cannot be computed does not hold."""

    def holds(env: Env) -> bool:
        try:
            return bool(evaluate(node, env)) is not negated
        except Incomputable:
            return negated
        except Unbound:
            return not negated

    return Condition(value_names(node), holds, node)


class Exhausted(Exception):
    """The budget was spent before the search came to an end."""


def solve(
    domains: Mapping[str, Sequence[Any]], conditions: Sequence[Condition], env: Env
) -> dict[str, Any] | None:
    """The first solution in order of preference, or None where there is none among the values.

    Variables that share no condition are solved apart, so that a dead end of one part never sends
    the search back into another. `env` has what is fixed.
    """
    found = dict(env)
    relevant = [c for c in conditions if not c.names.isdisjoint(domains)]
    settled = [c for c in conditions if c.names.isdisjoint(domains) and c.names <= env.keys()]
    if not all(condition.holds(env) for condition in settled):
        return None
    for part in _components(domains, relevant):
        mine = [c for c in relevant if not c.names.isdisjoint(part)]
        solution = _Search({name: domains[name] for name in part}, mine, env).run()
        if solution is None:
            return None
        found |= solution
    return found


def _components(
    domains: Mapping[str, Sequence[Any]], conditions: Sequence[Condition]
) -> list[list[str]]:
    group = {name: {name} for name in domains}
    for condition in conditions:
        members = set().union(*(group[name] for name in condition.names if name in group))
        for name in members:
            group[name] = members
    seen: set[str] = set()
    parts = []
    for name in domains:
        if name not in seen:
            parts.append([other for other in domains if other in group[name]])
            seen |= group[name]
    return parts


class _Search:
    """Backtracking over one group of variables, the most constrained first."""

    def __init__(
        self, domains: Mapping[str, Sequence[Any]], conditions: list[Condition], env: Env
    ) -> None:
        self.domains = domains
        self.conditions = conditions
        self.env = dict(env)
        self.tried = 0
        degree = {name: sum(name in c.names for c in conditions) for name in domains}
        self.order = sorted(domains, key=lambda name: -degree[name])

    def run(self) -> dict[str, Any] | None:
        return self.extend(0)

    def extend(self, depth: int) -> dict[str, Any] | None:
        if depth == len(self.order):
            return {name: self.env[name] for name in self.order}
        name = self.order[depth]
        open_names = set(self.order[depth + 1 :])
        ready = [c for c in self.conditions if name in c.names and c.names.isdisjoint(open_names)]
        for value in self.values(name, ready):
            self.env[name] = value
            if self.all_hold(ready):
                solution = self.extend(depth + 1)
                if solution is not None:
                    return solution
        self.env.pop(name, None)
        return None

    def all_hold(self, conditions: list[Condition]) -> bool:
        self.tried += len(conditions) or 1
        if self.tried > BUDGET:
            raise Exhausted
        return all(condition.holds(self.env) for condition in conditions)

    def values(self, name: str, ready: list[Condition]) -> Iterator[Any]:
        domain = self.domains[name]
        yield from domain
        if not all(isinstance(value, int) for value in domain):
            return
        self.env.pop(name, None)
        known = dict(self.env)
        seen = set(domain)
        for condition in ready:
            if condition.node is None:
                continue
            for value in suggestions(condition.node, name, known):
                if value not in seen:
                    seen.add(value)
                    yield value
