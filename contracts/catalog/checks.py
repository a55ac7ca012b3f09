"""A demand as plain Python over the arguments: assertions to paste where the package is not.

They are for people to read and to paste; the contract itself never runs them.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace

from .. import expressions
from ..axes import Computed, Fixed, Named
from ..expressions import Binary, Name, Node
from ..facts import Fact, Places, places
from ..model import Declaration, stars
from ..rules.base import Rule
from ..rules.expression import Expression
from ..rules.memory import Aligned, Contiguous, UnitStride
from ..rules.presence import Requires
from ..rules.tensor import Device, Dtype, NoGrad, SameDevice, SameDtype
from ..rules.values import Values
from ..spec import TensorSpec, ValueSpec

INDENT = "    "
WIDTH = 88


def of_fact(declaration: Declaration, fact: Fact) -> str:
    """Assertions that fail when the fact is broken."""
    condition = _fact_condition(declaration, fact)
    if fact.label != fact.argument or condition is None:
        return judged(declaration, fact.id)
    axes = _axes_of(fact)
    known = places(declaration, besides=fact.argument if isinstance(fact.axis, Named) else None)
    body = [*_bindings(known, axes), f"assert {condition}"]
    given = [fact.argument, *(known[axis][0] for axis in axes if axis in known)]
    optional = [name for name in given if name in declaration.names.optional]
    return _when(optional, body)


def _fact_condition(declaration: Declaration, fact: Fact) -> str | None:
    name, spec, axis = fact.label, fact.spec, fact.axis
    match fact.kind, spec:
        case "type", TensorSpec():
            return f"isinstance({name}, torch.Tensor)"
        case "type", ValueSpec(types=tuple(types)):
            plain = [t.__name__ for t in types if t.__module__ == "builtins"]
            return f"isinstance({name}, {' | '.join(plain)})" if plain else None
        case "dtype", TensorSpec(dtypes=tuple(dtypes)) if len(dtypes) == 1:
            return f"{name}.dtype is {dtypes[0]}"
        case "dtype", TensorSpec(dtypes=tuple(dtypes)):
            return f"{name}.dtype in {_tuple(dtypes)}"
        case "rank", TensorSpec(shape=shape):
            sign = "==" if shape.variadic is None else ">="
            return f"{name}.ndim {sign} {shape.least_rank}"
    size = f"{name}.shape[{fact.index}]"
    one = f" or {size} == 1" if getattr(axis, "broadcast", False) else ""
    match axis:
        case Fixed(size=fixed):
            return f"{size} == {fixed}{one}"
        case Computed(expression=expression):
            return f"{size} == {python(expression)}{one}"
        case Named(name=title):
            return f"{size} == {title}{one}"
    return None


def _axes_of(fact: Fact) -> list[str]:
    match fact.axis:
        case Computed(expression=expression):
            return sorted(expressions.value_names(expression))
        case Named(name=name):
            return [name]
    return []


def of_rule(declaration: Declaration, rule: Rule) -> str:
    """Assertions that fail when the rule is broken."""
    match rule:
        case Expression():
            axes = [n for n in sorted(rule.names, key=rule.source.find) if n in _known(declaration)]
            body = [*_bindings(places(declaration), axes), f"assert {python(rule.node)}"]
            given = [name for name in sorted(rule.optional) if name not in axes]
            given += [place[0] for place in _optional_places(declaration, axes)]
            return _when(given, body)
        case Values():
            return _contents(declaration, rule)
        case Requires(needed=needed, when=given):
            condition = f"{needed} is not None"
            return f"assert {f'{given} is None or ' if given else ''}{condition}"
        case Device(device=device) if device.index is None:
            test = f"{{t}}.device.type == {device.type!r}"
        case Device(device=device):
            test = f"{{t}}.device == torch.device({str(device)!r})"
        case SameDevice(names=names):
            test = f"{{t}}.device == {names[0]}.device"
        case Dtype(dtypes=dtypes):
            test = f"{{t}}.dtype in {_tuple(dtypes)}"
        case SameDtype(names=names):
            test = f"{{t}}.dtype == {names[0]}.dtype"
        case NoGrad():
            test = "not (torch.is_grad_enabled() and {t}.requires_grad)"
        case UnitStride(dim=dim):
            test = f"{{t}}.numel() <= 1 or {{t}}.shape[{dim}] == 1 or {{t}}.stride({dim}) == 1"
        case Contiguous():
            test = "{t}.is_contiguous()"
        case Aligned(alignment=alignment):
            test = f"{{t}}.data_ptr() % {alignment} == 0"
        case _:
            return judged(declaration, rule.id)
    if any(name not in declaration.names.single for name in rule.names):
        return judged(declaration, rule.id)
    return _each(declaration, rule.names, test)


def _contents(declaration: Declaration, rule: Values) -> str:
    """Elementwise where the condition is one comparison, else the contract's own judgement."""
    node = expressions.parse(rule.source) if "(" not in rule.source else None
    if not isinstance(node, expressions.Compare) or "in" in node.operators[-1]:
        call = _call(f"arguments = {_function(declaration)}.contract.bind", declaration)
        return (
            "from contracts.explain import violations_of_contents\n\n"
            f"{call}\n"
            f"faults = violations_of_contents("
            f"{_function(declaration)}.contract.declaration, arguments)\n"
            f'assert all(fault.rule != "{rule.id}" for fault in faults)'
        )
    sides = [python(operand) for operand in node.operands]
    parts = [
        f"({left} {operator} {right})"
        for left, operator, right in zip(sides, node.operators, sides[1:], strict=False)
        if any(name in f"{left} {right}" for name in rule.resolved.tensors)
    ]
    body = [
        *_bindings(places(declaration), rule.plain_names),
        f"assert ({' & '.join(parts)}).all()",
    ]
    optional = [name for name in rule.resolved.tensors if name in declaration.names.optional]
    return _when(optional, body)


