"""Everything that only a GPU can show, in one command; CI has none.

    python tools/gpu.py [STEP ...] [--out FOLDER] [--upstream FILE] [--flashmla FILE]

    tests       pytest -m gpu
    memcheck    each kernel on small cases under compute-sanitizer, for accesses out of bounds
    racecheck   the same, for hazards in shared memory, and in a kernel that shows which ones
                compute-sanitizer sees where there are none; the log says them all
    pack        bench/hunyuan_qkv_rope_pack.py; --upstream names sglang's hunyuan_qkv_pack_triton.py
    attend      bench/sparse_mla_prefill.py; --flashmla names sglang-kernel's flashmla_ops.abi3.so
    values      bench/values.py

Needs torch, Triton and pytest in the interpreter that runs it, and no installation of the project.
Without STEP it takes all of them, in this order: what is wrong is not worth timing. Each step has a
process, a time limit and a log of its own; one that fails stops no other. The last lines say what
came of each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import hazards

ROOT = Path(__file__).resolve().parent.parent

KERNELS = {
    "hunyuan_qkv_rope_pack:triton": ("fused-beside-mlp", "odd-address", "several-token-tiles"),
    "sparse_mla_q8kv8_prefill_fwd:triton": ("everything", "heads-128", "one-pass"),
    "sparse_mla_q8kv8_prefill_fwd:gluon": ("everything", "heads-128", "s1-h64-k2048-d576"),
}
"""Op and backend, and the small cases that a sanitizer, which slows them a hundredfold, runs."""

FOUND = 9
"""A sanitizer's exit status where it has found something."""

RUN_CASES = """\
import dataclasses, importlib, sys
import backends
from contracts.testing.parity import op_cases
name, backend = sys.argv[1].split(":")
op = getattr(backends, name)
module = importlib.import_module(op.__module__.rpartition(".")[0] + ".cases")
known = {case.name: case for case in (*module.SMALL, *module.LARGE)}
cases = tuple(known[name] for name in sys.argv[2:])
for trial in dataclasses.replace(op_cases(op), cases=cases).trials(backend):
    assert not (reasons := trial.refusals("cuda")), (trial.case.name, reasons)
    trial.check("cuda")
print("equal to the reference:", *sys.argv[2:])
"""


@dataclass(frozen=True)
class Step:
    """A command, and the seconds that it may take."""

    name: str
    command: Sequence[str | Path]
    seconds: int
    fault: Callable[[str], str] | None = None
    """What is wrong by the log, where that says it and not the exit status; nothing is right."""

    def run(self, folder: Path) -> str:
        """Its verdict and last line; its output goes to the log."""
        log = folder / f"{self.name.replace(':', '-')}.log"
        begin = time.monotonic()
        with log.open("w") as file:
            try:
                finished = subprocess.run(
                    self.command,
                    cwd=ROOT,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=self.seconds,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])},
                    check=False,
                )
                wrong = str(finished.returncode or "")
                if self.fault is not None and finished.returncode in (0, FOUND):
                    wrong = self.fault(log.read_text())
                verdict = f"FAILED ({wrong})" if wrong else "ok"
            except subprocess.TimeoutExpired:
                verdict = f"STOPPED after {self.seconds} s"
            except OSError as error:  # no compute-sanitizer, say
                verdict = f"FAILED ({error})"
        lines = [line for line in log.read_text().splitlines() if line.strip()] or ["no output"]
        return f"{self.name}: {verdict}, {time.monotonic() - begin:.0f} s: {lines[-1]}"


def steps(options: argparse.Namespace) -> list[Step]:
    python = sys.executable
    pack = [python, "bench/hunyuan_qkv_rope_pack.py"]
    pack += ["--upstream", options.upstream] if options.upstream else []
    attend = [python, "bench/sparse_mla_prefill.py", "--json", options.out / "attend.json"]
    attend += ["--flashmla", options.flashmla] if options.flashmla else []
    return [
        Step("tests", [python, "-m", "pytest", "-q", "-m", "gpu", "tests"], 300),
        *sanitized("memcheck", sanitizer("--tool", "memcheck"), python),
        *races(python),
        Step("pack", pack, 240),
        Step("attend", attend, 300),
        Step("values", [python, "bench/values.py"], 60),
    ]


def sanitizer(*arguments: str) -> list[str]:
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return [found, *arguments, "--print-limit", "200", "--error-exitcode", str(FOUND)]


def sanitized(name: str, command: Sequence[str], python: str) -> list[Step]:
    return [
        Step(f"{name}:{kernel}", [*command, python, "-c", RUN_CASES, kernel, *cases], 120)
        for kernel, cases in KERNELS.items()
    ]


def races(python: str) -> Iterator[Step]:
    command = sanitizer("--tool", "racecheck", "--racecheck-report", "analysis")
    control = [*command, python, "tools/racecheck_control.py"]
    yield Step("racecheck:control", control, 60, fault_of_control)
    for step in sanitized("racecheck", command, python):
        yield replace(step, fault=fault_of_races)


def fault_of_control(log: str) -> str:
    if "every sum is right" not in log:
        return "it is no control"
    counts = hazards.kinds(log, ROOT)
    return "" if counts["handed on"] and not counts["unexplained"] else f"hazards: {counts}"


def fault_of_races(log: str) -> str:
    if "equal to the reference" not in log:
        return "not equal to the reference"
    counts = hazards.kinds(log, ROOT)
    return f"hazards: {counts}" if counts["unexplained"] else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", nargs="*", help="which ones; all of them by default")
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="where the logs go")
    parser.add_argument("--upstream", type=Path)
    parser.add_argument("--flashmla", type=Path)
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)

    every = steps(options)
    groups = {step.name.partition(":")[0] for step in every}
    if unknown := set(options.step) - groups:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(sorted(groups))}")
    verdicts = []
    for step in every:
        if not options.step or step.name.partition(":")[0] in options.step:
            verdicts.append(step.run(options.out))
            print(verdicts[-1], flush=True)
    print(f"\nlogs: {options.out}")
    if any(": ok, " not in verdict for verdict in verdicts):
        sys.exit(1)


if __name__ == "__main__":
    main()
