"""Where a contract is written: the file and lines of each rule and each annotation."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model import Declaration
from .entry import Source


@dataclass(frozen=True)
class Lines:
    """The text of a declaration, and what stands where in it."""

    file: str
    first: int
    text: tuple[str, ...]
    rules: tuple[tuple[int, int], ...]
    """First and last line of each argument of `contract(...)`, in order."""
    parameters: dict[str, tuple[int, int]]

    def at(self, span: tuple[int, int]) -> Source:
        begin, end = span
        text = self.text[begin - self.first : end - self.first + 1]
        return Source(self.file, begin, inspect.cleandoc("\n".join(("", *text))), end)


def locate(declaration: Declaration) -> Lines | None:
    """None where the source cannot be read: at a prompt, in generated code."""
    return _read(declaration.function)


@functools.lru_cache(maxsize=256)
def _read(function: Callable[..., Any]) -> Lines | None:
    function = inspect.unwrap(function)
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "<unknown>"
        tree = ast.parse(inspect.cleandoc("\n" + "".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0] if tree.body else None
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    arguments = definition.args
    parameters = {
        parameter.arg: _span(parameter, first)
        for parameter in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            *filter(None, (arguments.vararg, arguments.kwarg)),
        )
    }
    text = tuple(line.rstrip("\n") for line in lines)
    return Lines(_relative(file), first, text, _rules(definition, first), parameters)


def _span(node: Any, first: int) -> tuple[int, int]:
    return node.lineno + first - 1, node.end_lineno + first - 1


def _rules(definition: Any, first: int) -> tuple[tuple[int, int], ...]:
    for decorator in definition.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("contract"):
            if any(isinstance(argument, ast.Starred) for argument in decorator.args):
                return ()
            return tuple(_span(argument, first) for argument in decorator.args)
    return ()


def _relative(file: str) -> str:
    """The path below the folder that it is imported from."""
    path = Path(file).resolve()
    roots = [Path(entry or ".").resolve() for entry in sys.path]
    fitting = [root for root in roots if path.is_relative_to(root)]
    if not fitting:
        return path.name
    return path.relative_to(max(fitting, key=lambda root: len(root.parts))).as_posix()
