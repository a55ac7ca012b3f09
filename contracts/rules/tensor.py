"""Rules on what a tensor is: its device, its dtype, whether it wants a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import ContractDefinitionError, Violation
from ..tensors import dtype_name
from ..transforms import has_tangent
from .base import Call, Code, Names, Rule


@dataclass(frozen=True)
class TensorRule(Rule):
    """A rule on some tensors, by default on every tensor argument."""

    names: tuple[str, ...] = ()
    everywhere: bool = False

    opaque = False
    word = ""

    @property
    def text(self) -> str:
        arguments = [*self.parameters(), *(() if self.everywhere else self.names)]
        return f"{self.word}({', '.join(arguments)})" if arguments else self.word

    def parameters(self) -> tuple[str, ...]:
        return ()

    def resolve(self, names: Names) -> Rule:
        for name in self.names:
            if name not in names.tensors:
                raise ContractDefinitionError(f"{self.word}: {name!r} is not a tensor argument")
        if self.names:
            return self
        if not names.tensors:
            raise ContractDefinitionError(f"{self.word}: the function has no tensor argument")
        return replace(self, names=names.tensors, everywhere=True)

    def named(self, call: Call) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self.names:
            yield from call.tensors(name)


@dataclass(frozen=True)
class Device(TensorRule):
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    word = "device"

    def parameters(self) -> tuple[str, ...]:
        return (f'"{self.device}"',)

    def holds(self, x: torch.Tensor) -> bool:
        return (
            x.device == self.device
            if self.device.index is not None
            else x.device.type == self.device.type
        )

    def emit(self, code: Code) -> None:
        self.emit_for(code, code.unsettled(self, self.names))

    def emit_kinds(self, code: Code, names: list[str]) -> set[str]:
        mine = tuple(name for name in self.names if name in names)
        self.emit_for(code, mine)
        return set(mine)

    def emit_for(self, code: Code, names: tuple[str, ...]) -> None:
        kind = self.device.type
        for name in names:
            with code.each(name) as x:
                if self.device.index is not None:
                    code.require(f"{x}.device == {code.constant(self.device, 'device')}")
                elif kind in ("cuda", "cpu"):
                    code.require(f"{x}.is_{kind}")
                else:
                    code.require(f"{x}.device.type == {kind!r}")

    def judge(self, call: Call) -> Iterator[Violation]:
        for label, x in self.named(call):
            if not self.holds(x):
                yield self.violation(
                    call,
                    f"{label} is on {x.device}, expected {self.device}",
                    argument=label,
                    expected=str(self.device),
                    actual=str(x.device),
                    fix=f'{label} = {label}.to("{self.device}")',
                )


@dataclass(frozen=True)
class SameDevice(TensorRule):
    word = "same_device"

    def emit(self, code: Code) -> None:
        names = code.unsettled(self, self.names)
        alone = len(self.names) == 1 and not code.container(self.names[0])
        if names and not alone:
            anchor = [code.anchor] if code.anchor in self.names and code.anchor not in names else []
            self.emit_for(code, (*anchor, *names))

    def emit_kinds(self, code: Code, names: list[str]) -> set[str]:
        mine = [name for name in self.names if name in names and name != code.anchor]
        if code.anchor not in self.names or not mine:
            return set()
        self.emit_for(code, (code.anchor, *mine))
        return {code.anchor, *mine}

    def emit_for(self, code: Code, names: tuple[str, ...]) -> None:
        first = emit_first(code, names, "device")
        for x in first.others(code):
            code.require(f"{x}.device == {first.variable}")

    def judge(self, call: Call) -> Iterator[Violation]:
        first: tuple[str, torch.Tensor] | None = None
        for label, x in self.named(call):
            if first is None:
                first = (label, x)
            elif x.device != first[1].device:
                yield self.violation(
                    call,
                    f"{label} is on {x.device}, expected {first[1].device}",
                    argument=label,
                    expected=str(first[1].device),
                    actual=str(x.device),
                    origin=f"{first[0]} is on {first[1].device}",
                    fix=f'{label} = {label}.to("{first[1].device}")',
                )


def _of_legal_dtype(rule: TensorRule, call: Call) -> Iterator[tuple[str, torch.Tensor]]:
    """The rule's tensors whose dtype their annotation allows: of others, it has been said."""
    for label, x in rule.named(call):
        if not call.refused(frozenset({f"{label}:dtype"})):
            yield label, x


