"""What rules write into a generated function: lines, tests and blocks, with names kept apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch._subclasses.fake_tensor import FakeTensor

from ..axes import Axis, Fixed, Named
from ..binding import by_kind
from ..model import Declaration
from ..rules.base import Rule
from ..rules.memory import MemoryRule
from ..spec import (
    TensorSpec,
    tensor_specs,
)
from ..tensors import COMPLEX, PLAIN_TYPES, each_tensor, is_strided
from ..traceable import is_traced
from .module import Module

CACHED = 3  # with fewer tensors the tests of kinds are as cheap as the cache


class Code:
    """The tests of one generated function; `failure` is the statement that a failed one executes.

    Implements `rules.base.Code`.
    """

    def __init__(self, module: Module, declaration: Declaration, failure: str) -> None:
        self.module = module
        self.declaration = declaration
        self.failure = failure
        self.lines: list[str] = []
        self.depth = 2
        self.taken: set[str] = set()
        self.variables: dict[str, str] = {}
        self.loose: set[str] = set()  # axes that may still be None
        self.shapes: list[tuple[tuple[Axis, ...], str]] = []
        self.temporaries: dict[tuple[str, int], str] = {}
        self.alike: set[str] = set()  # values whose whole shape was compared with another's
        self.contiguous: set[str] = set()
        self.contiguity: dict[str, str] = {}
        self.strided: set[str] = set()
        self.reaches: dict[str, str] = {}
        self.begins: dict[str, str] = {}
        self.tests = 0  # that a call of known kinds runs
        self.read_shapes: dict[str, str] = {}  # shapes that were read ahead of their tests
        sure, optional, *_ = by_kind(declaration)
        self.cached = bool(sure) and len(sure) + len(optional) >= CACHED
        """Whether the single tensors stand behind a cache of kinds."""
        self.kinds_known: set[str] = set()  # tensors whose kinds have been tested
        self.settled: dict[str, set[str]] = {}  # what rules tested along with the kinds
        self.anchor = ""
        self.notes = ""
        """The local that holds a dict which belongs to the call's layout, where that is known."""
        self.remembered: frozenset[str] = frozenset()
        """The locals that are the same in all calls of a layout."""
        self.conditions = 0
        self.traced = ""
        self.any_mode = ""
        """The local that says whether Dynamo traces or a dispatch mode is active: without either,
        nothing traces."""
        self.unaddressed = ""
        self.strided_by_rule = {
            name
            for rule in declaration.rules
            if isinstance(rule, MemoryRule)
            for name in rule.names
            if declaration.argument(name).is_tensor
            and isinstance(declaration.argument(name).inner, TensorSpec)
        }

    # -- what rules use

    def constant(self, value: Any, hint: str) -> str:
        return self.module.constant(value, hint)

    def builtin(self, name: str) -> str:
        return self.module.builtin(name)

    def isinstance(self, x: str, kind: str) -> str:
        return f"{self.builtin('isinstance')}({x}, {kind})"

    def local(self, hint: str) -> str:
        return self.module.local_name(hint, self.taken)

    def unused(self) -> str:
        """A target for what nobody needs: the function may have an argument called `_`."""
        return "_" if "_" not in self.module.parameters else self.local("unused")

    def name(self, name: str) -> str:
        if name not in self.variables:
            is_argument = any(argument.name == name for argument in self.declaration.arguments)
            if is_argument or name == self.declaration.receiver:
                return name
            self.variables[name] = self.local(name)
        return self.variables[name]

    def tracing(self) -> str:
        """The local that says whether a graph is being traced, by Dynamo or without it: addresses
        and lazy views do not trace."""
        if not self.traced:
            self.traced = self.local("tracing")
            dynamo = self.constant(torch.compiler.is_dynamo_compiling, "is_dynamo_compiling")
            modes = self.constant(_len_torch_dispatch_stack, "dispatch_modes")
            others = self.constant(is_traced, "is_traced")
            if self.cached:  # which has to know of any mode
                self.any_mode = self.local("any_mode")
                lines = [
                    f"{self.any_mode} = {dynamo}() or {modes}()",
                    f"{self.traced} = {self.any_mode} and ({dynamo}() or {others}())",
                ]
            elif any(rule.pointers for rule in self.declaration.rules):
                lines = [f"{self.traced} = {dynamo}() or {modes}() and {others}()"]
            else:  # nothing is left to a graph that others trace, and lazy views show there
                exporting = self.constant(torch.compiler.is_exporting, "is_exporting")
                lines = [f"{self.traced} = {dynamo}() or {exporting}()"]
            self.lines[:0] = ["    " * 2 + line for line in lines]
        return self.traced

    def addressless(self) -> str:
        """Whether the tensors have no addresses: in a traced graph, and where they are fake.

        One tensor speaks for all: torch does not mix fake tensors with others. The cache of kinds
        knows no fake ones, so that behind it nothing need be asked.
        """
        if self.unaddressed:
            return self.unaddressed
        tensors = [argument.name for argument in self.declaration.arguments if argument.is_tensor]
        sure = [name for name in tensors if not self.conditional(name)]
        if not tensors:
            return self.tracing()
        x = (sure or tensors)[0]
        plain = self.constant(PLAIN_TYPES, "PLAIN_TYPES")
        fake = f"{self.isinstance(x, self.constant(FakeTensor, 'FakeTensor'))}"
        return f"{self.tracing()} or {self.builtin('type')}({x}) not in {plain} and {fake}"

    def read_shape(self, x: str, key: str) -> str:
        shape = self.local(f"{key}_shape")
        self.line(f"{shape} = {x}.shape")
        return shape

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def require(self, condition: str) -> None:
        self.tests += 1
        self.line(f"if not ({condition}):")
        self.line(f"    {self.failure}")

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.line(header)
        before = len(self.lines)
        self.depth += 1
        self.conditions += 1
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.conditions -= 1
        self.depth -= 1

    @contextmanager
    def present(self, *names: str) -> Iterator[None]:
        unsure = [name for name in names if self.conditional(name)]
        if not unsure:
            yield
            return
        tests = " and ".join(f"{self.name(name)} is not None" for name in unsure)
        conditions = self.conditions
        with self.block(f"if {tests}:"):
            self.conditions = conditions
            yield
        self.conditions = conditions

    @contextmanager
    def each(self, name: str) -> Iterator[str]:
        with self.present(name):
            if not self.container(name):
                yield self.name(name)
                return
            item = self.local(f"{name}_item")
            walk = self.constant(each_tensor, "each_tensor")
            with self.block(f"for {item} in {walk}({self.name(name)}):"):
                yield item

    def conditional(self, name: str) -> bool:
        return name in self.declaration.names.optional or name in self.loose

    def container(self, name: str) -> bool:
        return name not in self.declaration.names.single

    def require_strided(self, name: str, x: str) -> None:
        if name in self.strided:
            return
        slow = f"{self.constant(is_strided, 'is_strided')}({x})"
        specs = list(tensor_specs(self.declaration.argument(name).spec))
        dtypes = [dtype for spec in specs for dtype in spec.dtypes or ()]
        if self.container(name) or any(spec.dtypes is None for spec in specs):
            self.require(slow)
        else:
            if x not in self.strided_by_rule:
                plain = self.constant(PLAIN_TYPES, "PLAIN_TYPES")
                own = f"{self.builtin('type')}({x}) in {plain} and {self.has_strided_layout(x)}"
                self.require(f"{own} or {slow}")
            self.require(f"{self.tracing()} or not {x}.is_neg()")
            if any(dtype in COMPLEX for dtype in dtypes):
                self.require(f"{self.tracing()} or not {x}.is_conj()")
        if not self.conditions:
            self.strided.add(name)

    def has_strided_layout(self, x: str) -> str:
        """Not sparse, and not oneDNN's, which says that it is contiguous."""
        return f"{x}.layout is {self.constant(torch.strided, 'strided')}"

    def unsettled(self, rule: Rule, names: tuple[str, ...]) -> tuple[str, ...]:
        done = self.settled.get(rule.id, ())
        return tuple(name for name in names if name not in done)

    def dense(self, name: str, x: str) -> str:
        """Whether a tensor is contiguous: read once, where one place reads it for all."""
        if name in self.contiguity:
            return self.contiguity[name]
        if self.conditions or self.container(name):
            return f"{x}.is_contiguous()"
        self.contiguity[name] = self.local(f"{name}_is_dense")
        self.line(f"{self.contiguity[name]} = {x}.is_contiguous()")
        return self.contiguity[name]

    def reach(self, name: str) -> str | None:
        """The local that holds how many bytes a tensor reaches over, once there is one."""
        return self.reaches.get(name)

    def bind_reach(self, name: str) -> str:
        """A local for that; others find it, unless it is bound under a condition."""
        reach = self.local(f"{name}_bytes")
        if not self.conditions:
            self.reaches[name] = reach
        return reach

    def address(self, name: str) -> str:
        """The local that holds a tensor's address: read once, where one place reads it for all."""
        if name not in self.begins or self.conditions:
            begin = self.local(f"{name}_begin")
            self.line(f"{begin} = {self.name(name)}.data_ptr()")
            if self.conditions:
                return begin
            self.begins[name] = begin
        return self.begins[name]

    def known_strided(self, name: str) -> bool:
        return name in self.strided

    def known_contiguous(self, name: str) -> bool:
        return name in self.contiguous

    def note_contiguous(self, name: str) -> None:
        if not self.conditions and not self.container(name):
            self.contiguous.add(name)

    def dense_bytes(self, name: str) -> str:
        """The size in bytes of a contiguous tensor, from its axes where those give it."""
        spec = self.declaration.argument(name).inner
        if isinstance(spec, TensorSpec) and spec.dtypes is not None:
            sizes = {dtype.itemsize for dtype in spec.dtypes}
            axes = [
                axis.name if isinstance(axis, Named) else axis.size
                for axis in spec.shape.axes
                if isinstance(axis, Named | Fixed) and not axis.broadcast
            ]
            if len(sizes) == 1 and len(axes) == len(spec.shape.axes):
                known = [self.name(axis) if isinstance(axis, str) else str(axis) for axis in axes]
                factors = [factor for factor in [*known, *map(str, sizes)] if factor != "1"]
                return " * ".join(factors) or "1"
        return f"{self.name(name)}.nbytes"


def words(lines: Iterable[str]) -> set[str]:
    """The names that stand in generated code."""
    return set(re.findall(r"\w+", "\n".join(lines)))
