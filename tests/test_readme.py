"""The README tells the truth: its Python runs, and prints what the README says it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """A Python block, and the text block that directly follows it, if one does."""

    line: int
    program: str
    printed: str


def examples(text: str) -> list[Example]:
    found: list[Example] = []
    end_of_python = None
    for block in BLOCK.finditer(text):
        follows = end_of_python is not None and not text[end_of_python : block.start()].strip()
        end_of_python = None
        if block["language"] == "python":
            line = text.count("\n", 0, block.start()) + 1
            found.append(Example(line, block["text"], ""))
            end_of_python = block.end()
        elif block["language"] == "text" and follows:
            found[-1] = Example(found[-1].line, found[-1].program, block["text"])
    return found


def run(example: Example, folder: Path) -> str:
    """What the program prints when a reader saves it as `example.py` and runs it there."""
    (folder / "example.py").write_text(example.program)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(README.parent)
    finished = subprocess.run(
        [sys.executable, "example.py"],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return finished.stdout


def test_the_readme_has_examples_with_output() -> None:
    assert sum(bool(example.printed) for example in examples(README.read_text())) >= 2


@pytest.mark.parametrize("example", examples(README.read_text()), ids=lambda e: f"line {e.line}")
def test_an_example_prints_what_the_readme_shows(example: Example, tmp_path: Path) -> None:
    assert run(example, tmp_path) == example.printed


def test_a_wrong_output_would_be_noticed(tmp_path: Path) -> None:
    (example,) = examples("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    assert example.printed == "3\n"
    assert run(example, tmp_path) != example.printed
