"""Rules on how a tensor lies in memory: strides, alignment, overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import expressions
from ..errors import ContractDefinitionError, Violation
from ..tensors import (
    HIGH,
    address,
    each_tensor,
    extent,
    has_memory,
    has_unit_stride,
    is_distributed,
    misread,
    overlap,
    overlaps_itself,
    span,
    steps_by_one,
    without_memory,
)
from .base import Call, Code, Names, Rule
from .tensor import TensorRule


class MemoryRule(TensorRule):
    """A rule on how a tensor lies in memory. It refuses tensors that pointer and strides do not
    describe: sparse, nested, quantised, wrappers, and lazy negative or conjugate views. A rule on
    addresses refuses also what has none: a freed storage, say."""

    def emit_kinds(self, code: Code, names: list[str]) -> set[str]:
        """Whether pointer and strides tell the truth is a matter of kind; the rest is not."""
        for name in self.names:
            if name in names:
                with code.each(name) as x:
                    code.require_strided(name, x)
        return set()

    def misreads(self, call: Call, label: str, x: torch.Tensor) -> Violation | None:
        reason = call.misread(x)
        if reason is None and self.pointers:
            reason = without_memory(x)
        if reason is None:
            return None
        fix = None
        if "lazy" in reason:
            conjugate = ".resolve_conj()" if x.is_conj() else ""
            fix = f"{label} = {label}{conjugate}{'.resolve_neg()' if x.is_neg() else ''}"
        elif is_distributed(type(x)):  # its own part is a tensor in memory
            fix = f"{label} = {label}.to_local()"
        return self.violation(
            call,
            f"{label} is {reason}, expected plain strided memory",
            argument=label,
            expected="plain strided memory",
            actual=reason,
            **({"fix": fix} if fix else {}),
        )


@dataclass(frozen=True)
class UnitStride(MemoryRule):
    dim: int = -1

    word = "unit_stride"

    def parameters(self) -> tuple[str, ...]:
        return () if self.dim == -1 else (f"dim={self.dim}",)

    def emit(self, code: Code) -> None:
        slow = code.constant(has_unit_stride, "has_unit_stride")
        for name in self.names:
            with code.each(name) as x:
                code.require_strided(name, x)
                if self.dim == -1:
                    quick = f"{x}.is_contiguous() or {x}.stride()[-1] == 1"
                else:
                    there = expressions.has_axis(x, self.dim)
                    quick = f"{there} and {x}.stride()[{self.dim}] == 1"
                code.require(f"{quick} or {slow}({x}, {self.dim})")

    def judge(self, call: Call) -> Iterator[Violation]:
        for label, x in self.named(call):
            if fault := self.misreads(call, label, x):
                yield fault
            elif not steps_by_one(x, self.dim):
                strides = tuple(x.stride())
                if not -x.ndim <= self.dim < x.ndim:
                    yield self.violation(
                        call,
                        f"{label} has no axis {self.dim}, expected one with stride 1",
                        argument=label,
                    )
                    continue
                axis = self.dim % x.ndim
                which = "its last axis" if axis == x.ndim - 1 else f"axis {axis}"
                yield self.violation(
                    call,
                    f"{label} has stride {strides[axis]} along {which}, expected 1 "
                    f"(strides {strides})",
                    argument=label,
                    axis=axis,
                    expected="stride 1",
                    actual=f"stride {strides[axis]}",
                    **({"fix": f"{label} = {label}.contiguous()"} if axis == x.ndim - 1 else {}),
                )


@dataclass(frozen=True)
class Contiguous(MemoryRule):
    word = "contiguous"

    def emit(self, code: Code) -> None:
        for name in self.names:
            with code.each(name) as x:
                code.require_strided(name, x)
                code.require(f"{x}.is_contiguous()")
            code.note_contiguous(name)

    def judge(self, call: Call) -> Iterator[Violation]:
        for label, x in self.named(call):
            if fault := self.misreads(call, label, x):
                yield fault
            elif not x.is_contiguous():
                yield self.violation(
                    call,
                    f"{label} is not contiguous: shape {tuple(x.shape)} has strides "
                    f"{tuple(x.stride())}",
                    argument=label,
                    expected="contiguous",
                    actual=f"strides {tuple(x.stride())}",
                    fix=f"{label} = {label}.contiguous()",
                )


@dataclass(frozen=True)
class Aligned(MemoryRule):
    alignment: int = 16

    word = "aligned"
    pointers = True

    def parameters(self) -> tuple[str, ...]:
        return (str(self.alignment),)

    def emit(self, code: Code) -> None:
        sure: list[tuple[str, str]] = []
        for name in self.names:
            with code.each(name) as x:
                code.require_strided(name, x)
                begin = address_in(code, name, x)
                if code.conditional(name) or code.container(name):
                    code.require(f"{begin} % {self.alignment} == 0")
                    require_memory(code, (x, begin))
                else:
                    sure.append((x, begin))
        if sure:  # of several addresses, one has a low bit wherever their union has it
            union = " | ".join(begin for _, begin in sure)
            union = f"({union})" if len(sure) > 1 else union
            code.require(f"{union} % {self.alignment} == 0")
            require_memory(code, *sure)

    def judge(self, call: Call) -> Iterator[Violation]:
        for label, x in self.named(call):
            if fault := self.misreads(call, label, x):
                yield fault
            elif past := (address(x) or 0) % self.alignment:
                yield self.violation(
                    call,
                    f"{label} starts {past} bytes past a {self.alignment}-byte boundary, expected "
                    f"an address that is a multiple of {self.alignment}",
                    argument=label,
                    expected=f"address % {self.alignment} == 0",
                    actual=f"address % {self.alignment} == {past}",
                    fix=f"{label} = {label}.clone()",
                )


@dataclass(frozen=True)
class NoOverlap(MemoryRule):
    others: tuple[str, ...] = ()

    word = "no_overlap"
    pointers = True

    def resolve(self, names: Names) -> Rule:
        resolved = super().resolve(names)
        assert isinstance(resolved, NoOverlap)
        others = tuple(name for name in names.tensors if name not in resolved.names)
        return replace(resolved, others=others)

    def emit(self, code: Code) -> None:
        extents: dict[str, tuple[str, str]] = {}
        for name in (*self.names, *self.others):
            if not code.container(name):
                extents[name] = self.emit_extent(code, name)
        for index, name in enumerate(self.names):
            if name not in extents:
                continue
            begin, end = extents[name]
            with code.present(name):
                if code.known_strided(name):
                    require_memory(code, (code.name(name), begin))
                for other in (*self.names[index + 1 :], *self.others):
                    if other in extents:
                        other_begin, other_end = extents[other]
                        code.require(f"{end} <= {other_begin} or {other_end} <= {begin}")
        if len(extents) < len(self.names) + len(self.others):
            named, others = (
                f"({', '.join(map(code.name, group))}{',' if group else ''})"
                for group in (self.names, self.others)
            )
            code.require(f"{code.constant(disjoint, 'disjoint')}({named}, {others})")

    def emit_layout(self, code: Code) -> None:
        """A tensor overlaps itself by its strides, wherever it lies."""
        for name in self.names:
            with code.each(name) as x:
                code.require_strided(name, x)
                if not code.known_contiguous(name):
                    itself = code.constant(overlaps_itself, "overlaps_itself")
                    whole = f"{code.tracing()} or {code.dense(name, x)}"
                    code.require(f"{whole} or not {itself}({x})")

    def emit_reaches(self, code: Code) -> None:
        for name in (*self.names, *self.others):
            if not code.container(name) and code.known_strided(name):
                self.emit_reach(code, name)

    def emit_reach(self, code: Code, name: str) -> str:
        """Bind how many bytes a tensor reaches over; 0 where it is absent."""
        if found := code.reach(name):
            return found
        x, reach = code.name(name), code.bind_reach(name)
        if code.conditional(name):
            code.line(f"{reach} = 0")
        with code.present(name):
            if code.known_contiguous(name):
                code.line(f"{reach} = {code.dense_bytes(name)}")
            else:
                sparse = f"{code.constant(span, 'span')}({x})"
                code.line(f"{reach} = {x}.nbytes if {code.dense(name, x)} else {sparse}")
        return reach

    def emit_extent(self, code: Code, name: str) -> tuple[str, str]:
        """Bind a tensor's first address and the one past its last; both 0 where it is absent."""
        x, end = code.name(name), code.local(f"{name}_end")
        strided = code.known_strided(name)
        reach = self.emit_reach(code, name) if strided else ""
        if strided and not code.conditional(name):
            begin = address_in(code, name, x)
            code.line(f"{end} = {begin} + {reach}")
            return begin, end
        begin = code.local(f"{name}_first")
        if code.conditional(name):
            code.line(f"{begin} = {end} = 0")
        with code.present(name):
            if strided:
                code.line(f"{begin} = {address_in(code, name, x)}")
                code.line(f"{end} = {begin} + {reach}")
            else:
                code.line(f"{begin}, {end} = {code.constant(addresses, 'addresses')}({x})")
        return begin, end

    def judge(self, call: Call) -> Iterator[Violation]:
        mine = list(self.named(call))
        others = [pair for name in self.others for pair in call.tensors(name)]
        extents = [
            (label, extent(x) if call.misread(x) is None else None) for label, x in (*mine, *others)
        ]
        for index, (label, x) in enumerate(mine):
            if fault := self.misreads(call, label, x):
                yield fault
                continue
            if overlaps_itself(x):
                yield self.violation(
                    call,
                    f"{label} overlaps itself: shape {tuple(x.shape)} with strides "
                    f"{tuple(x.stride())} reaches one element by several indices",
                    argument=label,
                    expected="distinct elements",
                    actual=f"strides {tuple(x.stride())}",
                )
            for place, (other, addresses) in enumerate(extents[index + 1 :], index + 1):
                if overlap(extents[index][1], addresses):
                    is_read = place >= len(mine)
                    yield self.violation(
                        call,
                        f"{label} and {other} overlap in memory",
                        argument=label,
                        expected="memory of its own",
                        actual=f"shared with {other}",
                        **({"fix": f"{other} = {other}.clone()"} if is_read else {}),
                    )


