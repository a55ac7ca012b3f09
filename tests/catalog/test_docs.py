"""docs/errors.md tells the truth: its Python and its commands print what it says they print; so do
the commands in the README.

A line `...` in an output stands for any lines, and `…` within a line for any text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from contracts import cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
PAGES = (PAGE, ROOT / "README.md")
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>.+)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)
PREFIX = "python -m contracts "


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text()):
            if block["language"] == "console":
                for found in COMMAND.finditer(block["text"]):
                    yield found["command"], found["output"]


def programs(text: str) -> Iterator[tuple[str, str]]:
    """Python blocks, each with the text block that follows it."""
    program = None
    for block in BLOCK.finditer(text):
        if block["language"] == "python":
            program = block["text"]
        elif block["language"] == "text" and program is not None:
            yield program, block["text"]


def matches(expected: str, printed: str) -> bool:
    parts = re.split(r"^\.\.\.\n", expected, flags=re.MULTILINE)
    pattern = "(?:.*\n)*".join(map(re.escape, parts)).replace("…", ".*")
    return bool(re.fullmatch(pattern, printed))


def run(program: str) -> str:
    output = StringIO()
    with redirect_stdout(output):
        exec(compile(program, str(PAGE), "exec"), {"__name__": "docs"})
    return output.getvalue()


@pytest.mark.parametrize(("program", "expected"), [*programs(PAGE.read_text())])
def test_a_program_prints_what_the_page_shows(program: str, expected: str) -> None:
    printed = run(program)
    assert matches(expected, printed), printed


@pytest.mark.parametrize(("command", "expected"), [*commands()])
def test_a_command_prints_what_the_page_shows(
    command: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert command.startswith(PREFIX)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    cli.main(shlex.split(command.removeprefix(PREFIX)))
    printed = capsys.readouterr().out
    assert matches(expected, printed), printed


def test_a_wrong_output_would_be_noticed() -> None:
    assert matches("a\n...\nc\n", "a\nb\nb\nc\n")
    assert matches("a\n...\n", "a\n")
    assert not matches("a\n...\nc\n", "a\nb\nd\n")
    assert not matches("a\n", "a\nb\n")
    assert matches("a … c\n", "a b c\n")
    assert not matches("a … c\n", "a\nc\n")
