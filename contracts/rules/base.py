"""The base of all rules, and what a rule may see.

Every rule is a frozen object that can do three things: `resolve` itself against a function's
arguments when the contract is declared, `emit` straight-line tests for the generated check, and
`judge` a refused call to say what is broken. The last two must agree; the tests hold them to it.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ..errors import ContractDefinitionError, Violation
from ..expressions import Node


@dataclass(frozen=True)
class Names:
    """What the rules of one contract may name."""

    tensors: tuple[str, ...]
    """Arguments that are tensors or hold some, in the order of the signature."""
    single: frozenset[str]
    """Those of `tensors` that are one tensor, not a container of them."""
    arguments: frozenset[str]
    optional: frozenset[str]
    """Arguments that may be None."""
    flags: frozenset[str]
    """Arguments that are a bool: conditions by themselves."""
    axes: frozenset[str]
    unsure: frozenset[str]
    """Axes that some legal calls leave without a size."""
    variadic: frozenset[str]

    @property
    def numbers(self) -> frozenset[str]:
        """Axes, and arguments that are no tensors: what a fix may name."""
        return (self.arguments - frozenset(self.tensors)) | self.axes | self.variadic


class Code(Protocol):
    """What a rule may write into the generated check. A failed test makes the check answer no."""

    def name(self, name: str) -> str: ...
    def constant(self, value: Any, hint: str) -> str: ...
    def require(self, condition: str) -> None: ...
    def line(self, text: str) -> None: ...
    def local(self, hint: str) -> str: ...
    def block(self, header: str) -> AbstractContextManager[None]: ...
    def present(self, *names: str) -> AbstractContextManager[None]: ...
    def each(self, name: str) -> AbstractContextManager[str]: ...
    def conditional(self, name: str) -> bool: ...
    def container(self, name: str) -> bool: ...
    def require_strided(self, name: str, x: str) -> None: ...

    anchor: str
    """A tensor that is there: in `emit_kinds`, the one to compare the others with."""

    def unsettled(self, rule: Rule, names: tuple[str, ...]) -> tuple[str, ...]: ...
    def tracing(self) -> str: ...
    def dense(self, name: str, x: str) -> str: ...
    def address(self, name: str) -> str: ...
    def reach(self, name: str) -> str | None: ...
    def bind_reach(self, name: str) -> str: ...
    def known_strided(self, name: str) -> bool: ...
    def known_contiguous(self, name: str) -> bool: ...
    def note_contiguous(self, name: str) -> None: ...
    def dense_bytes(self, name: str) -> str: ...


class Call(Protocol):
    """A refused call, as a rule that judges it sees it."""

    @property
    def env(self) -> dict[str, Any]:
        """Axis sizes, and the arguments that are present."""
        ...

    def tensors(self, name: str) -> Iterable[tuple[str, torch.Tensor]]: ...
    def misread(self, x: torch.Tensor) -> str | None: ...
    def origin(self, name: str) -> str | None: ...
    def refused(self, names: frozenset[str]) -> bool: ...
    def conditions(self, name: str) -> list[Node]:
        """What the contract's expression rules demand of this name alone."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Base of all rules.

    Args:
        id: stable name within the contract; by default the rule's own text.
        hint: a sentence for the caller who breaks the rule.
        fix: one line of Python that mends the call. `{name}` gives an axis or scalar argument,
            and in expression rules over one axis `{nearest}` gives the closest larger size that
            is legal and `{extra}` how much larger that is.
        note: the situation in which it happens, for the catalogue.
        upstream: messages by which other libraries report the same fault; `(.+?)` stands for what
            varies in them, everything else is literal.
    """

    id: str = ""
    hint: str | None = None
    fix: str | None = None
    note: str | None = None
    upstream: tuple[str, ...] = ()

    pointers = False
    """Whether the rule reads addresses, which fake tensors and traced graphs do not have."""
    opaque = True
    """Whether only the rule itself knows what its verdict depends on, so that it is asked in every
    call: but for addresses, that of others follows from kinds, sizes, strides and scalars."""
    tangents = False
    """Whether the rule is on tangents of forward-mode AD, which show in no kind and no layout."""
    values = False
    """Whether the rule reads tensor contents, which only some modes do."""

    @property
    def text(self) -> str:
        """What the rule demands, in the shortest form that is still exact."""
        raise NotImplementedError

    def resolve(self, names: Names) -> Rule:
        """The rule with its defaults filled in; ContractDefinitionError where a name is unknown."""
        raise NotImplementedError

    def emit(self, code: Code) -> None:
        """Write the rule's tests, but for what `emit_kinds` has settled."""
        raise NotImplementedError

    def emit_kinds(self, code: Code, names: list[str]) -> set[str]:
        """Write the tests on these tensors that depend on nothing but their kinds: type, dtype,
        device, dispatch keys, `requires_grad`. Returns the tensors that need no more tests."""
        return set()

    def emit_layout(self, code: Code) -> None:
        """Write those tests of a rule on addresses that need none."""

    def emit_reaches(self, code: Code) -> None:
        """Write what a rule on addresses computes from sizes and strides alone."""

    def emit_tangents(self, code: Code) -> None:
        """Write the tests on tangents; they stand where forward-mode AD is at work."""

    def judge(self, call: Call) -> Iterator[Violation]:
        raise NotImplementedError

    def check_fix(self, names: Names) -> None:
        """ContractDefinitionError where the fix could not be filled in."""
        if self.fix is not None:
            check_fix(self.fix, names.numbers, self.text)

    def identified(self) -> Rule:
        return self if self.id else replace(self, id=self.text.replace(" ", ""))

    def violation(self, call: Call, message: str, **details: Any) -> Violation:
        if self.fix is not None:
            details["fix"] = format_fix(self.fix, call.env)
        return Violation(rule=self.id, message=message, hint=self.hint, **details)


def check_fix(template: str, names: frozenset[str], text: str) -> None:
    """ContractDefinitionError where a fix has more in its braces than one of these names."""
    what = f"the fix {template!r} of {text!r}"
    try:
        fields = [field[1:] for field in string.Formatter().parse(template) if field[1] is not None]
    except ValueError as error:
        raise ContractDefinitionError(f"{what} cannot be read: {error}") from None
    for name, spec, conversion in fields:
        if name not in names or spec or conversion:
            whole = f"{name}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}"
            raise ContractDefinitionError(
                f"{what} has {{{whole}}}, which is neither an axis nor an argument without "
                "tensors; braces that are meant are doubled"
            )


def format_fix(template: str, env: dict[str, Any]) -> str | None:
    try:
        return template.format_map(env)
    except KeyError:
        return None
