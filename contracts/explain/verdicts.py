"""Questions about a call, and the error that answers them."""

from __future__ import annotations

from typing import Any

from ..errors import ContractError, Violation
from ..model import Declaration
from ..reference import explain_command
from ..rules.expression import When
from ..rules.values import Values
from ..tensors import describe
from .judgement import Judgement, rule_names
from .places import Binding


def judged(declaration: Declaration, arguments: dict[str, Any]) -> Judgement:
    """A call, given by argument name, against its whole declaration."""
    judgement = Judgement(arguments, declaration=declaration)
    judgement.run()
    return judgement


def violations(declaration: Declaration, arguments: dict[str, Any]) -> tuple[Violation, ...]:
    """Every broken rule of a call, given by argument name; empty where the call is right."""
    return tuple(judged(declaration, arguments).found)


def violations_of_contents(
    declaration: Declaration, arguments: dict[str, Any]
) -> tuple[Violation, ...]:
    """The broken rules on contents, of a call that breaks no other. Reads tensors, and waits."""
    judgement = judged(declaration, arguments)
    judgement.found.clear()
    for condition, rule in contents_rules(declaration):
        if condition is None or condition.applies(judgement.env):
            for fault in rule.judge_contents(judgement):
                judgement.report(fault if condition is None else condition.qualified(fault))
    return tuple(judgement.found)


def contents_rules(declaration: Declaration) -> list[tuple[When | None, Values]]:
    """The rules on contents, each with the condition that it stands under."""
    found: list[tuple[When | None, Values]] = []
    for rule in declaration.rules:
        if isinstance(rule, Values):
            found.append((None, rule))
        elif isinstance(rule, When) and isinstance(rule.rule, Values):
            found.append((rule, rule.rule))
    return found


def violations_of_result(
    declaration: Declaration, arguments: dict[str, Any], result: Any
) -> tuple[Violation, ...]:
    """Where a result differs from the return annotation, given the call that made it."""
    judgement = judged(declaration, arguments)
    judgement.found.clear()
    for fault in (
        *judgement.match(declaration.returns, result, "return", "return"),
        *judgement.computed(declaration.returns, result, "return"),
    ):
        judgement.report(fault)
    return tuple(judgement.found)


def sizes(declaration: Declaration, arguments: dict[str, Any]) -> dict[str, Any]:
    """The axis sizes of a call, as far as they can be known."""
    judgement = judged(declaration, arguments)
    return {name: bound.size for name, bound in judgement.bindings.items()}


def error(declaration: Declaration, arguments: dict[str, Any]) -> ContractError | None:
    """The error for a call, or None where the call is right."""
    found = violations(declaration, arguments)
    return refusal_of(declaration, arguments, found) if found else None


def refusal_of(
    declaration: Declaration, arguments: dict[str, Any], found: tuple[Violation, ...]
) -> ContractError:
    """The error for violations of a call, with a line about each argument."""
    shown = {name: arguments[name] for name in arguments if name != declaration.receiver}
    width = max(map(len, shown), default=0)
    lines = [f"{name:<{width}}  {describe(value)}" for name, value in shown.items()]
    return refusal(declaration, found, lines)


def refusal(
    declaration: Declaration, found: tuple[Violation, ...], lines: list[str]
) -> ContractError:
    """The error for violations that were found, with the command that tells more."""
    command = explain_command(declaration.function, found[0].rule)
    return ContractError(declaration.name, found, lines, command)


def violations_of_sizes(declaration: Declaration, sizes: dict[str, Any]) -> tuple[Violation, ...]:
    """The broken rules among those that need nothing but these axes and scalar arguments."""
    judgement = Judgement({}, declaration=declaration)
    judgement.bindings = {name: Binding(size, name, None) for name, size in sizes.items()}
    given = frozenset(sizes)
    for rule in declaration.rules:
        if rule_names(rule) and rule_names(rule) <= given:
            judgement.found += list(rule.judge(judgement))
    return tuple(judgement.found)
