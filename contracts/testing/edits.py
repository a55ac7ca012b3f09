"""Single changes of a call: one argument of another type, dtype, shape, layout, device or memory.

Nothing here knows what a contract demands. Whoever uses the edits asks the contract which of its
rules each of them breaks: one that breaks nothing is another legal call, one that breaks a single
rule is the test of that rule.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..model import Declaration
from ..spec import (
    AnySpec,
    ItemsSpec,
    OptionalSpec,
    Spec,
    TupleSpec,
    UnionSpec,
    ValueSpec,
    tensor_specs,
)
from ..tensors import dtype_name
from .making import PREFERRED_DTYPES
from .plans import Path, Plan, can_fake, has_device
from .samples import STRANGERS, strangers
from .tensor_plans import TensorPlan

DTYPES = (
    *PREFERRED_DTYPES,
    *(torch.int16, torch.int8, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2),
)
PARTS_OF_COMPLEX = (torch.float16, torch.float32, torch.float64)
"""Dtypes of which a lazy negative view is met in practice: as `z.conj().imag`."""
PACKED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
HARMLESS = frozenset({"layout", "negative", "offset", "device", "gradient", "overlap", "container"})
"""Kinds of edits that are worth a test where they break nothing."""


@dataclass(frozen=True)
class Edit:
    """One change; `text` says which, in the words of a test's name."""

    kind: str
    text: str
    plan: Plan
    argument: str = ""


def edits(declaration: Declaration, plan: Plan) -> Iterator[Edit]:
    """Every single change of a call, simple ones first."""
    for argument in declaration.arguments:
        name = argument.name
        packed = declaration.signature.parameters[name].kind in PACKED
        for edit in _of_value(argument.spec, plan.values[name], (name,), plan):
            # Python itself packs `*args` and `**kwargs`: nothing else can stand there.
            if not packed or type(edit.plan.values[name]) is type(plan.values[name]):
                yield replace(edit, argument=name)
    yield from _of_all(plan)
    yield from _overlaps(plan)


def _of_value(spec: Spec, value: Any, path: Path, plan: Plan) -> Iterator[Edit]:
    match spec:
        case OptionalSpec(inner=inner):
            if value is not None:
                yield from _of_value(inner, value, path, plan)
            return
        case AnySpec():
            return
        case ValueSpec():
            for stranger in list(strangers(spec))[:2]:
                yield _stranger(stranger, path, plan)
            return
    for stranger in STRANGERS[:3] if isinstance(value, TensorPlan) else STRANGERS[:4]:
        yield _stranger(stranger, path, plan)
    if isinstance(value, TensorPlan):
        yield from _of_tensor(spec, value, path, plan)
    for branch in spec.branches if isinstance(spec, UnionSpec) else (spec,):
        if isinstance(branch, ItemsSpec | TupleSpec) and isinstance(value, list | tuple | dict):
            yield from _of_container(branch, value, path, plan)


def _stranger(value: Any, path: Path, plan: Plan) -> Edit:
    kind = "missing" if value is None else "type"
    return Edit(kind, f"{label_of(path)}={_brief(value)}", plan.put(path, value))


def _of_container(
    spec: ItemsSpec | TupleSpec, value: Any, path: Path, plan: Plan
) -> Iterator[Edit]:
    label = label_of(path)
    items = list(value.values()) if isinstance(value, dict) else list(value)
    others: list[Any] = [items, tuple(items), {f"item{i}": item for i, item in enumerate(items)}]
    for other in others:
        if type(other) is not type(value):
            text = f"{label} a {type(other).__name__}"
            yield Edit("container", text, plan.put(path, other))
    if isinstance(spec, TupleSpec):
        yield Edit("container", f"{label} one item longer", plan.put(path, (*items, None)))
        yield Edit("container", f"{label} one item shorter", plan.put(path, tuple(items[:-1])))
        for index, item in enumerate(spec.items):
            yield from _of_value(item, items[index], (*path, index), plan)
        return
    if not items:
        return
    if isinstance(value, list | tuple):
        longer = type(value)([*items, items[-1]])
        yield Edit("container", f"{label} one item longer", plan.put(path, longer))
        yield Edit("container", f"{label} one item shorter", plan.put(path, value[:-1]))
    if isinstance(value, dict):
        for stranger in strangers(spec.key) if isinstance(spec.key, ValueSpec) else ():
            if getattr(stranger, "__hash__", None) is not None:
                changed = {**dict(list(value.items())[:-1]), stranger: items[-1]}
                yield Edit("key", f"{label} key {_brief(stranger)}", plan.put(path, changed))
    last = list(value)[-1] if isinstance(value, dict) else len(items) - 1
    yield from _of_value(spec.item, items[-1], (*path, last), plan)


