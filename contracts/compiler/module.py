"""A generated module: functions as text, and the objects that their names stand for."""

from __future__ import annotations

import builtins
import keyword
import linecache
import re
import types
import weakref
from collections.abc import Set
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

_serial = count(1)


@dataclass
class Module:
    """One generated module: functions, and the objects that their names stand for."""

    name: str
    parameters: frozenset[str]
    functions: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    locals: set[str] = field(default_factory=set)
    filename: str = ""

    def global_name(self, hint: str) -> str:
        """A name like `hint` that no parameter, local or other global of the module has."""
        name = _spell(hint, self.parameters | self.globals | self.locals)
        self.globals.add(name)
        return name

    def local_name(self, hint: str, taken: set[str]) -> str:
        """A name like `hint` for one function, where other functions may have the same."""
        name = _spell(hint, self.parameters | self.globals | taken)
        self.locals.add(name)
        taken.add(name)
        return name

    def constant(self, value: Any, hint: str) -> str:
        """The name by which generated code reaches an object."""
        for name, known in self.constants.items():
            if known is value or _same_kinds(known, value):
                return name
        name = self.global_name(hint)
        self.constants[name] = value
        return name

    def builtin(self, name: str) -> str:
        """A builtin, also where a parameter of that name hides it."""
        return self.constant(getattr(builtins, name), name) if name in self.parameters else name

    @property
    def source(self) -> str:
        return "\n\n\n".join(self.functions) + "\n"

    def load(self) -> dict[str, Any]:
        """Execute the module; its source shows in tracebacks for as long as its functions live."""
        self.filename = f"<contract {self.name} #{next(_serial)}>"
        code = compile(self.source, self.filename, "exec")
        namespace = dict(self.constants)
        exec(code, namespace)
        source = self.source
        linecache.cache[self.filename] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            self.filename,
        )
        last = next(f for f in reversed(namespace.values()) if isinstance(f, types.FunctionType))
        weakref.finalize(last, linecache.cache.pop, self.filename, None).atexit = False
        return namespace


_USED = frozenset({"isinstance", "len", "type", "tuple", "hash", "Exception"})


def _spell(hint: str, taken: Set[str]) -> str:
    name = re.sub(r"\W", "_", hint).strip("_") or "value"
    if name[0].isdigit():
        name = f"n{name}"
    while name in taken or name in _USED or keyword.iskeyword(name):
        name += "_"
    return name


def _same_kinds(a: Any, b: Any) -> bool:
    """Equal tuples of dtypes or types, which may share a name."""
    return (
        type(a) is tuple
        and type(b) is tuple
        and a == b
        and all(isinstance(item, torch.dtype | type) for item in a)
    )
