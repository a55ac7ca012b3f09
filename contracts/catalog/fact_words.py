"""What the facts of annotations mean, and the messages by which a call hears of them."""

from __future__ import annotations

from .. import expressions
from ..axes import Computed, Fixed, Named, Variadic
from ..facts import Fact, places
from ..model import Declaration
from ..spec import OptionalSpec, TensorSpec
from .words import Words, axis_place, capital, dtype_names, origins


def of_fact(declaration: Declaration, fact: Fact) -> Words:
    words = {"type": _type, "dtype": _dtype, "rank": _rank, "axis": _axis}[fact.kind]
    return words(declaration, fact)


def _label(fact: Fact) -> str:
    """The argument as a message spells it: items have a number or a key."""
    return fact.label.replace("[key]", " key {item}").replace("[]", "[{item}]")


def _type(declaration: Declaration, fact: Fact) -> Words:
    text = fact.spec.text
    optional = isinstance(declaration.argument(fact.argument).spec, OptionalSpec)
    tensor = isinstance(fact.spec, TensorSpec)
    thing = "a torch tensor" if tensor else f"`{text}`"
    return Words(
        "type",
        f"{fact.label}: {text}{' | None' if optional else ''}",
        (f"{_label(fact)} is {{actual}}, expected {text}",)
        + ((f"{_label(fact)} matches none of: {{reasons}}",) if not tensor else ()),
        f"`{fact.label}` must be {thing}{', or None' if optional else ''}.",
        f"`{fact.label}` is anything else"
        + (": a number, a list, an array of another library." if tensor else "."),
        f"Pass {thing} as `{fact.label}`"
        + ("; `torch.as_tensor` makes one of a number or an array." if tensor else "."),
        (fact.argument,),
    )


def _dtype(declaration: Declaration, fact: Fact) -> Words:
    assert isinstance(fact.spec, TensorSpec)
    wanted = dtype_names(fact.spec.dtypes)
    eight_bit = any(d.itemsize == 1 and d.is_floating_point for d in fact.spec.dtypes or ())
    return Words(
        "dtype",
        f"{fact.label}.dtype is {wanted}",
        (f"{_label(fact)} is {{actual}}, expected {wanted}",),
        f"`{fact.label}` must be {wanted}. Nothing is converted silently."
        + (" Other 8-bit floats hold other values in the same bytes." if eight_bit else ""),
        f"`{fact.label}` has any other dtype.",
        f"Give `{fact.label}` as {wanted}, where it is made or with `.to(...)`.",
        (fact.argument,),
    )


def _rank(declaration: Declaration, fact: Fact) -> Words:
    assert isinstance(fact.spec, TensorSpec)
    shape = fact.spec.shape
    axes = f"[{', '.join(map(str, shape.axes))}]"
    least = "" if shape.variadic is None else "at least "
    count = f"{shape.least_rank} {'axis' if shape.least_rank == 1 else 'axes'}"
    return Words(
        "rank",
        f"{fact.label} is {axes}",
        (f"{_label(fact)} has {{actual}}, expected {least}{shape.least_rank}: {axes}",),
        f"`{fact.label}` must have {least}{count}: `{axes}`.",
        f"`{fact.label}` arrives with more or fewer axes, for instance without a batch axis or "
        "with heads and channels still in one.",
        f"Bring `{fact.label}` to `{axes}` with `unsqueeze`, `squeeze`, `view` or `unflatten`.",
        (fact.argument,),
    )


def _axis(declaration: Declaration, fact: Fact) -> Words:
    axis, index, label = fact.axis, fact.index, fact.label
    assert index is not None
    where = f"{capital(axis_place(index))} of `{label}`"
    shown = f"axis {index}" if index >= 0 else "axis {axis}"
    match axis:
        case Fixed(size=size, label=title):
            called = f" ({title})" if title else ""
            return Words(
                "shape",
                f"{label}.shape[{index}] == {size}",
                (f"{_label(fact)} {shown}{called} is {{actual}}, expected {size}",),
                f"{where}{called} must be {size}.",
                f"`{label}` has another size there.",
                f"Give `{label}` the size {size} along {axis_place(index)}.",
                (fact.argument,),
                (title,) if title else (),
            )
        case Computed(expression=expression):
            title = str(axis).lstrip("#")
            names = sorted(expressions.value_names(expression))
            known = origins(declaration, names)
            return Words(
                "shape",
                f"{label}.shape[{index}] == {title}",
                (
                    f"{_label(fact)} {shown} ({title}) is {{actual}}, expected {{expected}}",
                    f"{_label(fact)} {shown} should be {title}, but {{reason}}",
                ),
                f"{where} must be `{title}`{known}.",
                f"`{label}` has another size there, or `{title}` cannot be computed exactly.",
                f"Make `{label}` from the same sizes: `{title}` along {axis_place(index)}.",
                (fact.argument,),
                tuple(names),
            )
        case Named(name=name) | Variadic(name=str(name)):
            argument, place = places(declaration, besides=fact.argument)[name]
            several = isinstance(axis, Variadic)
            title = f"*{name}" if several else name
            forms: tuple[str, ...] = (
                f"{_label(fact)} {'axes' if several else shown} ({title}) is {{actual}}, "
                "expected {expected}",
            )
            source = f"the argument `{argument}`"
            if place is not None:
                source = f"the size of {axis_place(place)} of `{argument}`"
            if several:
                forms += (f"{_label(fact)} axes ({title}) are {{actual}}: {{reason}}",)
                where = f"The axes `{title}` of `{label}`"
                source = f"those of `{argument}`"
            one = ", or be 1" if axis.broadcast else ""
            return Words(
                "shape",
                f"{label}.shape[{index}] == {name}" if not several else f"{label} has {title}",
                forms,
                f"{where} must be {name}, {source}{one}."
                if not several
                else f"{where} must {'broadcast with' if axis.broadcast else 'equal'} {source}.",
                f"`{label}` and `{argument}` were made with different {name}.",
                f"Make `{label}` with the {name} that `{argument}` has; the wrong one of the two "
                "is for you to know.",
                (fact.argument, argument.partition("[")[0]),
                (name,),
            )
    raise AssertionError(axis)