def _of_tensor(spec: Spec, tensor: TensorPlan, path: Path, plan: Plan) -> Iterator[Edit]:
    label = label_of(path)

    def edit(kind: str, what: str, **changes: Any) -> Edit:
        return Edit(kind, f"{label} {what}", plan.put(path, replace(tensor, **changes)))

    for dtype in other_dtypes(spec, tensor.dtype):
        yield edit(f"dtype {dtype}", f"as {dtype_name(dtype)}", dtype=dtype, requires_grad=False)
    shape = tensor.shape
    yield edit("rank up", f"of shape {[1, *shape]}", shape=(1, *shape), strides=None)
    if shape:
        yield edit("rank down", f"of shape {list(shape[1:])}", shape=shape[1:], strides=None)
    for axis, size in enumerate(shape):
        for kind, changed in _other_sizes(size):
            resized = (*shape[:axis], changed, *shape[axis + 1 :])
            yield edit(
                f"{kind} {axis}",
                f"axis {axis} of {changed}, not {size}",
                shape=resized,
                strides=None,
            )
    for what, strides in layouts(shape):
        yield edit("layout", what, strides=strides)
    if tensor.dtype in PARTS_OF_COMPLEX:
        yield edit("negative", "as a lazy negative view", negative=True)
    yield edit("offset", "one element past an aligned address", offset=1)
    for device in ("meta", "cpu", "cuda:1", "cuda"):
        elsewhere = torch.device(device) != torch.device(tensor.device)
        if elsewhere and (has_device(device) or (plan.fake and can_fake(device))):
            yield edit("device", f"on {device}", device=device)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        yield edit("gradient", "requires grad", requires_grad=True)


def _of_all(plan: Plan) -> Iterator[Edit]:
    devices = {tensor.device for _, tensor in plan.tensors()}
    for device in ("cpu", "meta", "cuda", "cuda:1"):
        if devices and devices != {device} and can_fake(device):
            moved = plan.map(partial(replace, device=device))
            yield Edit("device", f"everything on {device}", moved)
    dtypes = Counter(tensor.dtype for _, tensor in plan.tensors())
    for old in (dtype for dtype, tensors in dtypes.items() if tensors > 1):
        for new in sorted((d for d in DTYPES if d != old), key=partial(_distance, old))[:4]:
            changed = plan.map(partial(_with_dtype, old, new))
            title = f"everything of {dtype_name(old)} as {dtype_name(new)}"
            yield Edit(f"dtype {new}", title, changed)


def _with_dtype(old: torch.dtype, new: torch.dtype, tensor: TensorPlan) -> TensorPlan:
    return replace(tensor, dtype=new, requires_grad=False) if tensor.dtype == old else tensor


def _overlaps(plan: Plan) -> Iterator[Edit]:
    """Two tensors that begin at one address, the smaller inside the larger."""
    if plan.fake:
        return
    single = [(str(path[0]), tensor) for path, tensor in plan.tensors() if len(path) == 1]
    for index, (one, x) in enumerate(single):
        for other, y in single[index + 1 :]:
            if not (_is_plain(x) and _is_plain(y) and x.device == y.device):
                continue
            (owner, _), (guest, small) = sorted(
                ((one, x), (other, y)), key=lambda pair: -pair[1].nbytes
            )
            shared = replace(small, shares=owner, strides=None, offset=0)
            text = f"{one} and {other} in one memory"
            yield Edit(f"overlap {one} {other}", text, plan.put((guest,), shared))


def _is_plain(tensor: TensorPlan) -> bool:
    """Whether another tensor can be a view of this one's memory."""
    return (
        tensor.numel > 0
        and tensor.device != "meta"
        and has_device(tensor.device)
        and tensor.strides is None
        and not tensor.negative
        and not tensor.requires_grad
    )


def other_dtypes(spec: Spec, dtype: torch.dtype) -> list[torch.dtype]:
    """Up to two dtypes that a spec allows beside this one, and the two nearest that it does not."""
    specs = list(tensor_specs(spec))
    allowed = {d for tensor in specs for d in tensor.dtypes or DTYPES}
    near = sorted((d for d in DTYPES if d != dtype), key=lambda d: _distance(d, dtype))
    return [d for d in near if d in allowed][:2] + [d for d in near if d not in allowed][:2]


def _distance(a: torch.dtype, b: torch.dtype) -> tuple[bool, bool, int]:
    return (
        a.is_floating_point != b.is_floating_point,
        a.is_complex != b.is_complex,
        abs(a.itemsize - b.itemsize),
    )


def _other_sizes(size: int) -> Iterator[tuple[str, int]]:
    yield from (("larger", size + 1), ("larger", 2 * size or 2), ("larger", size + 2))
    # Half first: heads that were grouped, or sharded over two ranks.
    yield from (("smaller", n) for n in (size // 2, size - 1, 1, 0) if 0 <= n < size)


def layouts(shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Ways to lie in memory other than dense and row-major, each with its strides."""
    if not shape:
        return
    dense = TensorPlan(shape, torch.float32).dense_strides()
    if len(shape) > 1:
        pitch = shape[-1] + 16
        rows = TensorPlan((*shape[:-1], pitch), torch.float32).dense_strides()
        yield "in wider rows", rows
        order = [1, 0, *range(2, len(shape))]
        swapped = TensorPlan(tuple(shape[i] for i in order), torch.float32).dense_strides()
        if len(shape) > 2:
            yield "with outer axes swapped", (swapped[1], swapped[0], *swapped[2:])
        backwards = TensorPlan(shape[::-1], torch.float32).dense_strides()
        yield "column-major", backwards[::-1]
    yield "every other element", tuple(2 * stride for stride in dense)
    for axis, size in enumerate(shape):
        if size > 1:
            once = (*shape[:axis], 1, *shape[axis + 1 :])
            strides = list(TensorPlan(once, torch.float32).dense_strides())
            strides[axis] = 0
            yield f"expanded along axis {axis}", tuple(strides)
            break


def label_of(path: Path) -> str:
    """A value as a caller writes it: `feats[1]`."""
    name, *keys = path
    return f"{name}{''.join(f'[{key!r}]' for key in keys)}"


def _brief(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)
