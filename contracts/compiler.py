"""A declaration -> straight-line Python.

Three functions come out of one emitter: `passes` answers yes or no and is what every call runs,
`sizes` returns the axis sizes, and the wrapper stands in front of the user's function with the
user's exact signature. The source is registered with linecache, so that tracebacks show it.

What costs time is reading tensor attributes, so each shape is read once and whole shapes are
compared where they are equal by name; the rest is plain control flow.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import linecache
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from . import expressions
from .axes import Anonymous, Axis, Computed, Fixed, Named, Variadic
from .binding import (
    axis_names,
    broadcast_names,
    broadcast_shapes,
    broadcast_variadics,
    by_kind,
    computed_names,
    has_computed,
)
from .expressions import Binary
from .model import Declaration
from .rules.memory import MemoryRule
from .rules.tensor import dtype_test
from .spec import (
    AnySpec,
    ItemsSpec,
    OptionalSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
    ValueSpec,
    is_bearable,
    tensor_specs,
)
from .tensors import LAZY_CONJUGATE, LAZY_NEGATIVE, PLAIN_TYPES, each_tensor, is_strided

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
        """Execute the module; its source shows in tracebacks."""
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
        return namespace


_USED = frozenset({"isinstance", "len", "type", "tuple", "Exception"})


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


class Body:
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
        self.strided: set[str] = set()
        self.conditions = 0
        self.traced = ""
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

    def name(self, name: str) -> str:
        if name not in self.variables:
            is_argument = any(argument.name == name for argument in self.declaration.arguments)
            if is_argument or name == self.declaration.receiver:
                return name
            self.variables[name] = self.local(name)
        return self.variables[name]

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def require(self, condition: str) -> None:
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
                kind = f"{self.builtin('type')}({x})"
                self.require(f"{kind} in {self.constant(PLAIN_TYPES, 'PLAIN_TYPES')} or {slow}")
            if any(dtype in LAZY_NEGATIVE + LAZY_CONJUGATE for dtype in dtypes):
                self.require(f"{self.tracing()} or not {x}.is_neg()")
            if any(dtype in LAZY_CONJUGATE for dtype in dtypes):
                self.require(f"{self.tracing()} or not {x}.is_conj()")
        if not self.conditions:
            self.strided.add(name)

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
                factors = [self.name(axis) if isinstance(axis, str) else axis for axis in axes]
                factors = [str(factor) for factor in [*factors, *sizes] if factor != 1]
                return " * ".join(factors) or "1"
        return f"{self.name(name)}.nbytes"

    # -- annotations

    def bind(self, axis: str, size: str) -> None:
        """Bind an axis that may have a size already, or compare with the size it has."""
        variable = self.name(axis)
        if axis in self.loose:
            with self.block(f"if {variable} is None:"):
                self.line(f"{variable} = {size}")
            self.line(f"elif {variable} != {size}:")
            self.line(f"    {self.failure}")
        elif size != variable:
            self.require(f"{size} == {variable}")

    def tensor(self, spec: TensorSpec, x: str, key: str, *, sure: bool) -> None:
        """Type, dtype, rank and every axis but the computed ones."""
        tests = [self.type_test(spec, x)]
        if spec.dtypes is not None:
            tests.append(dtype_test(self, x, spec.dtypes))
        axes = spec.shape.axes
        if axes == (Variadic(),):
            self.require(" and ".join(tests))
            return
        same = next((shape for known, shape in self.shapes if known == axes), None)
        if same is not None:
            self.alike.add(key)
            self.require(" and ".join([*tests, f"{x}.shape == {same}"]))
            return
        whole = self.whole_shape(axes)
        if whole is not None:
            self.require(" and ".join([*tests, f"{x}.shape == {whole}"]))
            return
        self.require(" and ".join(tests))
        shape = self.local(f"{key}_shape")
        self.line(f"{shape} = {x}.shape")
        if spec.shape.variadic is None:
            self.fixed_rank(axes, shape, key, sure)
        else:
            self.variable_rank(spec, shape, key)
        if sure and not any(
            isinstance(axis, Anonymous | Variadic) or axis.broadcast for axis in axes
        ):
            self.shapes.append((axes, shape))

    def type_test(self, spec: TensorSpec, x: str) -> str:
        """One look at the type, which also spares a memory rule its look at plain tensors."""
        kind = self.constant(spec.array_type, spec.array_type.__name__)
        if spec.array_type is not torch.Tensor or x not in self.strided_by_rule:
            return self.isinstance(x, kind)
        plain = self.constant(PLAIN_TYPES, "PLAIN_TYPES")
        slow = self.constant(is_strided, "is_strided")
        own = f"{self.builtin('type')}({x})"
        return f"({own} in {plain} or {self.isinstance(x, kind)} and {slow}({x}))"

    def whole_shape(self, axes: tuple[Axis, ...]) -> str | None:
        """The shape as a tuple, where every size is known by now."""
        sizes = []
        for axis in axes:
            match axis:
                case Named(name=name, broadcast=False) if self.is_bound(name):
                    sizes.append(self.name(name))
                case Fixed(size=size, broadcast=False):
                    sizes.append(str(size))
                case _:
                    return None
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def is_bound(self, axis: str) -> bool:
        return axis in self.variables and axis not in self.loose

    def fixed_rank(self, axes: tuple[Axis, ...], shape: str, key: str, sure: bool) -> None:
        targets, later = [], []
        for index, axis in enumerate(axes):
            match axis:
                case Anonymous():
                    targets.append("_")
                case Named(name=name, broadcast=False) if sure and not (
                    name in self.variables or name in self.loose
                ):
                    targets.append(self.name(name))
                case _:
                    size = self.local(f"{key}_{index}")
                    targets.append(size)
                    later.append((axis, size))
                    self.temporaries[key, index] = size
        if len(targets) == 1:
            self.line(f"({targets[0]},) = {shape}")
        elif targets:
            self.line(f"{', '.join(targets)} = {shape}")
        for axis, size in later:
            self.axis(axis, size)

    def variable_rank(self, spec: TensorSpec, shape: str, key: str) -> None:
        axes, position = spec.shape.axes, spec.shape.variadic
        assert position is not None
        if spec.shape.least_rank:
            self.require(f"{self.builtin('len')}({shape}) >= {spec.shape.least_rank}")
        for index, axis in enumerate(axes):
            if index == position:
                continue
            place = index if index < position else index - len(axes)
            if isinstance(axis, Computed):
                self.temporaries[key, index] = f"{shape}[{place}]"
            elif not isinstance(axis, Anonymous):
                size = self.local(f"{key}_{index}")
                self.line(f"{size} = {shape}[{place}]")
                self.axis(axis, size)
        variadic = axes[position]
        assert isinstance(variadic, Variadic)
        if variadic.name is not None:
            stop = position - len(axes) + 1
            rest = f"{self.builtin('tuple')}({shape}[{position or ''}:{stop or ''}])"
            if variadic.broadcast:
                self.line(f"{self.broadcasts(variadic.name)}.append({rest})")
            else:
                size = self.local(f"{key}_{variadic.name}")
                self.line(f"{size} = {rest}")
                self.bind_first(variadic.name, size)

    def broadcasts(self, name: str) -> str:
        return self.name(f"*{name}")

    def bind_first(self, axis: str, size: str) -> None:
        """Bind where this is surely the first place to bind the axis, else bind or compare."""
        if axis in self.variables or axis in self.loose:
            self.bind(axis, size)
        else:
            self.line(f"{self.name(axis)} = {size}")

    def axis(self, axis: Axis, size: str) -> None:
        match axis:
            case Fixed(size=fixed, broadcast=broadcast):
                self.require(
                    f"{size} == 1 or {size} == {fixed}" if broadcast else f"{size} == {fixed}"
                )
            case Named(name=name, broadcast=True):
                with self.block(f"if {size} != 1:"):
                    self.bind(name, size)
            case Named(name=name):
                self.bind_first(name, size)

    def value(self, spec: ValueSpec, x: str) -> None:
        if spec.types is not None:
            kinds = spec.types[0] if len(spec.types) == 1 else spec.types
            hint = re.sub(r"\W+", "_", spec.text).strip("_")
            self.require(self.isinstance(x, self.constant(kinds, f"{hint}_type")))
        else:
            judge, hint = (
                self.constant(is_bearable, "is_bearable"),
                self.constant(spec.hint, "hint"),
            )
            self.require(f"{judge}({x}, {hint})")

    def items(
        self, spec: ItemsSpec | TupleSpec, x: str, key: str
    ) -> Iterator[tuple[Spec, str, str]]:
        """Emit the container's own tests, then yield each item inside the loop that visits it."""
        if isinstance(spec, TupleSpec):
            length = f"{self.builtin('len')}({x}) == {len(spec.items)}"
            self.require(f"{self.isinstance(x, self.builtin('tuple'))} and {length}")
            for index, item in enumerate(spec.items):
                yield item, f"{x}[{index}]", f"{key}_{index}"
            return
        container = self.constant(spec.container, spec.container.__name__)
        self.require(self.isinstance(x, container))
        entry = self.local(f"{key}_item")
        if spec.key != AnySpec():
            label = self.local(f"{key}_key")
            with self.block(f"for {label} in {x}:"):
                self.spec(spec.key, label, label)
        values = f"{x}.values()" if hasattr(spec.container, "values") else x
        with self.block(f"for {entry} in {values}:"):
            yield spec.item, entry, entry

    def spec(self, spec: Spec, x: str, key: str, *, sure: bool = False) -> None:
        """Everything about a value but its computed axes."""
        match spec:
            case TensorSpec():
                self.tensor(spec, x, key, sure=sure)
            case ValueSpec():
                self.value(spec, x)
            case OptionalSpec(inner=inner):
                with self.block(f"if {x} is not None:"):
                    self.spec(inner, x, key)
            case UnionSpec():
                self.union(spec, x, key)
            case ItemsSpec() | TupleSpec():
                for item, entry, name in self.items(spec, x, key):
                    self.spec(item, entry, name)

    def union(self, spec: UnionSpec, x: str, key: str) -> None:
        """One helper function a branch: it returns the axes as it leaves them, or None."""
        axes = [
            name
            for name in self.declaration.axes
            if any(name in axis_names(tensor) for tensor in tensor_specs(spec))
        ]
        used = sorted(
            {name for tensor in tensor_specs(spec) for name in computed_names(tensor)} - set(axes)
        )
        for name in axes:
            if name not in self.variables:
                self.line(f"{self.name(name)} = None")
                self.loose.add(name)
        given = ", ".join([x, *(self.name(name) for name in [*axes, *used])])
        calls = [self.branch(branch, key, axes, used) for branch in spec.branches]
        match_ = self.local(f"{key}_match")
        self.line(f"{match_} = {' or '.join(f'{call}({given})' for call in calls)}")
        self.require(f"{match_} is not None")
        if axes:
            self.line(f"_, {', '.join(self.name(name) for name in axes)} = {match_}")

    def branch(self, branch: Spec, key: str, axes: list[str], used: list[str]) -> str:
        name = self.module.global_name(f"{key}_branch")
        body = Body(self.module, self.declaration, "return None")
        body.variables = {axis: self.name(axis) for axis in [*axes, *used]}
        body.taken |= set(body.variables.values())
        body.loose = set(self.loose) | set(axes)
        value = body.local("value")
        body.spec(branch, value, key)
        body.computed(branch, value, key)
        body.line(f"return ({', '.join(['True', *(body.name(axis) for axis in axes)])},)")
        parameters = [value, *(body.name(axis) for axis in [*axes, *used])]
        self.module.functions.append(body.function(name, parameters))
        return name

    def computed(self, spec: Spec, x: str, key: str) -> None:
        """The computed axes of a value whose other axes hold."""
        if key in self.alike or not any(has_computed(tensor) for tensor in tensor_specs(spec)):
            return
        match spec:
            case TensorSpec():
                for index, axis in enumerate(spec.shape.axes):
                    if isinstance(axis, Computed):
                        self.computed_axis(axis, self.temporary(spec, x, key, index))
            case OptionalSpec(inner=inner):
                with self.block(f"if {x} is not None:"):
                    self.computed(inner, x, key)
            case TupleSpec(items=items):
                for index, item in enumerate(items):
                    self.computed(item, f"{x}[{index}]", f"{key}_{index}")
            case ItemsSpec(container=container, item=item):
                entry = self.local(f"{key}_item")
                values = f"{x}.values()" if hasattr(container, "values") else x
                with self.block(f"for {entry} in {values}:"):
                    self.computed(item, entry, entry)

    def temporary(self, spec: TensorSpec, x: str, key: str, index: int) -> str:
        if (key, index) in self.temporaries:
            return self.temporaries[key, index]
        position = spec.shape.variadic
        place = index if position is None or index < position else index - len(spec.shape.axes)
        return f"{x}.shape[{place}]"

    def computed_axis(self, axis: Computed, size: str) -> None:
        node = axis.expression
        unsure = sorted(name for name in expressions.value_names(node) if self.conditional(name))
        with self.present(*unsure):
            match node:
                case Binary(operator="/", left=left, right=expressions.Const(value=int(by))) if by:
                    # As a product: a division of a symbolic size would be a guard of its own.
                    whole = expressions.emit(left, self.name, self.constant)
                    whole = whole if isinstance(left, expressions.Name) else f"({whole})"
                    test = f"{size} * {by} == {whole}"
                case _:
                    value = expressions.emit(node, self.name, self.constant)
                    test = f"{size} == {value}"
            self.require(f"{size} == 1 or {test}" if axis.broadcast else test)

    # -- the whole

    def arguments(self) -> None:
        """All annotations, in an order that lets every name be bound before it is needed."""
        declaration = self.declaration
        for axis in sorted(declaration.sizes):
            self.variables[axis] = axis
        plain, optional, containers, unions = by_kind(declaration.arguments)
        for argument in declaration.arguments:
            if isinstance(argument.inner, ValueSpec):
                self.spec(argument.spec, argument.name, argument.name)
        broadcast = broadcast_names(declaration)
        certain = {name for argument in plain for name in axis_names(argument.spec)}
        for name in declaration.axes:
            if name in broadcast or (name not in certain and name not in declaration.sizes):
                self.line(f"{self.name(name)} = None")
                self.loose.add(name)
        joined = broadcast_variadics(declaration)
        for name in joined:
            self.line(f"{self.broadcasts(name)} = []")
        for argument in plain:
            self.spec(argument.spec, argument.name, argument.name, sure=True)
        for argument in [*optional, *containers, *unions]:
            self.spec(argument.spec, argument.name, argument.name)
        for name in sorted(broadcast & certain):
            with self.block(f"if {self.name(name)} is None:"):
                self.line(f"{self.name(name)} = 1")
            self.loose.discard(name)
        for name in joined:
            join = self.constant(broadcast_shapes, "broadcast_shapes")
            self.line(f"{self.name(name)} = {join}({self.name(name)}, {self.broadcasts(name)})")
        for argument in [*plain, *optional, *containers]:
            self.computed(argument.spec, argument.name, argument.name)

    def rules(self) -> None:
        pointers = [rule for rule in self.declaration.rules if rule.pointers]
        for rule in self.declaration.rules:
            if not rule.pointers:
                rule.emit(self)
        if pointers:
            with self.block(f"if not {self.tracing()}:  # a graph has no addresses"):
                for rule in pointers:
                    rule.emit(self)

    def tracing(self) -> str:
        """The local that says whether Dynamo is tracing: addresses and lazy views do not trace."""
        if not self.traced:
            self.traced = self.local("tracing")
            compiling = self.constant(torch.compiler.is_dynamo_compiling, "is_dynamo_compiling")
            self.lines.insert(0, f"{'    ' * 2}{self.traced} = {compiling}()")
        return self.traced

    def everything(self) -> None:
        self.arguments()
        self.rules()

    def function(self, name: str, parameters: Sequence[str]) -> str:
        return "\n".join(
            [
                f"def {name}({', '.join(parameters)}):",
                "    try:",
                *(self.lines or ["        pass"]),
                f"    except {self.builtin('Exception')}:  # the explaining path says what it was",
                f"        {self.failure}",
            ]
        )


