"""What a shell calls a function: `package.module:name`, by which the command line finds it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any


def reference(function: Any) -> str | None:
    """The shortest `module:name` that leads to a function with a contract, if one does.

    A package that re-exports it is preferred to the module that defines it; a script is named by
    its file. Functions inside functions, and those typed at a prompt, have no such name.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module == "__main__":
        return _of_a_script(name)
    if module not in sys.modules or not name or "<" in name:
        return None
    parts = module.split(".")
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        if _contracted(vars(sys.modules.get(package, object)).get(name)) is function:
            return f"{package}:{name}"
    return f"{module}:{name}"


def _of_a_script(name: str) -> str | None:
    main = sys.modules["__main__"]
    if not name or "<" in name:
        return None
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # started by `python -m`
        return f"{spec.name}:{name}"
    if file is None or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{name}"


def _contracted(value: Any) -> Any:
    """The function behind an object that carries a contract."""
    declaration = getattr(getattr(value, "contract", None), "declaration", None)
    return getattr(declaration, "function", None)


def explain_command(function: Any, rule: str) -> str:
    """What to type to read more about a rule: in a shell, or where no shell can reach the
    function, at a prompt."""
    path = reference(function)
    if path is None:
        name = getattr(function, "__qualname__", "function").rpartition("<locals>.")[2]
        return f"print({name}.contract.describe())"
    return f"python -m contracts explain {shlex.quote(f'{path}/{rule}')}"
