"""The tests of one generated function: every annotation, then every rule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from .. import expressions
from ..axes import ANY_SHAPE, Anonymous, Axis, Computed, Fixed, Named, Variadic
from ..binding import (
    axis_names,
    broadcast_names,
    broadcast_shapes,
    broadcast_variadics,
    by_kind,
    computed_names,
)
from ..expressions import Binary
from ..kinds import Kinds
from ..rules.base import Rule
from ..rules.tensor import NoGrad, dtype_test
from ..spec import (
    AnySpec,
    ItemsSpec,
    OptionalSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
    ValueSpec,
    judge_of,
    tensor_specs,
)
from ..tensors import PLAIN_TYPES, is_strided
from .code import CACHED, Code
from .remembering import Remembering, is_comparable


class Body(Code):
    """A function's tests, in an order that lets every name be bound before it is needed."""

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
        tests = [] if key in self.kinds_known else self.kind_tests(spec, x)
        axes = spec.shape.axes
        if axes == (Variadic(),):
            self.require_all(tests)
            return
        same = next((shape for known, shape in self.shapes if known == axes), None)
        if same is not None:
            self.alike.add(key)
            self.require_all([*tests, f"{self.read_shapes.get(key, f'{x}.shape')} == {same}"])
            return
        whole = self.whole_shape(axes)
        if whole is not None:
            self.require_all([*tests, f"{self.read_shapes.get(key, f'{x}.shape')} == {whole}"])
            return
        self.require_all(tests)
        shape = self.read_shapes.get(key) or self.read_shape(x, key)
        if spec.shape.variadic is None:
            self.fixed_rank(axes, shape, key, sure)
        else:
            self.variable_rank(spec, shape, key)
        if sure and all(map(self.is_decided, axes)):
            self.shapes.append((axes, shape))

    def is_decided(self, axis: Axis) -> bool:
        """Whether every right call has one size for this axis, so that whole shapes compare."""
        if isinstance(axis, Computed):
            names = expressions.value_names(axis.expression)
            return not axis.broadcast and not any(map(self.conditional, names))
        return not (isinstance(axis, Anonymous | Variadic) or axis.broadcast)

    def require_all(self, tests: Sequence[str]) -> None:
        if tests:
            self.require(" and ".join(tests))

    def kind_tests(self, spec: TensorSpec, x: str) -> list[str]:
        """Type and dtype."""
        tests = [self.type_test(spec, x)]
        if spec.dtypes is not None:
            tests.append(dtype_test(self, x, spec.dtypes))
        return tests

    def type_test(self, spec: TensorSpec, x: str) -> str:
        """One look at the type, which also spares a memory rule its look at plain tensors."""
        kind = self.constant(spec.array_type, spec.array_type.__name__)
        if spec.array_type is not torch.Tensor or x not in self.strided_by_rule:
            return self.isinstance(x, kind)
        if spec.shape == ANY_SHAPE:  # no read of a shape will tell a strided nested tensor
            return f"{self.isinstance(x, kind)} and {self.constant(is_strided, 'is_strided')}({x})"
        plain = self.constant(PLAIN_TYPES, "PLAIN_TYPES")
        slow = self.constant(is_strided, "is_strided")
        own = f"{self.builtin('type')}({x}) in {plain} and {self.has_strided_layout(x)}"
        return f"({own} or {self.isinstance(x, kind)} and {slow}({x}))"

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
                    targets.append(self.unused())
                case Named(name=name, broadcast=False) if sure and not (
                    name in self.variables or name in self.loose
                ):
                    targets.append(self.name(name))
                case _:
                    size = self.local(f"{key}_{index}")
                    targets.append(size)
                    later.append((axis, size))
                    self.temporaries[key, index] = size
        if targets:  # unpacking fails by itself; in a trace of torch 2.11, for good
            wrong = f"{self.builtin('len')}({shape}) != {len(targets)}"
            self.line(f"if {self.traced} and {wrong}:" if self.traced else f"if {wrong}:")
            self.line(f"    {self.failure}")
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
            types = spec.types[0] if len(spec.types) == 1 else spec.types
            hint = re.sub(r"\W+", "_", spec.text).strip("_")
            self.require(self.isinstance(x, self.constant(types, f"{hint}_type")))
        elif choices := spec.choices:
            tests = []
            for kinds, values in choices:
                own = self.isinstance(x, self.constant(kinds, f"{kinds[0].__name__}_type"))
                tests.append(f"{own} and ({' or '.join(f'{x} == {v!r}' for v in values)})")
            self.require(" or ".join(tests))
        else:
            judge = self.constant(judge_of(spec.hint), "is_bearable")
            self.require(f"{judge}({x})")

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
            bound = ", ".join(self.name(name) for name in axes)
            self.line(f"{self.unused()}, {bound} = {match_}")

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
        if key in self.alike or not any(tensor.shape.has_computed for tensor in tensor_specs(spec)):
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

    def scalars(self) -> None:
        """The annotations of what is no tensor."""
        for axis in sorted(self.declaration.sizes):
            self.variables[axis] = axis
        for argument in self.declaration.arguments:
            if isinstance(argument.inner, ValueSpec):
                self.spec(argument.spec, argument.name, argument.name)

    def tensors(self) -> None:
        """The annotations of tensors, in an order that lets every name be bound before it is
        needed."""
        declaration = self.declaration
        plain, optional, containers, unions = by_kind(declaration)
        self.kinds([argument.name for argument in plain], [argument.name for argument in optional])
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
        for name in sorted((broadcast & certain).difference(joined)):
            with self.block(f"if {self.name(name)} is None:"):
                self.line(f"{self.name(name)} = 1")
            self.loose.discard(name)
        for name in joined:
            join = self.constant(broadcast_shapes, "broadcast_shapes")
            self.line(f"{self.name(name)} = {join}({self.name(name)}, {self.broadcasts(name)})")
        for argument in [*plain, *optional, *containers]:
            self.computed(argument.spec, argument.name, argument.name)

    def kinds(self, sure: list[str], optional: list[str]) -> None:
        """Type, dtype, device and the like of the single tensors, behind a cache where that pays.

        One cache knows calls with every optional tensor; where one is absent, another knows those
        that are always there, and the rest are tested.
        """
        tensors = [*sure, *optional]
        if not sure or len(tensors) < CACHED:
            return
        self.anchor = sure[0]
        nested = self.read_shapes_ahead(tensors)
        with self.unless_known(tensors, nested):
            if self.unaddressed:
                fake = self.isinstance(self.anchor, self.constant(FakeTensor, "FakeTensor"))
                self.line(f"{self.unaddressed} = {self.tracing()} or {fake}")
            if optional and len(sure) >= CACHED:
                with self.unless_known(sure, nested):
                    self.test_kinds(sure)
                self.test_kinds(optional)
            else:
                self.test_kinds(tensors)
        self.kinds_known.update(tensors)

    def read_shapes_ahead(self, names: list[str]) -> set[str]:
        """Read the shapes that will be needed; the tensors whose shape will not be.

        Asking the cache about a strided nested tensor ends the process. Reading its shape fails
        instead; where no shape is needed, the tensor has to be asked whether it is nested.
        """
        nested = set()
        for name in names:
            spec = self.declaration.argument(name).inner
            if isinstance(spec, TensorSpec) and spec.shape == ANY_SHAPE:
                nested.add(name)
                continue
            if name not in self.read_shapes:
                with self.present(name):
                    self.read_shapes[name] = self.read_shape(name, name)
        return nested

    @contextmanager
    def unless_known(self, names: list[str], nested: set[str]) -> Iterator[None]:
        """A block of tests that a cache stands for: what they say, holds after it."""
        gradless = any(isinstance(rule, NoGrad) for rule in self.declaration.rules)
        cache = self.constant(Kinds(gradless), "kinds")
        tensors = ", ".join(names)
        unknown = [
            self.tracing(),
            *(f"{name} is None" for name in names if self.conditional(name)),
            *(f"{name}.is_nested" for name in names if name in nested),
        ]
        with self.block(f"if {' or '.join(unknown)} or not {cache}.same({tensors}):"):
            self.conditions -= 1
            tests = self.tests
            yield
            self.tests = tests
            with self.block(f"if not ({' or '.join(unknown)}):"):
                self.line(f"{cache}.remember({tensors})")
            self.conditions += 1

    def test_kinds(self, names: list[str]) -> None:
        for name in names:
            spec = self.declaration.argument(name).inner
            assert isinstance(spec, TensorSpec)
            with self.present(name):
                self.require_all(self.kind_tests(spec, name))
        for rule in self.declaration.rules:
            self.settled.setdefault(rule.id, set()).update(rule.emit_kinds(self, names))

    def layout_rules(self) -> None:
        """What every rule demands of kinds, sizes, strides and scalars."""
        for rule in self.declaration.rules:
            if rule.pointers:
                rule.emit_layout(self)
            elif not self.is_asked_anew(rule):
                rule.emit(self)

    def is_asked_anew(self, rule: Rule) -> bool:
        """Whether nobody knows what a rule looks at, or it reads what cannot be compared."""
        names = getattr(rule, "names", ())
        return rule.opaque or not all(
            is_comparable(argument)
            for argument in self.declaration.arguments
            if argument.name in names
        )

    def other_rules(self) -> None:
        """Rules on addresses, and those that no layout decides."""
        for rule in self.declaration.rules:
            if self.is_asked_anew(rule) and not rule.pointers:
                rule.emit(self)
        pointers = [rule for rule in self.declaration.rules if rule.pointers]
        if pointers:
            with self.block(f"if not ({self.addressless()}):"):
                self.conditions -= 1  # all that read an address stand here
                for rule in pointers:
                    rule.emit(self)
                self.conditions += 1

    def tangents(self) -> None:
        """Tests that are asked in every call in which forward-mode AD is at work."""
        rules = [rule for rule in self.declaration.rules if rule.tangents]
        if rules:
            level = f"{self.constant(forward_ad, 'forward_ad')}._current_level"
            with self.block(f"if {level} >= 0:"):
                for rule in rules:
                    rule.emit_tangents(self)

    def everything(self, needed: Sequence[str] = ()) -> None:
        """All tests; whoever reads axes afterwards says which are `needed`."""
        self.scalars()
        if self.cached and any(rule.pointers for rule in self.declaration.rules):
            self.unaddressed = self.local("addressless")
            self.line(f"{self.unaddressed} = {self.tracing()}")
        known = Remembering(self)
        self.tensors()
        self.layout_rules()
        known.end()
        self.other_rules()
        self.tangents()
        known.emit(needed)

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
