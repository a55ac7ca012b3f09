"""A picture of a call: each tensor as a row of named axes, one colour for sizes that must agree."""

from __future__ import annotations

from html import escape

from ..axes import Anonymous, Axis, Computed, Fixed, Named, Variadic
from ..catalog.page import shapes
from ..model import Declaration
from ..spec import TensorSpec, tensor_specs
from ..tensors import dtype_name

HUES = (210, 25, 145, 330, 265, 50, 185, 0, 100, 290)


def picture(declaration: Declaration) -> str:
    """The tensors of the arguments and of the result."""
    hues = {axis: HUES[index % len(HUES)] for index, axis in enumerate(declaration.axes)}
    rows = [_row(label, spec, hues) for label, spec in shapes(declaration)]
    results = list(tensor_specs(declaration.returns))
    rows += [
        _row(f"→ result{f' {index}' if len(results) > 1 else ''}", spec, hues, "result")
        for index, spec in enumerate(results)
    ]
    if not rows:
        return ""
    return (
        '<section><h2>Tensors</h2><p class="key">Axes of one name and colour have one size. '
        "A dashed box follows from others, a grey one is fixed; <code>?</code> marks an argument "
        f'that may be None.</p><div class="tensors">{"".join(rows)}</div></section>'
    )


def _row(label: str, spec: TensorSpec, hues: dict[str, int], kind: str = "") -> str:
    dtypes = [dtype_name(dtype) for dtype in spec.dtypes or ()]
    shown = " | ".join(dtypes[:3]) + (" …" if len(dtypes) > 3 else "") or "any dtype"
    axes = "".join(_box(axis, hues) for axis in spec.shape.axes) or '<i class="fixed">scalar</i>'
    return (
        f'<div class="tensor {kind}"><b>{escape(label)}</b><small>{escape(shown)}</small>'
        f'<span class="axes">{axes}</span></div>'
    )


def _box(axis: Axis, hues: dict[str, int]) -> str:
    text = escape(str(axis))
    match axis:
        case Named(name=name) | Variadic(name=str(name)):
            return f'<i style="--hue:{hues.get(name, 0)}">{text}</i>'
        case Computed():
            return f'<i class="computed">{text}</i>'
        case Fixed() | Anonymous() | Variadic():
            return f'<i class="fixed">{text}</i>'
