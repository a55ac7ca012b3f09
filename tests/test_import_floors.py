"""The direction of imports: a file imports only from lower floors, and `contracts` stands alone.

`FLOORS` is the architecture. A new file gets a place in it on purpose, or the test says so.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Lowest first. Patterns are module names; the first floor with a match is the module's own.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("contracts.errors", "contracts.modes", "contracts.reference", "contracts.tensors"),
    ("contracts.expressions.functions",),
    ("contracts.expressions.nodes",),
    ("contracts.expressions.*",),
    ("contracts.expressions",),
    ("contracts.axes",),
    ("contracts.spec",),
    ("contracts.rules.base",),
    ("contracts.rules.tensor",),
    ("contracts.rules.*",),
    ("contracts.rules",),
    ("contracts.model",),
    ("contracts.binding",),
    ("contracts.facts",),
    ("contracts.compiler.module", "contracts.describe", "contracts.explain", "contracts.outputs"),
    ("contracts.compiler.code",),
    ("contracts.compiler.body",),
    ("contracts.compiler.check",),
    ("contracts.compiler.wrapper",),
    ("contracts.compiler", "contracts.enforce", "contracts.tracing"),
    ("contracts.testing.samples", "contracts.testing.search", "contracts.testing.plans"),
    ("contracts.testing.problem",),
    ("contracts.testing.solver",),
    ("contracts.decorator",),
    ("contracts",),
    ("contracts.testing.*",),
    ("contracts.testing",),
    ("contracts.catalog",),
    ("contracts.cli",),
    ("contracts.__main__",),
    ("backends.dispatch.cubin", "backends.dispatch.target"),
    ("backends.dispatch.registry",),
    ("backends.dispatch.selection",),
    ("backends.dispatch.op",),
    ("backends.dispatch",),
    ("backends.ops.*.contract", "backends.ops.*.reference"),
    ("backends.ops.*.cases",),
    ("backends.ops.*_kernel",),
    ("backends.ops.*_launch",),
    ("backends.ops.*",),
    ("backends.ops",),
    ("backends",),
)

# Imported inside a function: what is optional, or too heavy to load before it is needed.
LATE_IMPORTS = ("beartype", "contracts.testing.solver", "triton")

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
                is_ours = base.split(".")[0] in PROJECT
                target = inner if is_ours and is_module(inner, root) else base
                yield Import(target, node.lineno, node in late)


def floor(module: str) -> int | None:
    for number, patterns in enumerate(FLOORS):
        if any(fnmatch(module, pattern) for pattern in patterns):
            return number
    return None


def is_late(module: str) -> bool:
    return any(module == late or module.startswith(f"{late}.") for late in LATE_IMPORTS)


def upward(file: Path, root: Path = ROOT) -> list[str]:
    """The imports of a file that do not go down."""
    name = module_name(file, root)
    own = floor(name)
    if own is None:
        return [f"{name} has no floor: give it one in FLOORS"]
    return [
        f"{name}:{found.line} imports {found.module}"
        for found in imports(file, root)
        if found.module.split(".")[0] in PROJECT and not (floor(found.module) or 0) < own
    ]


def in_a_new_process(program: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_go_down(file: Path) -> None:
    assert upward(file) == []


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
        "from contracts.errors import ContractError",
        "import backends",
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, statement: str) -> None:
    package = tmp_path / "contracts"
    package.mkdir()
    for name in ("__init__", "errors", "decorator"):
        (package / f"{name}.py").write_text("")
    (package / "errors.py").write_text(statement)
    assert len(upward(package / "errors.py", tmp_path)) == 1
