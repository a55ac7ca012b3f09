"""What rules mean, and the messages by which a call hears of them."""

from __future__ import annotations

from ..describe import sentence
from ..facts import places
from ..model import Declaration
from ..rules.base import Rule
from ..rules.custom import Custom
from ..rules.expression import Expression, When
from ..rules.memory import Aligned, Contiguous, NoOverlap, UnitStride
from ..rules.presence import Requires
from ..rules.tensor import Device, Dtype, NoGrad, SameDevice, SameDtype, TensorRule
from ..rules.values import Values
from .words import Words, capital, dtype_names, listed, origins


def of_rule(declaration: Declaration, rule: Rule) -> Words:
    match rule:
        case When(condition=condition, rule=inner):
            words = of_rule(declaration, inner)
            tails = (f" (when {condition.text})", f"{{details}} (when {condition.text})")
            return Words(
                words.kind,
                rule.text,
                tuple(message + tail for message in words.messages for tail in tails),
                f"Where `{condition.text}`: {words.meaning}",
                f"`{condition.text}` holds, and: {words.trigger}",
                words.solution,
                words.arguments,
                words.axes,
            )
        case Expression():
            return _expression(declaration, rule)
        case Requires(needed=needed, when=given):
            because = f", because {given} is given" if given else ""
            return Words(
                "presence",
                rule.text,
                (f"{needed} is None, expected a value{because}",),
                f"`{given}` is only accepted together with `{needed}`."
                if given
                else f"`{needed}` must be given.",
                f"`{given}` is given and `{needed}` is None." if given else f"`{needed}` is None.",
                f"Pass `{needed}`" + (f", or leave out `{given}`." if given else "."),
                (needed, *filter(None, (given,))),
            )
        case Custom(demand=demand, arguments=arguments):
            names = tuple(n for n in arguments if n in declaration.names.arguments)
            return Words(
                "custom",
                demand,
                (f"{demand} does not hold",),
                sentence(demand),
                f"That does not hold: `{demand}`.",
                f"See to it: {sentence(demand)}",
                names,
                tuple(n for n in arguments if n not in names),
            )
        case Values():
            return _contents(declaration, rule)
        case TensorRule():
            return _tensor_rule(rule)
    return Words(
        type(rule).__name__.lower(),
        rule.text,
        (f"{rule.text} does not hold",),
        f"`{rule.text}` must hold.",
        f"`{rule.text}` does not hold.",
        f"Make `{rule.text}` hold.",
    )


def _expression(declaration: Declaration, rule: Expression) -> Words:
    names = sorted(rule.names, key=rule.source.find)
    axes = tuple(name for name in names if name in declaration.names.axes | declaration.sizes)
    arguments = [name for name in names if name in declaration.names.arguments]
    known = places(declaration)
    arguments += [known[axis][0].partition("[")[0] for axis in axes if axis in known]
    where = origins(declaration, list(axes))
    return Words(
        "size" if axes else "value",
        rule.text,
        (f"{rule.text} does not hold",),
        f"`{rule.text}` must hold{where}.",
        f"The call's {', '.join(names)} do{'es' if len(names) == 1 else ''} not satisfy it.",
        f"Choose {', '.join(names)} so that `{rule.text}`.",
        tuple(dict.fromkeys(arguments)),
        axes,
    )


def _contents(declaration: Declaration, rule: Values) -> Words:
    tensors = rule.resolved.tensors
    axes = tuple(name for name in rule.plain_names if name in declaration.names.axes)
    return Words(
        "contents",
        rule.text,
        (
            f"{{place}} is {{value}}, breaks {rule.text}",
            f"{rule.text} cannot be judged: {{reason}}",
        ),
        f"`{rule.text}` must hold for every element{origins(declaration, list(axes))}. Judged in "
        "the modes `debug` and `async` alone: otherwise no contents are read.",
        f"An element of {listed(tensors)} does not satisfy it, and the mode is `debug` or `async`.",
        f"Look at the first element that the error names, and at where {listed(tensors)} "
        f"{'is' if len(tensors) == 1 else 'are'} filled.",
        tensors,
        axes,
    )


