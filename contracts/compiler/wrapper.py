"""The function that stands in front of the user's, with the user's exact signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..model import Declaration, stars
from .body import Body
from .check import check_parameters, compile_passes, new_module
from .module import Module


class Refused(Exception):
    """Leaves an inlined check; never reaches a caller."""


def compile_wrapper(
    declaration: Declaration,
    template: str,
    objects: Mapping[str, Any],
) -> Callable[..., Any]:
    """A function with the declaration's exact signature.

    `template` is the body. In it `{call}` stands for the arguments as the function takes them,
    `{arguments}` for the arguments by position, as the generated checks take them, `{values}` for
    a tuple of these, and each key of `objects` for that object. A line `{check}` becomes the whole
    check, in place: what it refuses goes to `objects["refuse"]` as a tuple, which raises or lets
    the call pass; in a traced graph, rules on addresses go to `objects["at_run_time"]`. Below it,
    `{notes}` is a dict that belongs to the call's layout, or None where that is not known.
    """
    signature = declaration.signature
    module = new_module(declaration)
    names = {key: module.constant(value, key) for key, value in objects.items()}
    name = declaration.name.rpartition(".")[2]
    name = module.global_name(name if name.isidentifier() else "wrapper")
    names["call"] = _pass_on(signature)
    names["arguments"] = ", ".join(_checked_arguments(declaration, module))
    names["values"] = f"({names['arguments']},)" if names["arguments"] else "()"
    names["notes"] = "None"
    lines = [f"def {name}({_parameters(signature, module)}):"]
    for line in template.splitlines():
        if line == "{check}":
            noted = "{notes}" in template
            lines += _inlined(declaration, module, names, noted)
        else:
            lines.append("    " + line.format(**names))
    module.functions.append("\n".join(lines))
    return module.load()[name]


def _inlined(
    declaration: Declaration, module: Module, names: dict[str, str], noted: bool
) -> list[str]:
    values = names["values"]
    refuse = f"{names['refuse']}({values})"
    left_to_the_run = any(rule.pointers for rule in declaration.rules)
    body = Body(module, declaration, f"raise {module.constant(Refused, 'Refused')}")
    if any(argument.factory for argument in declaration.arguments):
        passes = module.constant(compile_passes(declaration).function, "passes")
        body.require(f"{passes}({names['arguments']})")
    else:
        body.everything()
    tracing = body.tracing() if left_to_the_run else ""
    lines = [
        "    try:",
        *(body.lines or ["        pass"]),
        f"    except {module.builtin('Exception')}:",
        f"        {refuse}",
    ]
    if noted and body.notes:
        names["notes"] = body.notes
        lines.append(f"        {body.notes} = None")
    if left_to_the_run:
        asked = " and ".join([tracing, *_asked_of(declaration)])
        lines += [f"    if {asked}:", f"        {names['at_run_time']}({values})"]
    return lines


def _asked_of(declaration: Declaration) -> list[str]:
    """The condition under which rules on addresses have anything to judge: a graph in which none
    of their arguments is given need not ask."""
    asked: list[str] = []
    for rule in declaration.rules:
        if rule.pointers:
            own = sorted(getattr(rule, "names", ()))
            if not own or not declaration.names.optional.issuperset(own):
                return []
            asked += [f"{name} is not None" for name in own]
    return [f"({' or '.join(dict.fromkeys(asked))})"] if asked else []


def _checked_arguments(declaration: Declaration, module: Module) -> list[str]:
    """The arguments as the checks take them: the marker of a default factory is an absent one."""
    factories = {argument.name for argument in declaration.arguments if argument.factory}
    checked = []
    for value in check_parameters(declaration):
        if value in factories:
            default = declaration.signature.parameters[value].default
            marker = module.constant(default, f"{value}_factory")
            checked.append(f"None if {value} is {marker} else {value}")
        else:
            checked.append(value)
    return checked


def _parameters(signature: inspect.Signature, module: Module) -> str:
    """The parameter list, defaults bound by name."""
    parts: list[str] = []
    previous = None
    for parameter in signature.parameters.values():
        kind = parameter.kind
        if previous is parameter.POSITIONAL_ONLY and kind is not parameter.POSITIONAL_ONLY:
            parts.append("/")
        if kind is parameter.KEYWORD_ONLY and previous not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            parts.append("*")
        text = stars(parameter) + parameter.name
        if parameter.default is not parameter.empty:
            text += f"={module.constant(parameter.default, f'{parameter.name}_default')}"
        parts.append(text)
        previous = kind
    if previous is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts)


def _pass_on(signature: inspect.Signature) -> str:
    """The same arguments in a call."""
    return ", ".join(
        f"{parameter.name}={parameter.name}"
        if parameter.kind is parameter.KEYWORD_ONLY
        else stars(parameter) + parameter.name
        for parameter in signature.parameters.values()
    )
