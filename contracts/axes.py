"""Axis strings, with jaxtyping's meaning: `"*batch num_heads=4 img_len+txt_len #head_dim _"`."""

from __future__ import annotations

import functools
import keyword
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ContractDefinitionError
from .expressions import Name, Node, is_condition, parse, tensor_names, to_text


@dataclass(frozen=True, slots=True)
class Named:
    """One size, the same wherever the name stands. `broadcast` (`#name`) also allows size 1."""

    name: str
    broadcast: bool = False

    def __str__(self) -> str:
        return "#" * self.broadcast + self.name


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant size; `label` is the documenting name of `label=4` and binds nothing."""

    size: int
    label: str | None = None
    broadcast: bool = False

    def __str__(self) -> str:
        return "#" * self.broadcast + (f"{self.label}=" if self.label else "") + str(self.size)


@dataclass(frozen=True, slots=True)
class Computed:
    """A size that follows from others; `/` is exact."""

    expression: Node
    label: str | None = None
    broadcast: bool = False

    def __str__(self) -> str:
        return "#" * self.broadcast + to_text(self.expression).replace(" ", "")


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Any size."""

    def __str__(self) -> str:
        return "_"


@dataclass(frozen=True, slots=True)
class Variadic:
    """Any number of axes: `...` where it has no name, `*name` where it has."""

    name: str | None = None
    broadcast: bool = False

    def __str__(self) -> str:
        return "..." if self.name is None else "*" + "#" * self.broadcast + self.name


Axis = Named | Fixed | Computed | Anonymous | Variadic


@dataclass(frozen=True)
class Shape:
    """The axes of one tensor, at most one of them variadic."""

    axes: tuple[Axis, ...]

    @functools.cached_property
    def variadic(self) -> int | None:
        """Position of the variadic axis."""
        return next((i for i, axis in enumerate(self.axes) if isinstance(axis, Variadic)), None)

    @functools.cached_property
    def keys(self) -> tuple[str, ...]:
        """The part of a violation's id that says which axis it is about, for each."""
        after = len(self.axes) if self.variadic is None else self.variadic
        return tuple(
            axis_key(axis, index if index <= after else index - len(self.axes))
            for index, axis in enumerate(self.axes)
        )

    @functools.cached_property
    def has_computed(self) -> bool:
        return any(isinstance(axis, Computed) for axis in self.axes)

    @functools.cached_property
    def least_rank(self) -> int:
        return len(self.axes) - (self.variadic is not None)

    def __str__(self) -> str:
        return " ".join(map(str, self.axes))


ANY_SHAPE = Shape((Variadic(),))


def axis_key(axis: Axis, index: int) -> str:
    """The part of a violation's id that says which axis it is about: its name, its label, or its
    place, counted from the end after a variadic axis."""
    match axis:
        case Named(name=name):
            return name
        case Variadic(name=str(name)):
            return f"*{name}"
        case Fixed(label=str(label)) | Computed(label=str(label)):
            return label
    return f"axis{index}"


_LABEL = re.compile(r"([A-Za-z]\w*)=([^=]+)")
_BRACES = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}")


def parse_shape(text: str, constants: Mapping[str, int], arguments: frozenset[str]) -> Shape:
    """Read an axis string.

    `{name}` refers to an argument (`{self.dim}` to an attribute of one) or else to one of
    `constants`, the integers that the function's own scope defines.
    Names are normalised, as Python normalises those of arguments.
    """
    tokens = unicodedata.normalize("NFKC", text).split()
    axes = tuple(_parse_axis(token, constants, arguments) for token in tokens)
    if sum(isinstance(axis, Variadic) for axis in axes) > 1:
        raise ContractDefinitionError(f"more than one variadic axis in {text!r}")
    return Shape(axes)


def _parse_axis(token: str, constants: Mapping[str, int], arguments: frozenset[str]) -> Axis:
    if token == "...":
        return Variadic()
    rest, flags, label = token, set[str](), None
    while rest:
        if labelled := _LABEL.fullmatch(rest):
            label, rest = labelled.groups()
        elif rest[0] not in "#*_?":
            break
        elif rest[0] in flags:
            raise ContractDefinitionError(f"{rest[0]!r} stands twice in the axis {token!r}")
        else:
            flags.add(rest[0])
            rest = rest[1:]
    if "?" in flags:
        raise ContractDefinitionError(
            f"the axis {token!r} depends on a position in a pytree, which a contract cannot bind"
        )
    if "_" in flags:
        return Variadic() if "*" in flags else Anonymous()
    broadcast = "#" in flags
    if "*" in flags:
        return Variadic(check_name(rest, token), broadcast)
    if re.fullmatch(r"\d+", rest):
        return Fixed(int(rest), label, broadcast)
    if rest.isidentifier():
        return Named(check_name(rest, token), broadcast)
    return _parse_computed(rest, token, label, broadcast, constants, arguments)


def _parse_computed(
    text: str,
    token: str,
    label: str | None,
    broadcast: bool,
    constants: Mapping[str, int],
    arguments: frozenset[str],
) -> Axis:
    placeholders: dict[str, Name] = {}

    def substitute(match: re.Match[str]) -> str:
        name, *path = match[1].split(".")
        if name in arguments:
            placeholder = f"_brace{len(placeholders)}"
            placeholders[placeholder] = Name(name, tuple(path))
            return placeholder
        if not path and name in constants:
            value = constants[name]
            return str(value) if value >= 0 else f"({value})"
        raise ContractDefinitionError(
            f"{match[0]} in the axis {token!r} is neither an argument nor an integer that the "
            "function can see"
        )

    text = _BRACES.sub(substitute, text)
    if text.isdigit():
        return Fixed(int(text), label, broadcast)
    node = parse(text, placeholders)
    if tensor_names(node) or is_condition(node):
        raise ContractDefinitionError(f"the axis {token!r} is not a size")
    return Computed(node, label, broadcast)


def check_name(name: str, token: str) -> str:
    """A name that can be written in a rule."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ContractDefinitionError(f"the axis {token!r} has a name that no rule can write")
    return name
