"""The part of a contract that a traced graph leaves to its run: the rules on addresses.

A graph is guarded on the rest. What it is handed at its run is no more than these rules read:
every number that an operator takes as a float, and every text, would be a constant of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from . import explain
from .binding import computed_names
from .compiler import compile_passes
from .compiler.check import check_parameters
from .compiler.code import words
from .errors import ContractError
from .model import Argument, Declaration
from .spec import tensor_specs


class Addresses:
    """The rules on addresses, judged by themselves: tensors are all that most of them read."""

    def __init__(self, declaration: Declaration) -> None:
        rules = tuple(rule for rule in declaration.rules if rule.pointers)
        read = words(rule.text for rule in rules) | declaration.sizes
        for argument in declaration.arguments:
            for spec in tensor_specs(argument.spec):
                read |= computed_names(spec)

        def is_read(argument: Argument) -> bool:
            return argument.name in read or any(True for _ in tensor_specs(argument.spec))

        self.declaration = replace(
            declaration,
            receiver=declaration.receiver if declaration.receiver in read else None,
            arguments=tuple(filter(is_read, declaration.arguments)),
            rules=rules,
        )
        self.names = check_parameters(self.declaration)
        every = check_parameters(declaration)
        self.places = tuple(every.index(name) for name in self.names)
        """Where the arguments that are read stand among all."""
        self.paths = self.declaration.paths
        self._passes = compile_passes(self.declaration).function

    def error(self, values: Sequence[Any]) -> ContractError | None:
        """The verdict on a call, given by the values that are read."""
        if self._passes(*values):
            return None
        named = dict(zip(self.names, values, strict=True))
        return explain.error(self.declaration, named)