@dataclass(frozen=True)
class Compiled:
    """A generated function, which takes every argument by position, and its source."""

    function: Callable[..., Any]
    source: str


def compile_passes(declaration: Declaration) -> Compiled:
    """The check of every call: True for a right one."""
    body = _body(declaration, "return False")
    body.line("return True")
    return _load(body, "passes")


def compile_sizes(declaration: Declaration) -> Compiled:
    """The same check for those who want the axis sizes: a dict, or None for a wrong call."""
    body = _body(declaration, "return None")
    sure = [name for name in declaration.axes if name not in body.loose]
    found = body.local("found")
    entries = ", ".join(f"{name!r}: {body.name(name)}" for name in sure)
    body.line(f"{found} = {{{entries}}}")
    for name in declaration.axes:
        if name in body.loose:
            with body.block(f"if {body.name(name)} is not None:"):
                body.line(f"{found}[{name!r}] = {body.name(name)}")
    body.line(f"return {found}")
    return _load(body, "sizes")


def _module(declaration: Declaration) -> Module:
    return Module(declaration.name, frozenset(declaration.signature.parameters))


def _body(declaration: Declaration, failure: str) -> Body:
    body = Body(_module(declaration), declaration, failure)
    body.everything()
    return body


def _load(body: Body, name: str) -> Compiled:
    name = body.module.global_name(name)
    body.module.functions.append(body.function(name, _check_parameters(body.declaration)))
    return Compiled(body.module.load()[name], body.module.source)


