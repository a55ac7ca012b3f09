"""Which of racecheck's hazards `tools/gpu.py` takes for explained: two kinds, and no other."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "backends" / "ops" / "sparse_mla_prefill"


@pytest.fixture(scope="module")
def kinds() -> Callable[[str, Path], Mapping[str, int]]:
    return runpy.run_path(str(ROOT / "tools" / "hazards.py"))["kinds"]


def place(name: str, words: str) -> str:
    """The first line of a kernel's file that says these words, as racecheck names it."""
    lines = (KERNELS / name).read_text().splitlines()
    return f"{name}:{next(i for i, line in enumerate(lines, 1) if words in line)}"


def race(read: str, *writes: str) -> str:
    lines = [f"========= Error: Race reported between Read access at k+0xfa40 in {read}"]
    lines += [f"=========     and Write access at k+0x9800 in {at} [256 hazards]" for at in writes]
    return "\n".join([*lines, "========= ", ""])


ALPHA = place("gluon_score.py", "shared.alpha.index(stage).store")
ALPHA_READ = place("gluon_values.py", "shared.alpha.index(stage).load")
WEIGHTS = place("gluon_score.py", "shared.p.index(stage).store")
TABLE = place("gluon_kernel.py", "def prefill_kernel")


def test_a_clean_log_has_none(kinds: Callable[[str, Path], Mapping[str, int]]) -> None:
    assert not any(kinds("equal to the reference: everything\n", ROOT).values())


def test_both_kinds_are_told_from_others(kinds: Callable[[str, Path], Mapping[str, int]]) -> None:
    log = race(ALPHA_READ, ALPHA, ALPHA) + race(TABLE, TABLE) + race(ALPHA_READ, WEIGHTS, ALPHA)
    assert kinds(log, ROOT) == {"table": 1, "handed on": 3, "unexplained": 1}


def test_a_file_that_is_not_there_explains_nothing(
    kinds: Callable[[str, Path], Mapping[str, int]],
) -> None:
    assert kinds(race("elsewhere.py:3", "elsewhere.py:4"), ROOT)["unexplained"] == 1


@pytest.mark.parametrize(
    "log",
    [
        "========= Error: Race reported between Write access at prefill_kernel+0x50\n",
        race("gluon_score.py:0", WEIGHTS),
        "equal to the reference\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error)\n",
    ],
    ids=["no-place", "line-0", "not-in-the-log"],
)
def test_what_the_log_does_not_place_is_unexplained(
    kinds: Callable[[str, Path], Mapping[str, int]], log: str
) -> None:
    assert kinds(log, ROOT)["unexplained"]
