"""Conditions on elements -> the text of one Triton kernel that judges all of them.

Every program looks at its share of each condition's elements and counts those that break it. Only
where there are some does it look again, for the first. The program that finishes last writes what
all have found into the call's record in pinned memory, its mark last, and leaves the state as it
was: the host learns of it by looking, and nothing waits for anything.

The state, int64: programs that have finished; then, for each condition, how many elements break it
and the complement of the first one's index, so that zeros are the start. The record, int64: the
call's mark; then, for each condition, the count, the index and the value of each tensor there,
floats as the bits of a float64.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from contracts.contents.condition import Condition
from contracts.expressions import (
    Binary,
    Call,
    Compare,
    Const,
    Logical,
    Name,
    Node,
    Tuple,
    Unary,
    walk,
)

BLOCK = 4096
NUM_WARPS = 8
LAST = 2**63 - 1

UNIQUE = "unique of {}"
"""The operand that says which elements of a tensor are unique: torch finds that out by sorting."""

HEADER = """\
import triton
import triton.language as tl


@triton.jit
def floor_div(a, b):
    rest = a % b
    return a // b - ((rest != 0) & ((rest < 0) != (b < 0))).to(tl.int64)


@triton.jit
def floor_mod(a, b):
    return a - floor_div(a, b) * b


@triton.jit
def as_word(value):
    if value.dtype.is_floating():
        return value.to(tl.float64).to(tl.int64, bitcast=True)
    else:
        return value.to(tl.int64)
"""


@dataclass(frozen=True)
class Shaped:
    """One condition, specialised: what the kernel's text depends on beside the expression."""

    condition: Condition
    dtypes: tuple[torch.dtype, ...]
    """Of each operand."""
    steps: tuple[tuple[str, ...], ...]
    """For each operand and axis: "0" and "1" for those strides, "n" for any other."""
    floats: tuple[bool, ...]
    """Which numbers are floats."""
    even: bool
    """Whether the elements fill whole blocks."""
    narrow: bool
    """Whether int32 holds everything that is computed."""

    @property
    def operands(self) -> tuple[str, ...]:
        return operands(self.condition)

    @property
    def axes(self) -> int:
        return len(self.steps[0])

    @property
    def stepped(self) -> list[tuple[int, int]]:
        """The operands and axes whose strides the kernel is given."""
        return [
            (t, axis)
            for t, steps in enumerate(self.steps)
            for axis, step in enumerate(steps)
            if step == "n"
        ]

    @property
    def double(self) -> bool:
        return torch.float64 in self.dtypes


def operands(condition: Condition) -> tuple[str, ...]:
    """What the kernel loads for a condition: its tensors, and what torch derives from them."""
    derived = [
        UNIQUE.format(node.operands[0].id)
        for node in walk(condition.elements)
        if isinstance(node, Call)
        and node.function == "unique"
        and isinstance(node.operands[0], Name)
    ]
    return (*condition.tensors, *dict.fromkeys(derived))


def fits_int32(number: Any) -> bool:
    """Whether int32 holds the number, or it is a float, which no integer dtype concerns."""
    return isinstance(number, float) or -(2**31) <= number < 2**31


def compares_only(condition: Condition) -> bool:
    """Whether int32 elements and numbers need nothing wider: nothing is computed from them."""
    return not any(
        isinstance(node, Binary)
        or (isinstance(node, Const) and not fits_int32(node.value))
        or (isinstance(node, Unary) and node.operator == "-")
        or (isinstance(node, Call) and node.function in ("abs", "cdiv"))
        for node in walk(condition.elements)
    )


def reads_neighbours(condition: Condition) -> bool:
    return any(isinstance(n, Call) and n.function == "sorted" for n in walk(condition.elements))


def record_words(conditions: Sequence[Condition]) -> int:
    """The length of a record."""
    return 1 + sum(2 + len(condition.tensors) for condition in conditions)


def signature(conditions: Sequence[Shaped]) -> list[tuple[str, str | torch.dtype]]:
    """The kernel's parameters behind the four that every kernel has, each with its type, or with
    the dtype that it points to."""
    return [parameter for c, shaped in enumerate(conditions) for parameter in _own(c, shaped)]