def _tensor_rule(rule: TensorRule) -> Words:
    every = "every tensor" if rule.everywhere else listed(rule.names)
    misread = "{argument} is {reason}, expected plain strided memory"
    match rule:
        case Device(device=device):
            return Words(
                "device",
                rule.text,
                (f"{{argument}} is on {{actual}}, expected {device}",),
                f"{capital(every)} must be on {device}.",
                "A tensor is on another device.",
                f"Move it: `x = x.to({str(device)!r})`.",
                rule.names,
            )
        case SameDevice():
            return Words(
                "device",
                rule.text,
                ("{argument} is on {actual}, expected {expected}",),
                f"{capital(every)} must be on one device, that of `{rule.names[0]}`.",
                "A tensor was left on the CPU, or on another GPU than the rest.",
                f"Move it: `x = x.to({rule.names[0]}.device)`.",
                rule.names,
            )
        case Dtype(dtypes=dtypes):
            return Words(
                "dtype",
                rule.text,
                (f"{{argument}} is {{actual}}, expected {dtype_names(dtypes)}",),
                f"{capital(every)} must be {dtype_names(dtypes)}.",
                "A tensor has any other dtype.",
                f"Convert it to {dtype_names(dtypes)} where it is made.",
                rule.names,
            )
        case SameDtype():
            return Words(
                "dtype",
                rule.text,
                ("{argument} is {actual}, expected {expected}",),
                f"{capital(every)} must have one dtype, that of `{rule.names[0]}`.",
                "One of the tensors was cast and the others were not.",
                f"Convert it: `x = x.to({rule.names[0]}.dtype)`.",
                rule.names,
            )
        case NoGrad():
            return Words(
                "gradient",
                rule.text,
                ("{argument} requires grad, and this function has no gradient",),
                f"While gradients are recorded, {every} must not require one: there is no "
                "backward, and the graph would be cut without a word.",
                "Grad mode is on and one of them requires grad, such as a parameter.",
                "Call it under `torch.no_grad()`, or pass `x.detach()`.",
                rule.names,
            )
        case UnitStride(dim=dim):
            axis = "the last axis" if dim == -1 else f"axis {dim}"
            return Words(
                "layout",
                rule.text,
                (
                    "{argument} has stride {actual} along {axis}, expected 1",
                    f"{{argument}} has no axis {dim}, expected one with stride 1",
                    misread,
                ),
                f"Neighbours along {axis} of {every} must be neighbours in memory.",
                "A transposed or strided view is passed, or a sparse, nested or lazily negated "
                "tensor.",
                "Copy it into its own order: `x = x.contiguous()`.",
                rule.names,
            )
        case Contiguous():
            return Words(
                "layout",
                rule.text,
                (
                    "{argument} is not contiguous: shape {shape} has strides {strides}",
                    misread,
                ),
                f"{capital(every)} must be dense and row-major.",
                "A slice, a transposed or an expanded view is passed.",
                "Copy it: `x = x.contiguous()`.",
                rule.names,
            )
        case Aligned(alignment=alignment):
            return Words(
                "layout",
                rule.text,
                (
                    f"{{argument}} starts {{actual}} bytes past a {alignment}-byte boundary",
                    misread,
                ),
                f"{capital(every)} must start at a multiple of {alignment} bytes.",
                "A view into the middle of a buffer is passed.",
                "Copy it into memory of its own: `x = x.clone()`.",
                rule.names,
            )
        case NoOverlap():
            return Words(
                "memory",
                rule.text,
                ("{argument} and {other} overlap in memory", "{argument} overlaps itself", misread),
                f"{capital(every)} must share memory with nothing: not with itself, not with one "
                "another, not with any other tensor of the call. Extents are compared, gaps "
                "between rows included.",
                "Two views of one buffer are passed, or one expanded along an axis.",
                "Allocate each its own memory.",
                rule.names,
            )
    return Words(
        type(rule).__name__.lower(),
        rule.text,
        ("{argument} breaks " + rule.text,),
        f"`{rule.text}` must hold.",
        f"`{rule.text}` does not hold.",
        f"Make `{rule.text}` hold.",
        rule.names,
    )
