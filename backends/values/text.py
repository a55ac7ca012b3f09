"""Expressions on elements -> device code that means what `contracts.contents.evaluate` computes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from contracts.expressions import Binary, Call, Compare, Const, Logical, Name, Node, Tuple, Unary

from .access import Access
from .shaped import UNIQUE


@dataclass(frozen=True)
class Text:
    """An expression as device code, with whether it is "bool", "int" or "float"."""

    access: Access
    lines: list[str]
    """Of the function that it stands in: where what it loads besides goes."""

    def truth(self, node: Node) -> tuple[str, str]:
        text, kind = self.of(node)
        return (text, kind) if kind == "bool" else (f"({text} != 0)", "bool")

    def of(self, node: Node) -> tuple[str, str]:
        shaped, c = self.access.shaped, self.access.c
        match node:
            case Const(value=bool(value)):
                return str(int(value)), "int"
            case Const(value=float(value)):
                return (repr(value) if math.isfinite(value) else f'float("{value}")'), "float"
            case Const(value=value):
                return repr(value), "int"
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
        shaped = self.access.shaped
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
