"""The direction of imports: a file imports only from lower floors, and `contracts` stands alone.

`FLOORS` is the architecture, by area: a folder below a package is one area, a file beside it
another. Inside an area the files may use one another, without cycles. A new area gets its place on
purpose, or the test says so.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Lowest first.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("contracts.traceable", "contracts.transforms"),
    (
        "contracts.errors",
        "contracts.identity",
        "contracts.modes",
        "contracts.reference",
        "contracts.tensors",
    ),
    ("contracts.calls", "contracts.expressions", "contracts.flat", "contracts.kinds"),
    ("contracts.layouts", "contracts.tracing"),
    ("contracts.contents",),
    ("contracts.axes", "contracts.rules"),
    ("contracts.spec",),
    ("contracts.model",),
    ("contracts.binding", "contracts.describe", "contracts.outputs"),
    ("contracts.compiler", "contracts.explain", "contracts.facts"),
    ("contracts.addresses",),
    ("contracts.watched",),
    ("contracts.enforce",),
    ("contracts.wrapping",),
    ("contracts.interface",),
    ("contracts.decorator",),
    ("contracts",),
    ("contracts.testing",),
    ("contracts.catalog",),
    ("contracts.doctor", "contracts.markdown", "contracts.pages", "contracts.terminal"),
    ("contracts.cli",),
    ("contracts.__main__",),
    ("backends.dispatch",),
    ("backends.values",),
    ("backends.ops.*", "backends.ops"),
    ("backends",),
)

# Imported inside a function, because it is optional or too heavy to load before it is needed.
# What stands here may also be imported from below.
LATE_IMPORTS = (
    "beartype.door",
    "contracts.testing.solver",  # `.example()`: documentation and tests only
    "contracts.testing.parity",  # a pytest plugin must not load torch at start-up
    "contracts.testing.subjects",
    "contracts.testing.verdict",
    "pytest",
    "torch._dynamo.exc",  # private: a release without it loses the traced error's type only
    "triton",
)

PROJECT = ("contracts", "backends")
FILES = sorted(file for package in PROJECT for file in (ROOT / package).rglob("*.py"))


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    late: bool


def module_name(file: Path, root: Path = ROOT) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str, root: Path = ROOT) -> bool:
    path = root.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def imports(file: Path, root: Path = ROOT) -> Iterator[Import]:
    """Every import statement of a file, resolved to the module that it loads."""
    tree = ast.parse(file.read_text(), filename=str(file))
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    late = {inner for function in functions for inner in ast.walk(function)}
    name = module_name(file, root)
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node in late)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                above = ".".join(parents[: len(parents) - node.level + 1])
                base = f"{above}.{base}" if base else above
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                target = inner if is_ours(base) and is_module(inner, root) else base
                yield Import(target, node.lineno, node in late)


def area(module: str) -> str:
    """The unit that has a floor: a child of a package, and below `backends.ops` an operation."""
    parts = module.split(".")
    return ".".join(parts[:3] if parts[:2] == ["backends", "ops"] else parts[:2])


def floor(module: str) -> int | None:
    for number, patterns in enumerate(FLOORS):
        if any(fnmatch(area(module), pattern) for pattern in patterns):
            return number
    return None


def is_ours(module: str) -> bool:
    return module.split(".")[0] in PROJECT


def is_late(module: str) -> bool:
    return any(module == late or module.startswith(f"{late}.") for late in LATE_IMPORTS)


def upward(file: Path, root: Path = ROOT) -> list[str]:
    """The imports of a file that neither go down nor stay in its area."""
    name = module_name(file, root)
    own = floor(name)
    if own is None:
        return [f"{area(name)} has no floor: give it one in FLOORS"]
    wrong = []
    for found in imports(file, root):
        if not is_ours(found.module) or (found.late and is_late(found.module)):
            continue
        other = floor(found.module)
        if area(found.module) != area(name) and (other is None or other >= own):
            wrong.append(f"{name}:{found.line} imports {found.module}")
    return wrong


def cycle(files: list[Path], root: Path = ROOT) -> list[str]:
    """The modules of one import cycle, if there is one."""
    graph = {
        module_name(file, root): {
            found.module
            for found in imports(file, root)
            if is_ours(found.module) and not found.late
        }
        for file in files
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def in_a_new_process(program: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_go_down(file: Path) -> None:
    assert upward(file) == []


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert cycle(FILES) == []


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_only_optional_modules_are_imported_inside_a_function(file: Path) -> None:
    late = {found.module for found in imports(file) if found.late}
    assert [module for module in sorted(late) if not is_late(module)] == []


@pytest.mark.parametrize(
    "file", [file for file in FILES if module_name(file).startswith("contracts")], ids=module_name
)
def test_the_language_knows_no_operation_and_no_compiler(file: Path) -> None:
    roots = {found.module.split(".")[0] for found in imports(file)}
    assert not roots & {"backends", "triton"}


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if module_name(file).startswith("backends.ops.")],
    ids=module_name,
)
def test_an_operation_does_not_import_another(file: Path) -> None:
    own = module_name(file).split(".")[2]
    others = {
        found.module.split(".")[2]
        for found in imports(file)
        if found.module.startswith("backends.ops.")
    }
    assert others <= {own}


@pytest.mark.parametrize("package", PROJECT)
def test_importing_a_package_loads_no_triton(package: str) -> None:
    loaded = "print(sorted(name for name in sys.modules if name.split('.')[0] == 'triton'))"
    with_torch = in_a_new_process(f"import sys, torch; {loaded}")
    assert in_a_new_process(f"import sys, torch, {package}; {loaded}") == with_torch


def test_importing_contracts_loads_no_backend() -> None:
    assert in_a_new_process("import sys, contracts; print('backends' in sys.modules)") == "False"


@pytest.mark.parametrize(
    "statement",
    [
        "from .decorator import contract",
        "from . import decorator",
        "import contracts.decorator",
        "from contracts import contract",
        "from contracts.tensors import describe",
        "import backends",
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, statement: str) -> None:
    package = tmp_path / "contracts"
    package.mkdir()
    for name in ("__init__", "errors", "tensors", "decorator"):
        (package / f"{name}.py").write_text("")
    (package / "errors.py").write_text(statement)
    assert len(upward(package / "errors.py", tmp_path)) == 1


def test_a_cycle_inside_an_area_is_found(tmp_path: Path) -> None:
    package = tmp_path / "contracts" / "rules"
    package.mkdir(parents=True)
    files = [package / f"{name}.py" for name in ("base", "memory", "tensor")]
    for file, other in zip(files, ("memory", "tensor", "base"), strict=True):
        file.write_text(f"from . import {other}")
        assert upward(file, tmp_path) == []
    assert len(set(cycle(files, tmp_path))) == 3
    files[0].write_text("")
    assert cycle(files, tmp_path) == []
