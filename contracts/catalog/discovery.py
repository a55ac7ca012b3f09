"""Which contracts there are: those that installed packages announce, and any import path.

A package announces its operations in the entry-point group `tensor_contracts.ops`:

    [project.entry-points."tensor_contracts.ops"]
    my_op = "my_package:my_op"

so that this package never has to know them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from ..interface import Contract
from ..reference import reference
from .backends import BackendFacts, backends_of

GROUP = "tensor_contracts.ops"
HOW_TO_ANNOUNCE = (
    "no package announces operations here; install one that does (`pip install .` in its folder), "
    "or name a function: package.module:function, or file.py:function"
)


class NotFound(LookupError):
    """Nothing with a contract stands at a name or path."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Subject:
    """Something that has a contract, and the name by which the catalogue calls it."""

    name: str
    target: Any
    contract: Contract

    @property
    def path(self) -> str | None:
        """Its import path, `package:name`."""
        return reference(self.contract.declaration.function)

    @property
    def backends(self) -> tuple[BackendFacts, ...]:
        """The backends of an operation, best first; a plain function has none."""
        return backends_of(self.target)

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        text = getattr(self.contract.declaration.function, "__doc__", None) or ""
        return text.strip().partition("\n")[0]


def announced() -> dict[str, EntryPoint]:
    """The operations that packages announce, by name; none is imported yet."""
    found = {entry.name: entry for entry in _of_the_source_tree()}
    found.update({entry.name: entry for entry in entry_points(group=GROUP)})
    return dict(sorted(found.items()))


def _of_the_source_tree() -> Iterator[EntryPoint]:
    """What the project this file stands in announces, when it runs without being installed."""
    root = Path(__file__).resolve().parents[2]
    project = root / "pyproject.toml"
    if not project.is_file():
        return
    data = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
    for name, value in data.get("entry-points", {}).get(GROUP, {}).items():
        yield EntryPoint(name, value, GROUP)


def installed() -> tuple[Subject, ...]:
    """Every announced operation that can be imported; `unusable` says what cannot."""
    return tuple(item for item in map(_load, announced().values()) if isinstance(item, Subject))


def unusable() -> dict[str, str]:
    """Announced operations that cannot be imported, with the reason."""
    loaded = {name: _load(entry) for name, entry in announced().items()}
    return {name: item for name, item in loaded.items() if isinstance(item, str)}


def why_empty() -> str:
    """What to say where no operation can be looked at."""
    broken = [f"{name} cannot be loaded: {reason}" for name, reason in unusable().items()]
    return "\n".join(broken) or HOW_TO_ANNOUNCE


def _load(entry: EntryPoint) -> Subject | str:
    try:
        return _subject(entry.load(), entry.name)
    except Exception as error:  # a broken package must not hide the others
        return f"{type(error).__name__}: {error}"


def find(name: str) -> Subject:
    """The subject at a name that a package announces, or at an import path.

    Paths: `package.module:function`, `package.module:Class.method`, `folder/file.py:function`, or
    the same with a dot before the function.
    """
    known = announced()
    if name in known:
        return _subject(known[name].load(), name)
    place, colon, attribute = name.rpartition(":")
    if not colon:
        place, _, attribute = name.rpartition(".")
    if not place:
        names = ", ".join(known) or HOW_TO_ANNOUNCE
        raise NotFound(f"no operation is called {name!r}; there are: {names}")
    target: Any = _module(place)
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            raise NotFound(f"{place} has no {attribute!r}") from None
    return _subject(target, attribute)


def within(place: str) -> tuple[Subject, ...]:
    """Every subject that a module or a file holds at its top level."""
    found: dict[int, Subject] = {}
    for name, value in vars(_module(place)).items():
        try:
            subject = _subject(value, name)
        except NotFound:
            continue
        found.setdefault(id(subject.contract), subject)
    return tuple(found.values())


def _subject(target: Any, name: str) -> Subject:
    holder: Any = target
    if isinstance(target, type):
        holder = target.__init__  # type: ignore[misc]
    contract = getattr(holder, "contract", None)
    if not isinstance(contract, Contract):
        raise NotFound(f"{name} has no contract")
    return Subject(name, target, contract)


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        return _script(Path(place))
    if "" not in sys.path:
        sys.path.insert(0, "")  # the script entry point does not look in the current folder
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise NotFound(f"cannot import {place}: {error}") from None


def _script(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
