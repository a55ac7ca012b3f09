"""An entry and a contract as sections of text, code and tables, whoever renders them."""

from __future__ import annotations

from dataclasses import dataclass

from ..axes import Named, Variadic
from ..facts import places
from ..model import Declaration, stars
from ..spec import AnySpec, Spec, TensorSpec, TupleSpec, tensor_specs
from .backends import BackendFacts
from .discovery import Subject
from .entry import Entry
from .words import axis_place

LONG = 90
"""Characters that a result may have on one line."""


@dataclass(frozen=True)
class Text:
    """Prose; `code` in backticks."""

    title: str
    text: str


@dataclass(frozen=True)
class Code:
    """Python, or messages as they are printed."""

    title: str
    text: str
    is_message: bool = False


@dataclass(frozen=True)
class Items:
    title: str
    items: tuple[str, ...]


@dataclass(frozen=True)
class Links:
    """Ids of entries."""

    title: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Cells are prose; `link` says that the first column holds rules of `op`."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    link: str | None = None


Section = Text | Code | Items | Links | Table


def of_entry(entry: Entry) -> tuple[Section, ...]:
    """Everything about one way to break one contract."""
    sections: list[Section] = [
        Code("Error message", "\n".join(entry.messages), is_message=True),
        Text("What it means", entry.meaning),
        Text("When it happens", entry.trigger),
    ]
    if entry.situations is not None:
        sections.append(Text("Common situations", entry.situations))
    sections.append(Items("Solutions", entry.solutions))
    if entry.fix is not None:
        fix = entry.fix
        sections.append(
            Code("Example fix", f"# before: {fix.message}\n{fix.before}\n\n# after\n{fix.after}")
        )
    sections += [
        Code("Validation", entry.validation),
        Code("Type guard", entry.guard),
        Code("Catching it", entry.handler),
        Items("Prevention", entry.prevention),
    ]
    if entry.upstream:
        said = "\n".join(message.replace("(.+?)", "…") for message in entry.upstream)
        sections.append(Code("Other libraries say", said, is_message=True))
    if entry.source is not None:
        where = f"{entry.source.file}:{entry.source.line}"
        sections.append(Code(f"Source, {where}", entry.source.text))
    if entry.related:
        sections.append(Links("Related", entry.related))
    return tuple(sections)


def of_subject(subject: Subject, entries: tuple[Entry, ...]) -> tuple[Section, ...]:
    """One contract: signature, axes, arguments, rules, backends."""
    declaration = subject.contract.declaration
    sections: list[Section] = [Code("Signature", signature(declaration))]
    if declaration.axes:
        sections.append(Table("Axes", ("axis", "size of", "rules", "also in"), _axes(declaration)))
    facts = {rule.id for rule in declaration.rules}
    rules = tuple(entry for entry in entries if entry.rule in facts)
    if rules:
        sections.append(
            Table(
                "Rules",
                ("rule", "what it demands"),
                tuple((entry.rule, entry.meaning) for entry in rules),
                subject.name,
            )
        )
    annotated = tuple(entry for entry in entries if entry.rule not in facts)
    if annotated:
        sections.append(
            Table(
                "What the annotations demand",
                ("fact", "what it demands"),
                tuple((entry.rule, entry.meaning) for entry in annotated),
                subject.name,
            )
        )
    if subject.backends:
        sections.append(
            Table(
                "Backends",
                ("backend, best first", "needs", "rules of its own"),
                tuple(_backend(backend) for backend in subject.backends),
            )
        )
    return tuple(sections)


def signature(declaration: Declaration) -> str:
    """The signature, a parameter a line, annotations as the contract reads them."""
    lines, keyword_only = [], False
    specs = {argument.name: argument.spec for argument in declaration.arguments}
    for parameter in declaration.call_signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("    *,")
        spec = specs[parameter.name]
        annotation = "" if isinstance(spec, AnySpec) else f": {spec.text}"
        if annotation and parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            annotation = ": " + spec.text.lstrip("*")
        if parameter.kind is parameter.VAR_POSITIONAL:
            keyword_only = True
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {stars(parameter)}{parameter.name}{annotation}{default},")
    name = declaration.name.rpartition(".")[2]
    head = "\n".join([f"def {name}(", *lines, ")"]) if lines else f"def {name}()"
    return f"{head}{_returns(declaration.returns)}"


def _returns(spec: Spec) -> str:
    """` -> ...`; a long tuple has an item a line."""
    text = spec.text.replace("'", '"')
    if isinstance(spec, AnySpec):
        return ""
    if isinstance(spec, TupleSpec) and len(text) > LONG:
        items = "".join(f"    {item.text},\n" for item in spec.items)
        return f" -> tuple[\n{items}]"
    return f" -> {text}"


def _axes(declaration: Declaration) -> tuple[tuple[str, ...], ...]:
    rows = []
    known = places(declaration)
    for axis in declaration.axes:
        argument, index = known[axis]
        where = (
            f"{axis_place(index)} of `{argument}`"
            if index is not None
            else f"the argument `{axis}`"
        )
        others = [
            f"`{a.name}`"
            for a in declaration.arguments
            if a.name != argument
            and any(
                isinstance(item, Named | Variadic) and item.name == axis
                for spec in tensor_specs(a.spec)
                for item in spec.shape.axes
            )
        ]
        rules = [
            f"`{rule.text}`"
            for rule in declaration.rules
            if isinstance(names := getattr(rule, "names", ()), frozenset) and axis in names
        ]
        rows.append((f"`{axis}`", where, ", ".join(rules), ", ".join(others)))
    return tuple(rows)


def _backend(backend: BackendFacts) -> tuple[str, ...]:
    return (
        f"`{backend.name}`",
        ", ".join(f"`{need}`" for need in backend.needs) or "nothing",
        ", ".join(f"`{rule}`" for rule in backend.rules) or "none",
    )


def shapes(declaration: Declaration) -> tuple[tuple[str, TensorSpec], ...]:
    """The tensors of a signature, with their labels, in order."""
    return tuple(
        (argument.name + ("?" if argument.optional else ""), spec)
        for argument in declaration.arguments
        for spec in tensor_specs(argument.spec)
    )