@dataclass(frozen=True)
class Dtype(TensorRule):
    dtypes: tuple[torch.dtype, ...] = ()

    word = "dtype"

    def parameters(self) -> tuple[str, ...]:
        return tuple(dtype_name(dtype) for dtype in self.dtypes)

    def emit(self, code: Code) -> None:
        self.emit_for(code, code.unsettled(self, self.names))

    def emit_kinds(self, code: Code, names: list[str]) -> set[str]:
        mine = tuple(name for name in self.names if name in names)
        self.emit_for(code, mine)
        return set(mine)

    def emit_for(self, code: Code, names: tuple[str, ...]) -> None:
        for name in names:
            with code.each(name) as x:
                code.require(dtype_test(code, x, self.dtypes))

    def judge(self, call: Call) -> Iterator[Violation]:
        for label, x in _of_legal_dtype(self, call):
            if x.dtype not in self.dtypes:
                yield self.violation(call, **dtype_fault(label, x, self.dtypes))


def dtype_test(code: Code, x: str, dtypes: tuple[torch.dtype, ...]) -> str:
    if len(dtypes) == 1:
        return f"{x}.dtype is {code.constant(dtypes[0], dtype_name(dtypes[0]))}"
    return f"{x}.dtype in {code.constant(dtypes, '_or_'.join(map(dtype_name, dtypes[:2])))}"


