"""The page of what works where: every row of it is shown by tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "where-it-runs.md"
REFERENCES = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", PAGE.read_text())
ROWS = [
    line
    for line in PAGE.read_text().splitlines()
    if line.startswith("|") and "---" not in line and "| shown by |" not in line
]


@pytest.mark.parametrize(("file", "name"), sorted(set(REFERENCES)))
def test_the_tests_that_the_page_names_exist(file: str, name: str) -> None:
    path = ROOT / file
    assert path.exists()
    assert not name or re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE)


def test_every_behaviour_is_shown_by_a_test() -> None:
    with_tests = [row for row in ROWS if row.count("|") == 4 and "µs" not in row]
    bare = [row for row in with_tests if "tests/" not in row and "without | with" not in row]
    assert not bare
    assert len(with_tests) > 30


def test_every_mode_has_its_row() -> None:
    from contracts import modes

    for mode in modes.MODES:
        assert any(row.startswith(f"| `{mode}` |") for row in ROWS)
