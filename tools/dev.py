"""One command to a working checkout: make .venv, install the project into it, do a task.

    python3 tools/dev.py demo        the main job on this machine, with or without a GPU
    python3 tools/dev.py test        the tests; further arguments go to pytest
    python3 tools/dev.py check       lint, formatting and types
    python3 tools/dev.py examples    every example
    python3 tools/dev.py wheel       build a wheel and see that it holds both packages whole
    python3 tools/dev.py oldest      the tests of the language, with the oldest releases it asks for

Needs nothing but Python 3.11 or newer. The installation is repeated only when pyproject.toml, the
constraints or the interpreter have changed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
CONSTRAINTS = ROOT / "tools" / "constraints.txt"
STAMP = ENVIRONMENT / "installed-for"
PACKAGES = ("contracts", "backends")
OLDEST = ("beartype", "jaxtyping", "hypothesis")  # what installs quickly beside any torch


def python(*arguments: str | Path) -> None:
    """Run the environment's interpreter in the repository's root; its failure is ours."""
    finished = subprocess.run([PYTHON, *arguments], cwd=ROOT, check=False)
    if finished.returncode:
        sys.exit(finished.returncode)


def install() -> None:
    """Bring .venv up to date with what the project asks for."""
    state = hashlib.sha256(sys.version.encode())
    for file in (ROOT / "pyproject.toml", CONSTRAINTS):
        state.update(file.read_bytes())
    wanted = state.hexdigest()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return
    print(f"Installing into {ENVIRONMENT.name}: torch makes the first time slow.", flush=True)
    if not PYTHON.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    python("-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS, "--editable", ".[dev]")
    STAMP.write_text(wanted)


def demo(*arguments: str) -> None:
    python("examples/quickstart.py", *arguments)


def test(*arguments: str) -> None:
    python("-m", "pytest", *arguments)


def check() -> None:
    python("-m", "ruff", "check")
    python("-m", "ruff", "format", "--check")
    python("-m", "mypy")


def examples() -> None:
    for example in sorted((ROOT / "examples").glob("*.py")):
        print(f"\n--- {example.relative_to(ROOT)}", flush=True)
        if example.name.startswith("test_"):
            python("-m", "pytest", example)
        else:
            python(example)


def wheel() -> None:
    with tempfile.TemporaryDirectory() as folder:
        python("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ".")
        (built,) = Path(folder).glob("*.whl")
        held = set(zipfile.ZipFile(built).namelist())
    wanted = {
        file.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    if missing := wanted - held:
        sys.exit(f"{built.name} lacks {', '.join(sorted(missing))}")
    print(f"{built.name}: all of {len(wanted)} files")


def oldest() -> None:
    """With the lowest version of each requirement that `OLDEST` names, beside this torch."""
    import tomllib  # of Python 3.11, which `main` asks for first

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    pinned = [line.replace(">=", "==") for line in asked if line.partition(">=")[0] in OLDEST]
    assert len(pinned) == len(OLDEST), pinned
    with tempfile.TemporaryDirectory() as folder:
        python("-m", "pip", "install", "--quiet", "--target", folder, *pinned)
        print(f"With {', '.join(pinned)}", flush=True)
        tests = ("contracts", "testing", "catalog", "compile", "modes")
        os.environ["PYTHONPATH"] = folder
        python("-m", "pytest", "-q", *(f"tests/{name}" for name in tests))


TASKS: dict[str, Callable[..., None]] = {
    task.__name__: task for task in (demo, test, check, examples, wheel, oldest)
}


def main(arguments: list[str]) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything checks it
        sys.exit(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}.")
    if not arguments or arguments[0] not in TASKS:
        sys.exit(__doc__)
    install()
    TASKS[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