def _check_parameters(declaration: Declaration) -> list[str]:
    names = [argument.name for argument in declaration.arguments]
    return [declaration.receiver, *names] if declaration.receiver else names


class Refused(Exception):
    """Leaves an inlined check; never reaches a caller."""


def compile_wrapper(
    declaration: Declaration,
    template: str,
    objects: Mapping[str, Any],
) -> Callable[..., Any]:
    """A function with the declaration's exact signature.

    `template` is the body. In it `{call}` stands for the arguments as the function takes them,
    `{arguments}` for the arguments by position, as the generated checks take them, `{values}` for
    a tuple of these, and each key of `objects` for that object. A line `{check}` becomes the whole
    check, in place: what it refuses goes to `objects["refuse"]` as a tuple, which raises or lets
    the call pass; in a traced graph, rules on addresses go to `objects["at_run_time"]`.
    """
    signature = declaration.signature
    module = _module(declaration)
    names = {key: module.constant(value, key) for key, value in objects.items()}
    name = declaration.name.rpartition(".")[2]
    name = module.global_name(name if name.isidentifier() else "wrapper")
    names["call"] = _pass_on(signature)
    names["arguments"] = ", ".join(_checked_arguments(declaration, module))
    names["values"] = f"({names['arguments']},)" if names["arguments"] else "()"
    lines = [f"def {name}({_parameters(signature, module)}):"]
    for line in template.splitlines():
        if line == "{check}":
            lines += _inlined(declaration, module, names)
        else:
            lines.append("    " + line.format(**names))
    module.functions.append("\n".join(lines))
    return module.load()[name]


