"""What goes wrong, as data first and text second. Imports nothing of this package.

Three culprits, three classes: the caller (`ContractError`), the author of a contract
(`ContractDefinitionError`), and, in `backends`, the machine (`NoBackendError`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

SHOWN = 8  # violations that the text spells out before it only counts


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule of one call.

    `rule` is the rule's id, unique within its contract. `argument` is the argument as the caller
    can write it (`img_k`, `feats[1]`) and `axis` its axis, where the rule is about one. `expected`
    and `actual` are plain text; `origin` says where the expectation comes from ("num_heads is 24,
    from img_q axis 2"). `fix` is one line of Python over the arguments' names, present only where
    it is certain; `hint` is what the author of the contract adds.
    """

    rule: str
    message: str
    argument: str | None = None
    axis: int | None = None
    expected: str | None = None
    actual: str | None = None
    origin: str | None = None
    fix: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        lines = [self.message if self.origin is None else f"{self.message}: {self.origin}"]
        if self.fix is not None:
            lines.append(f"  fix: {self.fix}")
        if self.hint is not None:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class ContractDefinitionError(TypeError):
    """The contract itself is wrong: raised where it is declared, never at a call."""


class ContractError(ValueError):
    """A call broke its contract. Nothing was allocated, launched or overwritten.

    Attributes:
        function: qualified name of the function or op that refused.
        violations: every broken rule, in the order of the contract.
        arguments: one line of metadata (dtype, shape, strides, device) per argument.
        explain: the command that tells more about the first broken rule.
        site: file and line of the call, where the error is raised at another place: contents
            that were judged without waiting.
    """

    function: str
    violations: tuple[Violation, ...]
    arguments: tuple[str, ...]
    explain: str | None
    site: str | None

    def __init__(
        self,
        function: str,
        violations: Iterable[Violation],
        arguments: Iterable[str] = (),
        explain: str | None = None,
        site: str | None = None,
    ) -> None:
        self.function = function
        self.violations = tuple(violations)
        self.arguments = tuple(arguments)
        self.explain = explain
        self.site = site
        super().__init__(_text(function, self.violations, self.arguments, explain, site))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args_of()

    def args_of(self) -> tuple[str, tuple[Violation, ...], tuple[str, ...], str | None, str | None]:
        """What another error is made from, to say the same."""
        return self.function, self.violations, self.arguments, self.explain, self.site

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, ready for JSON."""
        return {
            "error": type(self).__name__,
            "function": self.function,
            "violations": [asdict(violation) for violation in self.violations],
            "arguments": list(self.arguments),
            "explain": self.explain,
            "site": self.site,
        }

    def _repr_html_(self) -> str:
        """A compact table, for notebooks."""
        return _html(self)


def _text(
    function: str,
    violations: tuple[Violation, ...],
    arguments: tuple[str, ...],
    explain: str | None,
    site: str | None,
) -> str:
    count = len(violations)
    call = "this call" if site is None else f"the call at {site}"
    lines = [f"{function} refused {call}: {count} rule{'s' if count != 1 else ''} broken"]
    for violation in violations[:SHOWN]:
        first, *rest = str(violation).splitlines()
        lines.append(f"- [{violation.rule}] {first}")
        lines.extend(f"  {line}" for line in rest)
    if count > SHOWN:
        lines.append(f"- and {count - SHOWN} more")
    if arguments:
        lines.append("got:")
        lines.extend(f"  {line}" for line in arguments)
    if explain is not None:
        lines.append(f"explain: {explain}")
    return "\n".join(lines)


def _html(error: ContractError) -> str:
    rows = []
    for violation in error.violations:
        mends = [f"<code>{escape(violation.fix)}</code>"] if violation.fix else []
        mends += [escape(violation.hint)] if violation.hint else []
        first = str(violation).splitlines()[0]
        rows.append(
            f"<tr><td><code>{escape(violation.rule)}</code></td><td>{escape(first)}</td>"
            f"<td>{'<br>'.join(mends)}</td></tr>"
        )
    got = escape("\n".join(error.arguments))
    more = f"<p>explain: <code>{escape(error.explain)}</code></p>" if error.explain else ""
    return (
        f"<p><b>{escape(error.function)}</b> refused this call</p>"
        "<table><thead><tr><th>rule</th><th>what is wrong</th><th>how to mend it</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
        + (f"<details><summary>arguments</summary><pre>{got}</pre></details>" if got else "")
        + more
    )


def raise_any(error: Exception | None) -> None:
    """Raise an error, if there is one, and hold it no longer: its traceback holds the frame that
    raises, and with it, until the cycle collector comes round, the tensors of the call."""
    if error is not None:
        try:
            raise error from None
        finally:
            del error
