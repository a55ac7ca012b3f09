"""One generated call, put to the test: does every path of a contract give the verdict it should?"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import enforce, explain, modes
from ..errors import ContractError
from ..reference import reference
from . import coverage
from .cases import Case, Defect
from .subjects import Subject, subject

SHOWN = 3
"""Failures that an assertion spells out before it only counts."""


@dataclass(frozen=True)
class Trial:
    """One generated call of one function: what the tests are handed as `contract_case`."""

    subject: Subject
    case: Case | Defect

    @property
    def id(self) -> str:
        return self.case.id

    @property
    def breaks(self) -> str | None:
        """The one rule that the call breaks; None for a legal call."""
        return self._call.breaks

    @property
    def legal(self) -> bool:
        return isinstance(self.case, Case) and self.case.breaks is None

    @property
    def arguments(self) -> dict[str, Any]:
        """Fresh arguments by name."""
        return self._call.plan.build()

    @property
    def source(self) -> str:
        """Python that makes the same call, ready to be pasted."""
        declaration = self.subject.contract.declaration
        module, _, name = (reference(self.subject.function) or "").partition(":")
        name = name or declaration.name.rpartition(".")[2]
        importable = module and not module.endswith(".py") and module != "__main__"
        return self._call.plan.source(
            name, declaration.call_signature, module=module if importable else None
        )

    @property
    def _call(self) -> Case:
        if isinstance(self.case, Defect):
            raise AssertionError(self.case.reason)
        return self.case

    def check(self) -> None:
        """AssertionError unless the call is judged as it should be, by every path alike: the
        explaining one, the generated check, the wrapper that callers meet, the same on fake
        tensors, and debug mode where contents are at stake."""
        wrong = self.failures()
        call, name = self._call, self.subject.contract.name
        if wrong:
            verdict = f"break {_list(self._expected)} alone" if call.breaks else "be accepted"
            paths = "\n".join(f"  {line}" for line in wrong)
            raise AssertionError(
                f"{name}, {self.id}\nthe call has to {verdict}, but\n{paths}\n\n{self.source}"
            )
        session = coverage.current.get()
        if session is not None:
            self.subject.declare()
            session.saw(name, {call.breaks} if call.breaks else ())

    def failures(self) -> list[str]:
        """Which paths judge the call otherwise than they should."""
        metadata = frozenset[str]() if self._call.contents else self._expected
        with warnings.catch_warnings():
            # torch warns that a fake tensor's address says nothing; rules on addresses know that.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            return [*self._disagreements(metadata), *self._in_debug(self._expected)]

    @property
    def _expected(self) -> frozenset[str]:
        call = self._call
        return call.besides | {call.breaks} if call.breaks else frozenset()

    def _disagreements(self, expected: frozenset[str]) -> Iterator[str]:
        contract, plan = self.subject.contract, self._call.plan
        arguments = plan.build(filled=False)
        values = self._values(arguments)
        explained = _ids(explain.violations(contract.declaration, contract.named(values)))
        if explained != expected:
            yield f"the explaining path finds {_list(explained)}"
        # New to the check, then learnt, then known: it has to say the same each time.
        passes, *again = (contract.passes(*values) for _ in range(3))
        if again != [passes, passes]:
            yield "the generated check changes its mind when the call is made again"
        # It may refuse what has no address, for the explaining path to accept.
        excused = not expected and self._reads_addresses and not plan.has_memory
        if passes is not (not expected) and not excused:
            yield f"the generated check {'accepts' if passes else 'refuses'} it"
        raised = self._raised(arguments)
        if raised != expected:
            yield f"calling it {f'raises {_list(raised)}' if raised else 'raises nothing'}"
        yield from self._by_op(arguments, expected)
        if not plan.fake:
            yield from self._on_fake_tensors(expected)

    def _by_op(self, arguments: Mapping[str, Any], expected: frozenset[str]) -> Iterator[str]:
        """An operation explains a call without running it, and judges it as its contract does."""
        explained = getattr(self.subject.function, "explain", None)
        if explained is None:
            return
        error = explained(**arguments).error
        found = _ids(error.violations) if error is not None else frozenset[str]()
        if found != expected:
            yield f"explain() finds {_list(found)}"

    def _in_debug(self, expected: frozenset[str]) -> Iterator[str]:
        """Where metadata is right, or contents alone are wrong, the mode that reads them."""
        contract, plan = self.subject.contract, self._call.plan
        if plan.fake or not (self.legal or self._call.contents):
            return
        try:
            enforce.judge(contract, self._values(plan.build()), modes.DEBUG)
            raised = frozenset[str]()
        except ContractError as error:
            raised = _ids(error.violations)
        if raised != expected:
            yield f"in debug mode it {f'raises {_list(raised)}' if raised else 'raises nothing'}"

    def _on_fake_tensors(self, expected: frozenset[str]) -> Iterator[str]:
        contract = self.subject.contract
        values = self._values(self._call.plan.build(fake=True))
        imagined = _ids(explain.violations(contract.declaration, contract.named(values)))
        accepted = contract.passes(*values) or not imagined
        addresses = {rule.id for rule in contract.rules if rule.pointers}
        if imagined - addresses != expected - addresses:
            yield f"on fake tensors the explaining path finds {_list(imagined)}"
        if accepted is bool(imagined):
            yield f"on fake tensors the generated check {'accepts' if accepted else 'refuses'} it"

    @property
    def _reads_addresses(self) -> bool:
        return any(rule.pointers for rule in self.subject.contract.rules)

    def _values(self, arguments: Mapping[str, Any]) -> list[Any]:
        """By position, as the checks take them."""
        declaration = self.subject.contract.declaration
        values = [arguments[argument.name] for argument in declaration.arguments]
        receiver = declaration.receiver
        return [self.subject.fixed.get(receiver), *values] if receiver is not None else values

    def _raised(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """What calling raises. A broken call goes to the function itself, whose body it must not
        reach; a legal one to the contract's own wrapper, since nothing says what a body may do."""
        declaration = self.subject.contract.declaration
        receiver = declaration.receiver
        function = self.subject.guarded
        signature, given = declaration.signature, dict(arguments)
        if self.breaks and not self._call.contents and self.subject.refuses_by_itself:
            function, signature = self.subject.function, declaration.call_signature
        elif receiver is not None:
            given[receiver] = self.subject.fixed.get(receiver)
        bound = inspect.BoundArguments(
            signature, {name: given[name] for name in signature.parameters}
        )
        try:
            with modes.mode(modes.STATIC):
                function(*bound.args, **bound.kwargs)
        except ContractError as error:
            return _ids(error.violations)
        return frozenset()


