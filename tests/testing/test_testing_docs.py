"""docs/testing.md shows what really happens: its programs run, and print what stands there."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401

# pytester forgets what is first imported inside of it; a second copy of these would be another's.
import backends
from contracts.testing import comparing, parity, strategies, verdict

pytest_plugins = ("pytester",)
LOADED = (backends, comparing, parity, strategies, verdict)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "testing.md"
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PLUGIN = ("-p", "contracts.testing.plugin", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Shown:
    """A command or a program, and the output that stands below it."""

    run: str
    output: str


def blocks() -> Iterator[tuple[str, str]]:
    for block in BLOCK.finditer(PAGE.read_text()):
        yield block["language"], block["text"]


def files() -> dict[str, str]:
    """Programs that name the file they stand in."""
    return {
        text.split()[1]: text
        for language, text in blocks()
        if language == "python" and text.startswith("# test_")
    }


def commands() -> list[Shown]:
    """Those of the page, but for the mutation proof: it has a test of its own, and takes long."""
    found = [
        Shown(*text.removeprefix("$ ").split("\n", 1))
        for language, text in blocks()
        if language == "console"
    ]
    return [shown for shown in found if shown.run != "python tools/mutate.py"]


def programs() -> list[Shown]:
    found: list[Shown] = []
    for language, text in blocks():
        if language == "python" and not text.startswith("# test_"):
            found.append(Shown(text, ""))
        elif language == "text":
            found[-1] = Shown(found[-1].run, text)
    return found


def timeless(text: str) -> str:
    lines = re.sub(r"\d+\.\d+ ?s\b", "TIME", text).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip()


@pytest.fixture
def here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The page's own files, in a folder from which they can be imported."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "80")
    # What pytest prints at a terminal: under a CI's variables it no longer shortens its summary.
    for variable in ("CI", "BUILD_NUMBER", "FORCE_COLOR", "PY_COLORS", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(variable, raising=False)
    for name, text in files().items():
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
        (pytester.path / name).write_text(text)
    pytester.syspathinsert()
    return pytester


def run_command(command: str, here: pytest.Pytester) -> str:
    program, *arguments = shlex.split(command)
    if program == "pytest":
        return "\n".join(here.runpytest_inprocess(*PLUGIN, *arguments).outlines)
    assert program == "python"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("shown", commands(), ids=lambda shown: shown.run)
def test_a_command_prints_what_the_page_shows(shown: Shown, here: pytest.Pytester) -> None:
    assert timeless(run_command(shown.run, here)) == timeless(shown.output)


@pytest.mark.parametrize("shown", programs(), ids=["defects", "hypothesis"])
def test_a_program_prints_what_the_page_shows(shown: Shown, here: pytest.Pytester) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(shown.run, "program", "exec"), {"__name__": "page"})
    assert timeless(printed.getvalue()) == timeless(shown.output)


def test_the_page_has_something_to_check() -> None:
    assert len(commands()) >= 5
    assert all(shown.output.strip() for shown in commands())