def dtype_fault(label: str, x: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> dict[str, Any]:
    """The details of a violation: full dtype names, and a fix where one is certain."""
    expected = " or ".join(str(dtype) for dtype in dtypes)
    details: dict[str, Any] = {
        "message": f"{label} is {x.dtype}, expected {expected}",
        "argument": label,
        "expected": expected,
        "actual": str(x.dtype),
    }
    if len(dtypes) == 1:
        want = dtypes[0]
        if want.itemsize == 1 and want.is_floating_point and x.dtype is torch.uint8:
            details["fix"] = f"{label} = {label}.view({want})"
        elif _converts(x, want):
            details["fix"] = f"{label} = {label}.to({want})"
    return details


def _converts(x: torch.Tensor, want: torch.dtype) -> bool:
    """Whether a conversion keeps the meaning: among floats, integers or complex numbers, but not
    into eight-bit floats, which need a scale."""
    given = x.dtype
    return (
        given.is_floating_point == want.is_floating_point
        and given.is_complex == want.is_complex
        and not (want.is_floating_point and want.itemsize == 1)
        and not x.is_quantized
    )


@dataclass(frozen=True)
class SameDtype(TensorRule):
    word = "same_dtype"

    def emit(self, code: Code) -> None:
        first = emit_first(code, self.names, "dtype")
        for x in first.others(code):
            code.require(f"{x}.dtype is {first.variable}")

    def judge(self, call: Call) -> Iterator[Violation]:
        first: tuple[str, torch.Tensor] | None = None
        for label, x in _of_legal_dtype(self, call):
            if first is None:
                first = (label, x)
            elif x.dtype != first[1].dtype:
                details = dtype_fault(label, x, (first[1].dtype,))
                details["origin"] = f"{first[0]} is {first[1].dtype}"
                yield self.violation(call, **details)


@dataclass(frozen=True)
class First:
    """The attribute that all tensors must share, as generated code holds it."""

    names: tuple[str, ...]
    attribute: str
    variable: str
    sure: str | None
    """The tensor it is read from, where one is sure to be there; else the first present one."""

    def others(self, code: Code) -> Iterator[str]:
        """Every tensor to compare with it, inside whatever visits that tensor."""
        for name in self.names:
            if code.name(name) == self.sure:
                continue
            with code.each(name) as x:
                if self.sure is None:
                    with code.block(f"if {self.variable} is None:"):
                        code.line(f"{self.variable} = {x}.{self.attribute}")
                yield x


def emit_first(code: Code, names: tuple[str, ...], attribute: str) -> First:
    sure = next((n for n in names if not (code.conditional(n) or code.container(n))), None)
    variable = code.local(attribute)
    source = code.name(sure) if sure else None
    code.line(f"{variable} = {source}.{attribute}" if source else f"{variable} = None")
    return First(names, attribute, variable, source)


@dataclass(frozen=True)
class NoGrad(TensorRule):
    word = "no_grad"
    tangents = True

    def emit(self, code: Code) -> None:
        self.emit_for(code, code.unsettled(self, self.names))

    def emit_kinds(self, code: Code, names: list[str]) -> set[str]:
        mine = tuple(name for name in self.names if name in names)
        self.emit_for(code, mine)
        return set(mine)

    def emit_for(self, code: Code, names: tuple[str, ...]) -> None:
        enabled = f"{code.constant(torch.is_grad_enabled, 'is_grad_enabled')}()"
        for name in names:
            with code.each(name) as x:
                code.require(f"not {x}.requires_grad or not {enabled}")

    def emit_tangents(self, code: Code) -> None:
        for name in self.names:
            with code.each(name) as x:
                code.require(f"not {code.constant(has_tangent, 'has_tangent')}({x})")

    def judge(self, call: Call) -> Iterator[Violation]:
        enabled = torch.is_grad_enabled()
        for label, x in self.named(call):
            if enabled and x.requires_grad:
                yield self.violation(
                    call,
                    f"{label} requires grad, and this function has no gradient: its result would "
                    "silently cut the graph; call it under torch.no_grad(), or detach",
                    argument=label,
                    expected="requires_grad=False, or grad mode off",
                    actual="requires_grad=True",
                    fix=f"{label} = {label}.detach()",
                )
            elif has_tangent(x):
                yield self.violation(
                    call,
                    f"{label} carries a tangent of forward-mode AD, and this function has no "
                    "gradient: its result would silently lose it; detach",
                    argument=label,
                    expected="no tangent",
                    actual="a tangent",
                    fix=f"{label} = {label}.detach()",
                )


def device(
    kind: str | torch.device, *names: str, id: str = "", hint: str | None = None, **more: Any
) -> Device:
    """The tensors (default: every one) are on this device, or of this device type."""
    try:
        place = torch.device(kind)
    except (RuntimeError, TypeError) as error:
        raise ContractDefinitionError(f"device: {error}") from None
    return Device(names=names, device=place, id=id, hint=hint, **more)


def same_device(*names: str, id: str = "", hint: str | None = None, **more: Any) -> SameDevice:
    """The tensors (default: every one) are on one device."""
    return SameDevice(names=names, id=id, hint=hint, **more)


def dtype(
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    *names: str,
    id: str = "",
    hint: str | None = None,
    **more: Any,
) -> Dtype:
    """The tensors (default: every one) have this dtype, or one of these."""
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    if not allowed or not all(isinstance(item, torch.dtype) for item in allowed):
        raise ContractDefinitionError(f"dtype: {dtypes!r} is not a torch dtype")
    return Dtype(names=names, dtypes=allowed, id=id, hint=hint, **more)


def same_dtype(*names: str, id: str = "", hint: str | None = None, **more: Any) -> SameDtype:
    """The tensors (default: every one) have one dtype."""
    return SameDtype(names=names, id=id, hint=hint, **more)


def no_grad(*names: str, id: str = "", hint: str | None = None, **more: Any) -> NoGrad:
    """While grad mode is on, none of the tensors (default: every one) requires grad; and in any
    mode, none carries a tangent of forward-mode AD."""
    return NoGrad(names=names, id=id, hint=hint, **more)
