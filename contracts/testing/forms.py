"""What a call looks like before it has sizes: which arguments are there, how many items, ..."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..model import Declaration
from ..spec import ItemsSpec, OptionalSpec, Spec, TensorSpec, TupleSpec, UnionSpec


@dataclass(frozen=True)
class Form:
    """One way in which a contract may be called, sizes apart."""

    absent: frozenset[str] = frozenset()
    """Optional arguments that are None."""
    length: int = 2
    """Items in each container."""
    branch: int = 0
    """Which branch of every union; the last one where there are fewer."""
    ones: bool = False
    """Axes that may broadcast have size 1."""
    dtype: torch.dtype | None = None
    """The dtype of every tensor that may have it."""
    device: str | None = None
    """The device of every tensor, where it is not what the rules say."""

    def describe(self, declaration: Declaration) -> str:
        """Which optional arguments are given, in a few words."""
        optional = [argument.name for argument in declaration.arguments if argument.optional]
        given = [name for name in optional if name not in self.absent]
        if not optional:
            return "as small as it gets"
        if not given:
            return "no optional argument"
        if not self.absent:
            return "every optional argument"
        if len(given) <= len(self.absent):
            return f"with {', '.join(given)}"
        return f"without {', '.join(sorted(self.absent))}"

    def branch_of(self, spec: UnionSpec) -> Spec:
        return spec.branches[min(self.branch, len(spec.branches) - 1)]

    def tensors(self, spec: Spec, label: str) -> Iterator[tuple[TensorSpec, str]]:
        """The tensors of a value, each with its label; the items of a container are alike."""
        match spec:
            case TensorSpec():
                yield spec, label
            case OptionalSpec(inner=inner):
                yield from self.tensors(inner, label)
            case UnionSpec():
                yield from self.tensors(self.branch_of(spec), label)
            case ItemsSpec(item=item) if self.length:
                yield from self.tensors(item, f"{label}[]")
            case TupleSpec(items=items):
                for index, item in enumerate(items):
                    yield from self.tensors(item, f"{label}[{index}]")


def presences(declaration: Declaration) -> Iterator[Form]:
    """Which optional arguments are given: none, all, each one alone, all but each one."""
    optional = [argument.name for argument in declaration.arguments if argument.optional]
    everything = frozenset(optional)
    seen: set[frozenset[str]] = set()
    for absent in (
        everything,
        frozenset[str](),
        *(everything - {name} for name in optional),
        *(frozenset({name}) for name in optional),
    ):
        if absent not in seen:
            seen.add(absent)
            yield Form(absent=absent)
