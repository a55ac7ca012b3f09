"""What the author of a contract adds to a fact that an annotation states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import ContractDefinitionError, Violation
from .base import format_fix


@dataclass(frozen=True)
class About:
    """Advice on annotation facts; it demands nothing of a call. See `about`."""

    facts: tuple[str, ...]
    hint: str | None = None
    fix: str | None = None
    note: str | None = None
    upstream: tuple[str, ...] = ()

    def annotate(self, fault: Violation, env: dict[str, Any]) -> Violation:
        """The violation of one of these facts, with the advice that it does not have yet."""
        fix = fault.fix
        if fix is None and self.fix is not None:
            fix = format_fix(self.fix, env)
        return replace(fault, hint=fault.hint or self.hint, fix=fix)


def about(
    *facts: str,
    hint: str | None = None,
    fix: str | None = None,
    note: str | None = None,
    upstream: tuple[str, ...] = (),
) -> About:
    """Advice on what annotations state, by the ids that violations carry.

    An annotation has no place for a hint; this is it, among the rules of a contract:

        about("kv-d_qk", hint="allocate the cache with the width that the queries have")

    Args:
        facts: ids such as `kv-d_qk`, `kv-dtype`, `kv-rank`; ContractDefinitionError at decoration
            where the contract has no such fact.
        hint, fix, note, upstream: as for every rule; see `Rule`. The hint and the fix also stand
            in the violation, unless the fact has a fix of its own.
    """
    if not facts:
        raise ContractDefinitionError("about: name at least one fact, such as 'kv-d_qk'")
    return About(facts, hint, fix, note, upstream)
