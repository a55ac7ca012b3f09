"""What checking a call costs, against the same checks by hand and by four libraries, in one run.

    python bench/checks.py            every table, about a minute
    python bench/checks.py --fail     the same, and a failure where a target is missed
    python bench/checks.py --micro    what one check consists of, to tune the generated code

A call is timed through a function with an empty body: decorated, or with the hand-written validator
called in that body. Contestants take turns, so that ratios hold on a busy machine where absolute
times do not: a ratio is the median over the rounds of one round's times. A target for an absolute
time is judged by the best round, which is what the machine does undisturbed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import check_cases, check_parts
from bench.check_contestants import BY_HAND, JAXTYPING, OURS, PEERS, Signature, absence, signatures
from bench.tables import print_table
from bench.timing import Timing, call_timer, cpu_timer, interleaved
from contracts import ContractError
from contracts.layouts import KNOWN

NEW_SIZES = ", new sizes in every call"


@dataclass(frozen=True)
class Target:
    what: str
    measured: float
    limit: float
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.measured <= self.limit


def time_calls(
    signature: Signature,
    arguments: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    rounds: int,
) -> dict[str, Timing]:
    """One call over and over; ours and its yardstick also with more calls of other sizes than ours
    remembers."""
    call, *more = map(signature.split, [arguments, *others])
    timers = {"empty function": call_timer(signature.body, call)}
    for label, check in signature.checkers.items():
        timers[label] = call_timer(check, call)
        if label in (OURS, BY_HAND):
            timers[label + NEW_SIZES] = call_timer(check, *more)
    timings = interleaved(timers, rounds=rounds)
    return {
        label: timing.per(len(more) if label.endswith(NEW_SIZES) else 1)
        for label, timing in timings.items()
    }


def time_refusals(signature: Signature, rounds: int) -> dict[str, Timing]:
    """A wrong call up to and including its error's text; the mutant is one that all catch."""
    wrong = next(mutant for mutant in signature.mutants if mutant.breaks.startswith("rank of"))
    positional, keywords = signature.split(wrong.of(signature.right))

    def refused(check: Callable[..., object]) -> Callable[[], None]:
        def call() -> None:
            try:
                check(*positional, **keywords)
            except Exception as error:
                str(error)
            else:
                raise AssertionError(f"{wrong.breaks} was accepted")

        return call

    checkers = signature.checkers
    return interleaved(
        {label: cpu_timer(refused(check)) for label, check in checkers.items()}, rounds=rounds
    )


def missed_mutants(signature: Signature, label: str) -> list[str]:
    """The broken rules that a checker lets through; it has to let the right call through."""
    check = signature.checkers[label]
    refusal = ContractError if label == OURS else Exception  # each peer has a class of its own
    positional, keywords = signature.split(signature.right)
    check(*positional, **keywords)
    missed = []
    for mutant in signature.mutants:
        positional, keywords = signature.split(mutant.of(signature.right))
        try:
            check(*positional, **keywords)
        except refusal:
            continue
        missed.append(mutant.breaks)
    return missed


def time_import(repeats: int = 7) -> float:
    """Seconds until `contract` can be used in a fresh interpreter that has imported torch."""
    program = (
        "import time, torch; start = time.perf_counter(); from contracts import contract; "
        "print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", program]
    runs = [subprocess.run(command, capture_output=True, check=True) for _ in range(repeats)]
    return min(float(run.stdout) for run in runs)


def print_timings(title: str, timings: Mapping[str, Timing]) -> None:
    yardstick, libraries = timings[BY_HAND], timings[JAXTYPING]
    head = ("", "µs", "spread", "best", f"x {BY_HAND}", f"x {JAXTYPING}")
    rows = (
        (
            label,
            f"{timing.median * 1e6:.2f}",
            f"{timing.spread:.0%}",
            f"{timing.best * 1e6:.2f}",
            f"{timing.over(yardstick):.3f}",
            f"{timing.over(libraries):.3f}",
        )
        for label, timing in timings.items()
    )
    print_table(title, head, rows)


def print_mutants(signature: Signature) -> int:
    """How many of the mutants each checker catches; returns how many ours lets through."""
    missed = {label: missed_mutants(signature, label) for label in signature.checkers}
    total = len(signature.mutants)
    head = (f"of {total} mutants", "caught")
    rows = ((label, str(total - len(names))) for label, names in missed.items())
    print_table(f"{signature.name}: single broken rules", head, rows)
    for name in missed[OURS]:
        print(f"LET THROUGH by {OURS}: {name}")
    return len(missed[OURS])


def measure(hunyuan: Signature, sparse_mla: Signature, rounds: int) -> list[Target]:
    """Print every table and return the targets with what was measured."""
    lengths = range(1, 8 * KNOWN)
    longer = [check_cases.hunyuan(img_len=length) for length in lengths]
    contiguous = time_calls(hunyuan, hunyuan.right, longer, rounds)
    print_timings("hunyuan, 8 contiguous tensors, one call", contiguous)
    longer = [check_cases.hunyuan(img_len=length, fused=True) for length in lengths]
    fused = time_calls(hunyuan, check_cases.hunyuan(fused=True), longer, rounds)
    print_timings("hunyuan, image tensors views of one fused QKV, one call", fused)
    more = check_cases.sparse_mla_up_to(lengths.stop)
    sparse = time_calls(sparse_mla, sparse_mla.right, more, rounds)
    print_timings("sparse MLA with every optional argument, one call", sparse)

    targets = []
    for what, timings, hand_limit, library_limit in (
        ("hunyuan", contiguous, 0.40, 0.06),
        ("hunyuan, fused QKV", fused, 0.40, 0.06),
        ("sparse MLA", sparse, 0.85, 0.10),
    ):
        ours = timings[OURS]
        targets.append(Target(f"{what} / {BY_HAND}", ours.over(timings[BY_HAND]), hand_limit))
        targets.append(
            Target(f"{what} / {JAXTYPING}", ours.over(timings[JAXTYPING]), library_limit)
        )

    for signature in (hunyuan, sparse_mla):
        refusals = time_refusals(signature, rounds)
        print_timings(f"{signature.name}: a wrong call, refused, with the error's text", refusals)
        targets.append(Target(f"{signature.name}: error", refusals[OURS].best * 1e6, 150, "µs"))
        decorating = check_parts.time_decoration(signature.contract)
        targets.append(Target(f"{signature.name}: decoration", decorating * 1e3, 5, "ms"))
        through = print_mutants(signature)
        targets.append(Target(f"{signature.name}: mutants let through", through, 0))
    targets.append(Target("import contracts, on top of torch", time_import(), 0.15, "s"))
    return targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=101, help="samples per contestant")
    parser.add_argument("--fail", action="store_true", help="fail where a target is missed")
    parser.add_argument("--micro", action="store_true", help="only what a check consists of")
    options = parser.parse_args()

    hunyuan, sparse_mla = signatures()
    if options.micro:
        check_parts.print_reads()
        check_parts.print_statements(hunyuan)
        check_parts.print_statements(sparse_mla)
        return

    for label, module in PEERS.items():
        if (reason := absence(module)) is not None:
            print(f"{label}: absent ({reason})")
    targets = measure(hunyuan, sparse_mla, options.rounds)
    print_table(
        "targets",
        ("", "measured", "at most", "met"),
        (
            (
                target.what,
                f"{target.measured:.3g} {target.unit}".strip(),
                f"{target.limit:g} {target.unit}".strip(),
                "yes" if target.met else "NO",
            )
            for target in targets
        ),
    )
    if options.fail and not all(target.met for target in targets):
        sys.exit(1)


if __name__ == "__main__":
    main()
