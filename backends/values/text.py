"""Expressions on elements -> device code that means what `contracts.contents.evaluate` computes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from contracts.contents.promotion import WHOLE, Kind, divided, joined, rounded
from contracts.contents.splitting import number_index
from contracts.expressions import Binary, Call, Compare, Const, Logical, Name, Node, Tuple, Unary

from .access import Access
from .shaped import UNIQUE


class Inexpressible(Exception):
    """The kernel cannot say exactly what torch computes; torch is to judge."""


@dataclass(frozen=True)
class Term:
    """A value as device code: of elements where the kind is a dtype, else a number."""

    text: str
    kind: Kind
    constant: int | float | None = None
    """The number, where it is the same in all calls."""


@dataclass(frozen=True)
class Text:
    """Writes the values of nodes."""

    access: Access
    lines: list[str]
    """Of the function that it stands in: where what it loads besides goes."""

    def truth(self, node: Node) -> str:
        """Whether it holds, a block of int1. Raises Inexpressible."""
        term = self.of(node)
        if term.constant is not None:
            return "(lane >= 0)" if term.constant else "(lane < 0)"
        return term.text if term.kind is torch.bool else f"({term.text} != 0)"

    def of(self, node: Node) -> Term:
        shaped, c = self.access.shaped, self.access.c
        match node:
            case Const(value=float(value)):
                return Term("", float, value)
            case Const(value=int(value)):
                return Term("", int, int(value))
            case Name(id=name) if (k := number_index(name)) is not None:
                return Term(f"number_{c}_{k}", float if shaped.floats[k] else int)
            case Name(id=name):
                t = shaped.operands.index(name)
                return Term(f"x_{t}", self.access.raised_dtype(t))
            case Unary(operator="not", operand=operand):
                return Term(f"({self.truth(operand)} == 0)", torch.bool)
            case Unary(operand=operand):
                term = self.number(operand)
                if term.kind is torch.int64:
                    return Term(f"(-{term.text})", torch.int64)
                # which a difference from 0 is not: it would lose the sign of zeros
                minus = self.cast(Term("", float, -1.0), self.dtype(term))
                return Term(f"({term.text} * {minus})", term.kind)
            case Binary(operator="**", left=left, right=Const(value=int(power))):
                term = self.number(left)
                return Term(f"({' * '.join([term.text] * power)})", term.kind)
            case Binary(operator=operator, left=left, right=right):
                return self.binary(operator, self.of(left), self.of(right))
            case Logical(operator=operator, operands=operands):
                sign = " & " if operator == "and" else " | "
                return Term(f"({sign.join(map(self.truth, operands))})", torch.bool)
            case Compare():
                return Term(self.chain(node), torch.bool)
            case Call():
                return self.call(node)
        raise AssertionError(node)

    def number(self, node: Node) -> Term:
        """A value to compute with: truths as 0 and 1."""
        term = self.of(node)
        if term.kind in (int, float):
            raise Inexpressible("an operation on numbers alone")
        return Term(self.cast(term, torch.int64), torch.int64) if term.kind in WHOLE else term

    def dtype(self, term: Term) -> torch.dtype:
        assert isinstance(term.kind, torch.dtype)
        return term.kind

    def cast(self, term: Term, dtype: torch.dtype) -> str:
        """The value in a dtype that values meet in."""
        kind = self.access.type_of(dtype)
        if term.constant is not None:
            value = rounded(term.constant, dtype)
            literal = repr(value) if math.isfinite(value) else f'float("{value}")'
            return f"tl.full([], {literal}, {kind})"
        return term.text if term.kind is dtype else f"{term.text}.to({kind})"

    def meeting(self, left: Term, right: Term) -> tuple[str, str, torch.dtype]:
        dtype = joined(left.kind, right.kind)
        return self.cast(left, dtype), self.cast(right, dtype), dtype

    def binary(self, operator: str, left: Term, right: Term) -> Term:
        if operator in ("/", "//", "%"):
            return self.division(operator, left, right)
        a, b, dtype = self.meeting(left, right)
        return Term(f"({a} {operator} {b})", dtype)

    def division(self, operator: str, left: Term, right: Term) -> Term:
        dtype = (divided if operator == "/" else joined)(left.kind, right.kind)
        if right.kind in WHOLE and (right.kind is not int or right.constant == 0):
            raise Inexpressible("a divisor that may be zero")
        a, b = self.cast(left, dtype), self.cast(right, dtype)
        if operator == "/":
            # `/` of float32 is approximate on a GPU.
            text = f"({a} / {b})" if dtype is torch.float64 else f"tl.div_rn({a}, {b})"
            return Term(text, dtype)
        if dtype is not torch.int64:
            raise Inexpressible("torch rounds such divisions by more than one operation")
        names = {"//": "floor_div", "%": "floor_mod", "cdiv": "ceil_div"}
        return Term(f"{names[operator]}({a}, {b})", dtype)

    def chain(self, node: Compare) -> str:
        texts = []
        left = self.of(node.operands[0])
        for operator, operand in zip(node.operators, node.operands[1:], strict=True):
            if isinstance(operand, Tuple):
                pairs = [self.meeting(left, self.of(item)) for item in operand.items]
                choices = [f"({a} == {b})" for a, b, _ in pairs]
                among = f"({' | '.join(choices)})" if choices else "(lane < 0)"
                texts.append(among if operator == "in" else f"({among} == 0)")
                continue
            right = self.of(operand)
            a, b, _ = self.meeting(left, right)
            texts.append(f"({a} {operator} {b})")
            left = right
        return f"({' & '.join(texts)})"

    def call(self, node: Call) -> Term:
        shaped = self.access.shaped
        match node.function:
            case "sorted":
                return Term(self.is_sorted(node), torch.bool)
            case "unique":
                assert isinstance(node.operands[0], Name)
                t = shaped.operands.index(UNIQUE.format(node.operands[0].id))
                return Term(f"(x_{t} != 0)", torch.bool)
            case "cdiv":
                return self.division("cdiv", *map(self.of, node.operands))
            case "min" | "max":
                fold = functools.partial(self.fold, node.function)
                return functools.reduce(fold, map(self.of, node.operands))
        term = self.number(node.operands[0])
        match node.function:
            case "abs":
                return Term(f"tl.abs({term.text})", term.kind)
            case "isnan" | "isfinite" as name if term.kind in WHOLE:
                return Term("(lane < 0)" if name == "isnan" else "(lane >= 0)", torch.bool)
            case "isnan":
                return Term(f"({term.text} != {term.text})", torch.bool)
            case "isfinite":
                dtype = self.dtype(term)
                largest = self.cast(Term("", float, torch.finfo(dtype).max), dtype)
                return Term(f"(tl.abs({term.text}) <= {largest})", torch.bool)
        raise AssertionError(node)

    def fold(self, name: str, left: Term, right: Term) -> Term:
        a, b, dtype = self.meeting(left, right)
        return Term(f"tl.{name}imum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)", dtype)

    def is_sorted(self, node: Call) -> str:
        """Loads each element's neighbour before it; a row's first element has none."""
        access, c = self.access, self.access.c
        assert isinstance(node.operands[0], Name)
        t = access.shaped.operands.index(node.operands[0].id)
        step = access.shaped.steps[t][-1]
        if step == "0":
            return "(lane >= 0)"
        axes = access.shaped.axes
        place = f"i_{axes - 1}" if axes > 1 else "(start + lane)"
        back = "1" if step == "1" else f"stride_{c}_{t}_{axes - 1}"
        mask = f"{place} > 0" if access.shaped.even else f"({place} > 0) & inside"
        self.lines.append(
            f"    before_{t} = tl.load(x_{c}_{t}_ptr + {access.offset(t)} - {back}, "
            f"mask={mask}).to({access.raised(t)})"
        )
        return f"(({place} == 0) | (before_{t} <= x_{t}))"