def _own(c: int, shaped: Shaped) -> list[tuple[str, str | torch.dtype]]:
    whole = "i32" if shaped.narrow else "i64"
    single = "fp64" if shaped.double else "fp32"
    return [
        *((f"x_{c}_{t}_ptr", dtype) for t, dtype in enumerate(shaped.dtypes)),
        *((f"size_{c}_{axis}", "i64") for axis in range(1, shaped.axes)),
        *((f"stride_{c}_{t}_{axis}", "i64") for t, axis in shaped.stepped),
        *((f"number_{c}_{k}", single if f else whole) for k, f in enumerate(shaped.floats)),
        (f"n_{c}", "i64"),
    ]


def write(conditions: Sequence[Shaped]) -> str:
    """The whole module; the kernel is `watch`."""
    functions = [Functions(c, shaped) for c, shaped in enumerate(conditions)]
    texts = [HEADER]
    for each in functions:
        texts += [each.breaks(), each.report()]
    return "\n\n".join([*texts, _kernel(functions)])


def _kernel(functions: Sequence[Functions]) -> str:
    names = [name for each in functions for name in (*each.names, f"n_{each.c}")]
    counts = [f"count_{each.c}" for each in functions]
    lines = [
        "@triton.jit",
        f"def watch(mark, state_ptr, record_ptr, attention_ptr, {', '.join(names)}):",
        "    program = tl.program_id(0).to(tl.int64)",
        "    programs = tl.num_programs(0).to(tl.int64)",
    ]
    for each in functions:
        lines += each.count()
    lines += [
        "    if tl.atomic_add(state_ptr, 1) == programs - 1:",
        "        tl.store(state_ptr, 0)",
    ]
    lines += [
        f"        {count} = tl.atomic_add(state_ptr + {each.state}, 0)"
        for count, each in zip(counts, functions, strict=True)
    ]
    lines.append(f"        if {' + '.join(counts)} > 0:")
    word = 1
    for count, each in zip(counts, functions, strict=True):
        given = ", ".join([count, f"state_ptr + {each.state}", f"record_ptr + {word}", *each.names])
        lines.append(f"            report_{each.c}({given})")
        word += 2 + len(each.shaped.condition.tensors)
    lines += [
        "            # The record is whole before its mark is seen, and the mark before the call",
        "            # for attention: the atomics order what is before them and what is after.",
        "            tl.debug_barrier()",
        '            tl.atomic_add(state_ptr, 0, sem="acq_rel", scope="sys")',
        "            tl.store(record_ptr, mark)",
        '            tl.atomic_add(state_ptr, 0, sem="acq_rel", scope="sys")',
        "            tl.store(attention_ptr, 1)",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Functions:
    """The device functions of one condition, the `c`-th."""

    c: int
    shaped: Shaped

    @property
    def state(self) -> int:
        """Where its words of the state begin."""
        return 1 + 2 * self.c

    @property
    def names(self) -> list[str]:
        """Its parameters, but for its number of elements."""
        return [name for name, _ in _own(self.c, self.shaped)][:-1]

    def breaks(self) -> str:
        """`breaks_c(element, ..., inside)`: which of these elements break the condition."""
        mask = "" if self.shaped.even else ", mask=inside"
        lines = [
            "@triton.jit",
            f"def breaks_{self.c}(start, lane, inside, {', '.join(self.names)}):",
            f"    # {self.shaped.condition.text}",
            *self.places(),
        ]
        for t in range(len(self.shaped.dtypes)):
            offset = self.offset(t)
            lines.append(f"    x_{t} = tl.load(x_{self.c}_{t}_ptr + {offset}{mask})")
            lines.append(f"    x_{t} = x_{t}.to({self.raised(t)})")
        text, _ = _Text(self, lines).truth(self.shaped.condition.elements)
        lines.append(f"    return ({text} == 0)" + ("" if self.shaped.even else " & inside"))
        return "\n".join(lines) + "\n"

    def count(self) -> list[str]:
        """Count what this program's share breaks, and find the first if anything does."""
        c, names = self.c, ", ".join(self.names)
        each = [f"for start in range(program * {BLOCK}, n_{c}, programs * {BLOCK}):"]
        if not self.shaped.even:
            each.append(f"    inside = lane < tl.minimum(n_{c} - start, {BLOCK}).to(tl.int32)")
        inside = "lane" if self.shaped.even else "inside"
        broken = f"breaks_{c}(start, lane, {inside}, {names})"
        return [
            *([f"    lane = tl.arange(0, {BLOCK})"] if c == 0 else []),
            f"    broken_{c} = tl.zeros([{BLOCK}], tl.int32)",
            *(f"    {line}" for line in each),
            f"        broken_{c} += {broken}.to(tl.int32)",
            f"    total_{c} = tl.sum(broken_{c}, 0)",
            f"    if total_{c} > 0:",
            f"        last_{c} = tl.zeros([{BLOCK}], tl.int64)",
            *(f"        {line}" for line in each),
            f"            here_{c} = tl.where({broken}, {LAST} - start - lane.to(tl.int64), 0)",
            f"            last_{c} = tl.maximum(last_{c}, here_{c})",
            f"        tl.atomic_max(state_ptr + {self.state + 1}, tl.max(last_{c}, 0))",
            f"        tl.atomic_add(state_ptr + {self.state}, total_{c}.to(tl.int64))",
        ]

    def report(self) -> str:
        """`report_c(count, state_ptr, record_ptr, ...)`: write the words of the record, and leave
        the state as it was."""
        c = self.c
        lines = [
            "@triton.jit",
            f"def report_{c}(count, state_ptr, record_ptr, {', '.join(self.names)}):",
            "    tl.store(record_ptr, count)",
            "    if count > 0:",
            f"        start = {LAST} - tl.atomic_max(state_ptr + 1, 0)",
            "        tl.store(record_ptr + 1, start)",
            "        lane = 0",
            *(f"    {line}" for line in self.places()),
        ]
        for t in range(len(self.shaped.condition.tensors)):
            value = f"tl.load(x_{c}_{t}_ptr + {self.offset(t)}).to({self.raised(t)})"
            lines.append(f"        tl.store(record_ptr + {2 + t}, as_word({value}))")
        lines += ["        tl.store(state_ptr, 0)", "        tl.store(state_ptr + 1, 0)"]
        return "\n".join(lines) + "\n"

    def places(self) -> list[str]:
        """The index along each axis of the elements `start + lane`."""
        c, axes = self.c, self.shaped.axes
        if axes == 1:
            return []
        lines = ["    rest = start + lane"]
        for axis in range(axes - 1, 0, -1):
            lines.append(f"    i_{axis} = rest % size_{c}_{axis}")
            lines.append(f"    rest = rest // size_{c}_{axis}")
        return [*lines, "    i_0 = rest"]

    def offset(self, t: int) -> str:
        """Where elements lie in an operand. Along one dense axis, from a block's own beginning."""
        steps = self.shaped.steps[t]
        if self.shaped.axes == 1:
            step = f" * stride_{self.c}_{t}_0" if steps[0] == "n" else ""
            return "start * 0 + lane * 0" if steps[0] == "0" else f"start{step} + lane{step}"
        terms = [
            f"i_{axis}" if step == "1" else f"i_{axis} * stride_{self.c}_{t}_{axis}"
            for axis, step in enumerate(steps)
            if step != "0"
        ]
        return " + ".join(terms) or "i_0 * 0"

    def raised(self, t: int) -> str:
        dtype = self.shaped.dtypes[t]
        if dtype.is_floating_point:
            return "tl.float64" if dtype is torch.float64 else "tl.float32"
        return "tl.int32" if self.shaped.narrow else "tl.int64"


@dataclass(frozen=True)
class _Text:
    """An expression as device code, with whether it is "bool", "int" or "float"."""

    functions: Functions
    lines: list[str]

    def truth(self, node: Node) -> tuple[str, str]:
        text, kind = self.of(node)
        return (text, kind) if kind == "bool" else (f"({text} != 0)", "bool")

    def of(self, node: Node) -> tuple[str, str]:
        shaped, c = self.functions.shaped, self.functions.c
        match node:
            case Const(value=bool(value)):
                return str(int(value)), "int"
            case Const(value=value):
                return repr(value), "float" if isinstance(value, float) else "int"
            case Name(id=name) if name.startswith("#"):
                k = int(name[1:])
                return f"number_{c}_{k}", "float" if shaped.floats[k] else "int"
            case Name(id=name):
                t = shaped.operands.index(name)
                return f"x_{t}", "float" if shaped.dtypes[t].is_floating_point else "int"
            case Unary(operator="not", operand=operand):
                return f"({self.truth(operand)[0]} == 0)", "bool"
            case Unary(operand=operand):
                text, kind = self.number(operand)
                return f"(-{text})", kind
            case Binary(operator="**", left=left, right=Const(value=int(power))):
                text, kind = self.number(left)
                return f"({' * '.join([text] * power)})", kind
            case Binary():
                return self.binary(node.operator, self.number(node.left), self.number(node.right))
            case Logical(operator=operator, operands=operands):
                sign = " & " if operator == "and" else " | "
                return f"({sign.join(self.truth(item)[0] for item in operands)})", "bool"
            case Compare():
                return self.chain(node), "bool"
            case Call():
                return self.call(node)
        raise AssertionError(node)

    def number(self, node: Node) -> tuple[str, str]:
        text, kind = self.of(node)
        return (f"{text}.to(tl.int64)", "int") if kind == "bool" else (text, kind)

    def binary(
        self, operator: str, left: tuple[str, str], right: tuple[str, str]
    ) -> tuple[str, str]:
        (a, a_kind), (b, b_kind) = left, right
        kind = "float" if "float" in (a_kind, b_kind) else "int"
        match operator, kind:
            case "/", _:
                return f"({a} / {b})", "float"
            case "//", "int":
                return f"floor_div({a}, {b})", kind
            case "%", "int":
                return f"floor_mod({a}, {b})", kind
            case "//", _:
                return f"tl.floor({a} / {b})", kind
            case "%", _:
                return f"({a} - tl.floor({a} / {b}) * {b})", kind
        return f"({a} {operator} {b})", kind

    def chain(self, node: Compare) -> str:
        texts = []
        left = self.number(node.operands[0])[0]
        for operator, operand in zip(node.operators, node.operands[1:], strict=True):
            if isinstance(operand, Tuple):
                choices = [f"({left} == {self.number(item)[0]})" for item in operand.items]
                among = f"({' | '.join(choices)})" if choices else f"({left} != {left})"
                texts.append(among if operator == "in" else f"({among} == 0)")
                continue
            right = self.number(operand)[0]
            texts.append(f"({left} {operator} {right})")
            left = right
        return f"({' & '.join(texts)})"

    def call(self, node: Call) -> tuple[str, str]:
        shaped = self.functions.shaped
        match node.function:
            case "sorted":
                return self.is_sorted(node), "bool"
            case "unique":
                assert isinstance(node.operands[0], Name)
                t = shaped.operands.index(UNIQUE.format(node.operands[0].id))
                return f"(x_{t} != 0)", "bool"
        given = [self.number(operand) for operand in node.operands]
        texts = [text for text, _ in given]
        kind = "float" if any(kind == "float" for _, kind in given) else "int"
        match node.function:
            case "isnan":
                return f"({texts[0]} != {texts[0]})", "bool"
            case "isfinite":
                largest = torch.finfo(torch.float64 if shaped.double else torch.float32).max
                return f"(tl.abs({texts[0]}) <= {largest!r})", "bool"
            case "abs":
                return f"tl.abs({texts[0]})", kind
            case "cdiv" if kind == "int":
                return f"(-floor_div(-{texts[0]}, {texts[1]}))", kind
            case "cdiv":
                return f"(-tl.floor(-{texts[0]} / {texts[1]}))", kind
            case "min" | "max" as name:
                whole = f"tl.{name}imum({{}}, {{}}, propagate_nan=tl.PropagateNan.ALL)"
                return functools.reduce(whole.format, texts), kind
        raise AssertionError(node)

    def is_sorted(self, node: Call) -> str:
        """Loads each element's neighbour before it; a row's first element has none."""
        functions, c = self.functions, self.functions.c
        assert isinstance(node.operands[0], Name)
        t = functions.shaped.operands.index(node.operands[0].id)
        step = functions.shaped.steps[t][-1]
        if step == "0":
            return "(lane >= 0)"
        axes = functions.shaped.axes
        place = f"i_{axes - 1}" if axes > 1 else "(start + lane)"
        back = "1" if step == "1" else f"stride_{c}_{t}_{axes - 1}"
        mask = f"{place} > 0" if functions.shaped.even else f"({place} > 0) & inside"
        self.lines.append(
            f"    before_{t} = tl.load(x_{c}_{t}_ptr + {functions.offset(t)} - {back}, "
            f"mask={mask}, other=0).to({functions.raised(t)})"
        )
        return f"(({place} == 0) | (before_{t} <= x_{t}))"