def _inlined(declaration: Declaration, module: Module, names: Mapping[str, str]) -> list[str]:
    values = names["values"]
    refuse = f"{names['refuse']}({values})"
    if any(argument.factory for argument in declaration.arguments):
        passes = module.constant(compile_passes(declaration).function, "passes")
        return [f"    if not {passes}({names['arguments']}):", f"        {refuse}"]
    body = Body(module, declaration, f"raise {module.constant(Refused, 'Refused')}")
    body.everything()
    lines = [
        "    try:",
        *(body.lines or ["        pass"]),
        f"    except {module.builtin('Exception')}:",
        f"        {refuse}",
    ]
    if any(rule.pointers for rule in declaration.rules):
        lines += [f"    if {body.tracing()}:", f"        {names['at_run_time']}({values})"]
    return lines


def _checked_arguments(declaration: Declaration, module: Module) -> list[str]:
    """The arguments as the checks take them: the marker of a default factory is an absent one."""
    factories = {argument.name for argument in declaration.arguments if argument.factory}
    checked = []
    for value in _check_parameters(declaration):
        if value in factories:
            default = declaration.signature.parameters[value].default
            marker = module.constant(default, f"{value}_factory")
            checked.append(f"None if {value} is {marker} else {value}")
        else:
            checked.append(value)
    return checked


def _parameters(signature: inspect.Signature, module: Module) -> str:
    """The parameter list, defaults bound by name."""
    parts: list[str] = []
    previous = None
    for parameter in signature.parameters.values():
        kind = parameter.kind
        if previous is parameter.POSITIONAL_ONLY and kind is not parameter.POSITIONAL_ONLY:
            parts.append("/")
        if kind is parameter.KEYWORD_ONLY and previous not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            parts.append("*")
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "")
        text = star + parameter.name
        if parameter.default is not parameter.empty:
            text += f"={module.constant(parameter.default, f'{parameter.name}_default')}"
        parts.append(text)
        previous = kind
    if previous is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts)


def _pass_on(signature: inspect.Signature) -> str:
    """The same arguments in a call."""
    form = {
        inspect.Parameter.VAR_POSITIONAL: "*{0}",
        inspect.Parameter.VAR_KEYWORD: "**{0}",
        inspect.Parameter.KEYWORD_ONLY: "{0}={0}",
    }
    return ", ".join(
        form.get(parameter.kind, "{0}").format(parameter.name)
        for parameter in signature.parameters.values()
    )