def address_in(code: Code, name: str, x: str) -> str:
    """The local that holds the address of a tensor, or of an item of a container."""
    if not code.container(name):
        return code.address(name)
    begin = code.local(f"{x}_begin")
    code.line(f"{begin} = {x}.data_ptr()")
    return begin


def require_memory(code: Code, *tensors: tuple[str, str]) -> None:
    """Refuse tensors, each given with its address, that have elements and no memory.

    Addresses of memory mostly share a high bit, which says it at once.
    """
    test = code.constant(has_memory, "has_memory")
    together = " & ".join(begin for _, begin in tensors)
    together = f"({together})" if len(tensors) > 1 else together
    each = " and ".join(f"{test}({x})" for x, _ in tensors)
    code.require(f"{together} >> {HIGH} or {each}")


def addresses(x: torch.Tensor) -> tuple[int, int]:
    """The extent of a tensor that no rule has shown to be strided; empty where it has none."""
    return (extent(x) if misread(x) is None else None) or (0, 0)


def disjoint(named: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """`NoOverlap` for arguments that hold several tensors."""
    mine = list(each_tensor(named))
    extents = [extent(x) for x in (*mine, *each_tensor(others))]
    return not any(
        misread(x) is not None
        or without_memory(x) is not None
        or overlaps_itself(x)
        or any(overlap(extents[index], y) for y in extents[index + 1 :])
        for index, x in enumerate(mine)
    )


def unit_stride(
    *names: str, dim: int = -1, id: str = "", hint: str | None = None, **more: Any
) -> UnitStride:
    """Neighbours along `dim` are neighbours in memory; an axis of one element always passes."""
    return UnitStride(names=names, dim=dim, id=id, hint=hint, **more)


def contiguous(*names: str, id: str = "", hint: str | None = None, **more: Any) -> Contiguous:
    """The tensors (default: every one) are dense and row-major."""
    return Contiguous(names=names, id=id, hint=hint, **more)


def aligned(
    alignment: int, *names: str, id: str = "", hint: str | None = None, **more: Any
) -> Aligned:
    """The tensors' first elements stand at multiples of `alignment` bytes."""
    if not expressions.is_power_of_2(alignment):
        raise ContractDefinitionError(f"aligned: {alignment} is not a power of two")
    return Aligned(names=names, alignment=alignment, id=id, hint=hint, **more)


def no_overlap(*names: str, id: str = "", hint: str | None = None, **more: Any) -> NoOverlap:
    """No named tensor shares memory with itself, another named one or any other tensor argument.

    Judged by extents: from the first byte that a tensor can touch to the last, gaps between its
    rows included. Two strided views that interleave within one buffer are therefore refused.
    """
    return NoOverlap(names=names, id=id, hint=hint, **more)
