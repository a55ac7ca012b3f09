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

from collections.abc import Sequence

import torch

from .access import Access, parameters
from .shaped import Shaped
from .text import Text

BLOCK = 4096
NUM_WARPS = 8
"""Sixteen elements a thread: of int32, four 16-byte loads in flight."""

LAST = 2**63 - 1

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
def ceil_div(a, b):
    return -floor_div(-a, b)


@triton.jit
def as_word(value):
    if value.dtype.is_floating():
        return value.to(tl.float64).to(tl.int64, bitcast=True)
    else:
        return value.to(tl.int64)
"""


def signature(conditions: Sequence[Shaped]) -> list[tuple[str, str | torch.dtype]]:
    """The kernel's parameters behind the four that every kernel has, each with its type, or with
    the dtype that it points to."""
    return [parameter for c, shaped in enumerate(conditions) for parameter in parameters(c, shaped)]


def check(conditions: Sequence[Shaped]) -> None:
    """Raise Inexpressible where `write` would."""
    for c, shaped in enumerate(conditions):
        Functions(c, shaped).breaks()


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


class Functions(Access):
    """The device functions of one condition."""

    @property
    def state(self) -> int:
        """Where its words of the state begin."""
        return 1 + 2 * self.c

    def breaks(self) -> str:
        """`breaks_c(start, lane, inside, ...)`: which of these elements break the condition. Raises
        Inexpressible."""
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
        text = Text(self, lines).truth(self.shaped.condition.elements)
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