def trials(subject: Subject) -> Iterator[Trial]:
    """Every generated call, then what is wrong with the contract itself."""
    cases: list[Case | Defect] = [*subject.suite.cases, *subject.suite.defects]
    for case in cases:
        yield Trial(subject, case)


def assert_contract(function: Any, *, given: Mapping[str, Any] | None = None) -> None:
    """Every generated call of a function is judged as its contract says, by every path alike.

    Legal calls at every boundary are accepted; each rule and each fact of an annotation is broken
    alone by some call, which is refused by exactly that rule. The function's body never runs.

    Args:
        function: anything with a `.contract`, a bound method included.
        given: values for arguments of types that nothing here can make up.

    Raises:
        AssertionError: what went wrong, with the calls as code; also where no call is legal, or
            where a rule can never be broken alone.

    Example:
        >>> import torch
        >>> from jaxtyping import Float32
        >>> from contracts import contract
        >>> from contracts.testing import assert_contract
        >>> @contract("head_dim % 2 == 0")
        ... def rotate(x: Float32[torch.Tensor, "seq_len head_dim"]): ...
        >>> assert_contract(rotate)
    """
    tested = subject(function, given)
    tested.declare()
    failures = []
    count = 0
    for trial in trials(tested):
        count += 1
        try:
            trial.check()
        except AssertionError as failure:
            failures.append(str(failure))
    if failures:
        shown = "\n\n".join(failures[:SHOWN])
        more = f"\n\nand {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
        raise AssertionError(f"{len(failures)} of {count} generated cases fail\n\n{shown}{more}")


def _ids(violations: Any) -> frozenset[str]:
    return frozenset(violation.rule for violation in violations)


def _list(ids: frozenset[str]) -> str:
    return ", ".join(sorted(ids)) or "nothing"