def judged(declaration: Declaration, rule: str) -> str:
    """The contract's own judgement, where the demand is more than a line of Python."""
    call = _call(f"faults = {_function(declaration)}.contract.violations", declaration)
    return f'{call}\nassert all(fault.rule != "{rule}" for fault in faults)'


def guard(declaration: Declaration) -> str:
    """A function that says whether a call is right."""
    parameters = _signature(declaration)
    call = _call(f"return {_function(declaration)}.contract.accepts", declaration, INDENT)
    return f"{_wrapped('def accepted', parameters, '')} -> bool:\n{call}"


def handler(declaration: Declaration, rule: str) -> str:
    """How to catch one violation and no other."""
    return (
        "try:\n"
        f"{_call(_called(declaration), declaration, INDENT)}\n"
        "except ContractError as error:\n"
        f'{INDENT}if all(fault.rule != "{rule}" for fault in error.violations):\n'
        f"{INDENT * 2}raise\n"
        f"{INDENT}...  # what to do without it"
    )


def _function(declaration: Declaration) -> str:
    """What a caller writes before `.contract`: `Layer.forward` for a method."""
    function = declaration.function
    return getattr(function, "__qualname__", declaration.name).rpartition("<locals>.")[2]


def _called(declaration: Declaration) -> str:
    """What a caller calls: a method is called on its object."""
    function = _function(declaration)
    if declaration.receiver is None:
        return function
    return f"{declaration.receiver}.{function.rpartition('.')[2]}"


def _signature(declaration: Declaration) -> list[str]:
    """The parameters without annotations."""
    parts, starred = [], False
    for parameter in declaration.call_signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            parts.append("*")
        parts.append(str(parameter.replace(annotation=parameter.empty)))
    return parts


def _call(function: str, declaration: Declaration, indent: str = "") -> str:
    """The call that passes every parameter under its own name."""
    parts = []
    for parameter in declaration.call_signature.parameters.values():
        keyword = f"{parameter.name}=" if parameter.kind is parameter.KEYWORD_ONLY else ""
        parts.append(f"{stars(parameter) or keyword}{parameter.name}")
    return _wrapped(indent + function, parts, indent)


def _wrapped(head: str, parts: list[str], indent: str) -> str:
    """`head(parts)`, on several lines where one is too long to read."""
    line = f"{head}({', '.join(parts)})"
    if len(line) <= WIDTH:
        return line
    inside = textwrap.fill(
        ", ".join(parts), WIDTH, initial_indent=indent + INDENT, subsequent_indent=indent + INDENT
    )
    return f"{head}(\n{inside}\n{indent})"


def _known(declaration: Declaration) -> Places:
    """The axes that have to be read off a tensor."""
    return {name: place for name, place in places(declaration).items() if place[1] is not None}


def _bindings(known: Places, axes: list[str]) -> list[str]:
    """Assignments of those axes that are not arguments themselves."""
    found = [(axis, *known[axis]) for axis in axes if axis in known]
    return [f"{axis} = {name}.shape[{index}]" for axis, name, index in found if index is not None]


def _optional_places(declaration: Declaration, axes: list[str]) -> list[tuple[str, int | None]]:
    known = _known(declaration)
    return [
        known[axis]
        for axis in axes
        if axis in known and known[axis][0].partition("[")[0] in declaration.names.optional
    ]


def _when(present: list[str], body: list[str]) -> str:
    if not present:
        return "\n".join(body)
    condition = " and ".join(f"{name} is not None" for name in dict.fromkeys(present))
    return "\n".join([f"if {condition}:", *(INDENT + line for line in body)])


def _each(declaration: Declaration, names: tuple[str, ...], test: str) -> str:
    """`test`, in which `{t}` stands for each of the tensors."""
    optional = any(name in declaration.names.optional for name in names)
    if len(names) == 1:
        return _when([names[0]] if optional else [], [f"assert {test.format(t=names[0])}"])
    each = "t" if "t" not in names else "tensor"
    absent = f" if {each} is not None" if optional else ""
    condition = f"all({test.format(t=each)} for {each} in tensors{absent})"
    return f"tensors = ({', '.join(names)})\nassert {condition}"


def _tuple(items: tuple[object, ...]) -> str:
    return f"({', '.join(map(str, items))}{',' * (len(items) == 1)})"


def python(node: Node) -> str:
    """An expression as Python: exact division is `/`, tensor functions are attributes."""
    return expressions.emit(_divisions(node), lambda name: name, lambda _, hint: hint)


def _divisions(node: Node) -> Node:
    match node:
        case Binary(operator="/", left=left, right=right):
            return Name(f"{_operand(left)} / {_operand(right)}")
        case Binary(left=left, right=right):
            return replace(node, left=_divisions(left), right=_divisions(right))
        case expressions.Unary(operand=operand):
            return replace(node, operand=_divisions(operand))
        case expressions.Compare() | expressions.Logical() | expressions.Call():
            return replace(node, operands=tuple(map(_divisions, node.operands)))
    return node


def _operand(node: Node) -> str:
    text = python(node)
    return f"({text})" if isinstance(node, Binary) else text
