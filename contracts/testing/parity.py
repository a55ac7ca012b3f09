"""Every backend of an operation against its reference, over the operation's own cases.

What an operation has to offer: `op.backends`, names by falling priority; `op.explain(**call)`,
whose `answers` give each backend's `reasons` against a call; `op(**call, backend=name)`; and
`op.reference(**call)`. What its folder offers stands in `cases.py` beside the operation:

- `CASES`: each has a `name`, and `build(device)` makes fresh inputs, whose `arguments` are a call.
- `TOLERANCES`: a `Tolerance` for each backend; one that is missing has to match bit for bit.
- `disagreements(case, inputs, results, backend)`, optional, in place of `TOLERANCES`: what is wrong
  with some results, as lines of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch

from ..tensors import each_tensor

REFERENCE = "reference"


class Inputs(Protocol):
    """Fresh inputs of one case."""

    @property
    def arguments(self) -> Mapping[str, Any]: ...


class Case(Protocol):
    """A named call of an operation."""

    @property
    def name(self) -> str: ...
    def build(self, device: str) -> Any: ...


@dataclass(frozen=True)
class Tolerance:
    """How far results may be from the reference's.

    Each result's `||actual - expected||` may be `absolute + relative * ||expected||`, over its
    finite elements in float64; the others have to be the same. With both 0 every bit has to be.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def mismatches(self, actual: Any, expected: Any) -> Iterator[str]:
        """What is wrong with some results; nothing where they hold."""
        pairs = list(zip(each_tensor(_nested(actual)), each_tensor(_nested(expected)), strict=True))
        for index, (mine, theirs) in enumerate(pairs):
            which = f"result {index}" if len(pairs) > 1 else "the result"
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                yield (
                    f"{which} is {mine.dtype}{list(mine.shape)}, not "
                    f"{theirs.dtype}{list(theirs.shape)}"
                )
            elif self == Tolerance():
                if not _same_bits(mine, theirs):
                    yield f"{which} differs from the reference's bits"
            else:
                yield from self._far(which, mine.double(), theirs.double())

    def _far(self, which: str, mine: torch.Tensor, theirs: torch.Tensor) -> Iterator[str]:
        finite = theirs.isfinite()
        odd, expected = mine[~finite].nan_to_num(), theirs[~finite].nan_to_num()
        if not torch.equal(odd, expected) or not bool(mine[finite].isfinite().all()):
            yield f"{which} is not finite in the same places as the reference's"
            return
        error = float((mine - theirs)[finite].norm())
        allowed = self.absolute + self.relative * float(theirs[finite].norm())
        if not error <= allowed:
            yield f"{which} is off by {error:.2e}, {allowed:.2e} allowed"


@dataclass(frozen=True)
class OpCases:
    """The cases of one operation, and how its results are judged."""

    op: Any
    cases: Sequence[Case]
    disagreements: Callable[[Any, Any, Any, str], Iterator[str]]

    def trials(self, backend: str | None = None) -> Iterator[ParityTrial]:
        """Every case on every backend but the reference, or on the demanded one alone."""
        backends = [name for name in self.op.backends if name != REFERENCE]
        for name in [backend] if backend is not None else backends:
            for case in self.cases:
                yield ParityTrial(self, case, name)


@dataclass(frozen=True)
class ParityTrial:
    """One case on one backend: what the tests are handed as `parity_case`."""

    of: OpCases
    case: Case
    backend: str

    @property
    def id(self) -> str:
        return f"{self.backend}: {self.case.name}"

    def refusals(self, device: str | None = None) -> tuple[str, ...]:
        """The backend's own reasons against this case on this machine; none where it serves it."""
        op = self.of.op
        if self.backend not in op.backends:
            return (f"{op.__name__} has no backend {self.backend}: {', '.join(op.backends)}",)
        inputs = self.case.build(device or default_device())
        report = op.explain(**inputs.arguments, backend=self.backend)
        if report.error is not None:
            raise AssertionError(f"{self.id} is no legal call\n{report.error}")
        (answer,) = (answer for answer in report.answers if answer.backend == self.backend)
        return tuple(str(reason).splitlines()[0] for reason in answer.reasons)

    def check(self, device: str | None = None) -> None:
        """AssertionError unless the results hold; the backend has to serve the case."""
        inputs = self.case.build(device or default_device())
        results = self.of.op(**inputs.arguments, backend=self.backend)
        wrong = list(self.of.disagreements(self.case, inputs, results, self.backend))
        if wrong:
            lines = "\n".join(f"  {line}" for line in wrong)
            raise AssertionError(f"{self.of.op.__name__}, {self.id}\n{lines}")


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def op_cases(op: Any) -> OpCases:
    """The cases that stand beside an operation, in the module `cases` of its package."""
    module = import_module(f"{op.__module__.rpartition('.')[0]}.cases")
    if hasattr(module, "disagreements"):
        return OpCases(op, tuple(module.CASES), module.disagreements)
    tolerances: Mapping[str, Tolerance] = getattr(module, "TOLERANCES", {})

    def disagreements(case: Any, inputs: Any, results: Any, backend: str) -> Iterator[str]:
        expected = op.reference(**inputs.arguments)
        return tolerances.get(backend, Tolerance()).mismatches(results, expected)

    return OpCases(op, tuple(module.CASES), disagreements)


def assert_parity(op: Any, *, backend: str | None = None, device: str | None = None) -> None:
    """Every backend of an operation that serves a case agrees with the reference on it.

    Args:
        op: an operation; see this module for what it and its `cases.py` offer.
        backend: the only one to try; every one but the reference by default.
        device: where the cases are built: the first CUDA device, or the CPU where there is none.

    Raises:
        AssertionError: some results are wrong, or no backend served any case: with its reasons.
    """
    failures, reasons, ran = [], {}, 0
    for trial in op_cases(op).trials(backend):
        against = trial.refusals(device)
        if against:
            reasons[trial.backend] = "; ".join(against)
            continue
        ran += 1
        try:
            trial.check(device)
        except AssertionError as failure:
            failures.append(str(failure))
    if failures:
        raise AssertionError(f"{len(failures)} of {ran} cases are wrong\n\n" + "\n".join(failures))
    if not ran:
        why = "\n".join(f"  {name}: {text}" for name, text in reasons.items())
        raise AssertionError(f"nothing of {op.__name__} ran\n{why}")


def conformance(op: Any) -> type:
    """Both suites of an operation in one line of a test module.

    TestMyOp = conformance(my_op)
    """
    import pytest  # only where tests are written

    class Conformance:
        @pytest.mark.tensor_contract(fn=op)
        def test_contract(self, contract_case: Any) -> None: ...

        @pytest.mark.tensor_parity(op=op)
        def test_parity(self, parity_case: Any) -> None: ...

    return Conformance


def _nested(results: Any) -> Any:
    return results if isinstance(results, tuple | list | dict) else (results,)


def _same_bits(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    both = (x.detach().contiguous().view(torch.uint8) for x in (mine, theirs))
    return torch.equal(*both)
