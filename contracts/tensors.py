"""What a rule may ask of one tensor: metadata only, never contents, never a synchronisation."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.parameter import is_lazy

from .traceable import constant_of_trace
from .transforms import beneath

IMAGINED = (FakeTensor, FunctionalTensor)
"""Types of tensors that a trace works with: rules on memory excuse what they cannot know of them,
as of meta tensors."""

PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
"""Types that no jagged tensor has; a strided nested tensor fails at `.shape` by itself."""

COMPLEX = (torch.complex32, torch.complex64, torch.complex128)

_SPARSE = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """`float8_e4m3fn` for `torch.float8_e4m3fn`."""
    return str(dtype).rpartition(".")[2]


@constant_of_trace
def is_distributed(kind: type) -> bool:
    """Whether tensors of this type are wholes of which a process has a part, as DTensors are."""
    return hasattr(kind, "to_local")


_APART = "whose elements lie in other tensors"


def misread(x: torch.Tensor) -> str | None:
    """Why a kernel that follows this tensor's pointer and strides would misread it, if it would."""
    if x.is_nested:
        return "nested"
    if x.layout is not torch.strided:
        layout = str(x.layout).rpartition(".")[2]
        return f"sparse ({layout})" if x.layout in _SPARSE else f"laid out as {layout.lstrip('_')}"
    if x.is_quantized:
        return f"quantised ({dtype_name(x.dtype)})"
    kind = type(x)
    if torch.compiler.is_dynamo_compiling():  # a graph takes other wrappers apart and resolves
        return _APART if is_distributed(kind) else None  # lazy views before memory is read
    if kind not in PLAIN_TYPES:
        if is_lazy(x):
            return "uninitialised"
        if hasattr(kind, "__tensor_flatten__"):  # it wraps tensors
            return f"a {kind.__name__}, {_APART}"
        if not has_memory(x):
            return f"a {kind.__name__} without memory of its own"
    if x.dtype in COMPLEX and x.is_conj():
        return "a lazy conjugate view"
    if x.is_neg():
        return "a lazy negative view"
    return None


def is_strided(x: torch.Tensor) -> bool:
    """Whether pointer and strides tell the whole truth about this tensor."""
    return misread(x) is None


def has_unit_stride(x: torch.Tensor, dim: int) -> bool:
    """Whether neighbours along `dim` are neighbours in plain memory."""
    return is_strided(x) and steps_by_one(x, dim)


def steps_by_one(x: torch.Tensor, dim: int) -> bool:
    """The same of a tensor that is known to be strided; one element has no neighbours."""
    if x.numel() <= 1:
        return True
    return -x.ndim <= dim < x.ndim and (x.shape[dim] == 1 or x.stride()[dim] == 1)


HIGH = 40
"""An address with a bit from here up is one: below it lie 1 TiB, more than an offset reaches."""


def has_memory(x: torch.Tensor) -> bool:
    """Whether the tensor's address leads to its elements, where it has any and an address: not if
    its storage was freed, if it is a zero tensor of autograd, or a wrapper."""
    if isinstance(x, IMAGINED) or x.is_meta or not x.numel():
        return True
    with torch._C.DisableTorchFunctionSubclass():
        try:  # a view of nothing has an address all the same: its offset, counted from zero
            return x.data_ptr() != x.storage_offset() * x.itemsize
        except RuntimeError:
            return True


def without_memory(x: torch.Tensor) -> str | None:
    """Why there is nothing behind a tensor's address, if there is nothing."""
    memory = beneath(x)
    if memory is None or has_memory(memory):
        return None
    return "a zero tensor without memory" if memory._is_zerotensor() else "freed memory"


def address(x: torch.Tensor) -> int | None:
    """The address of a tensor's first element; None where none can be known or it has none: of
    fake, meta and empty tensors, and inside vmap."""
    if type(x) in PLAIN_TYPES and (begin := _address(x)) >> HIGH:
        return begin
    memory = beneath(x)
    if memory is None or isinstance(memory, IMAGINED) or memory.is_meta or not memory.numel():
        return None
    return _address(memory) or None if has_memory(memory) else None


def _address(x: torch.Tensor) -> int:
    """What a tensor says of its address; 0 where it has none to tell."""
    try:
        return x.data_ptr()
    except RuntimeError:
        return 0


def span(x: torch.Tensor) -> int:
    """Bytes from the first to past the last element that the tensor can touch.

    The conservative extent that overlap is judged by: gaps between rows count as touched.
    """
    if x.numel() == 0:
        return 0
    if x.is_contiguous():
        return x.nbytes
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (reach + 1) * x.itemsize


def extent(x: torch.Tensor) -> tuple[int, int] | None:
    """The addresses from the tensor's first byte to past its last; None where it has none."""
    begin = address(x)
    return None if begin is None else (begin, begin + span(x))


def overlap(x: tuple[int, int] | None, y: tuple[int, int] | None) -> bool:
    """Whether two extents share a byte."""
    return x is not None and y is not None and x[0] < y[1] and y[0] < x[1]


def overlaps_itself(x: torch.Tensor) -> bool:
    """Whether two indices may address one element: `expand`, or strides smaller than the extent
    of the axes within them."""
    if x.numel() < 2 or x.is_contiguous():
        return False
    extent = 1
    axes = sorted(
        (stride, size) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1
    )
    for stride, size in axes:
        if stride < extent:
            return True
        extent = stride * (size - 1) + extent
    return False


def tensors_in(value: Any, label: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor within an argument, with the label that a caller would write."""
    if isinstance(value, torch.Tensor):
        yield label, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, f"{label}[{key!r}]")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{label}[{index}]")


def each_tensor(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor within an argument."""
    for _, tensor in tensors_in(value):
        yield tensor


def describe(value: Any) -> str:
    """One line of metadata: `bfloat16[2, 8, 24, 128] cuda:0`, strides where they say something."""
    if not isinstance(value, torch.Tensor):
        return _describe_value(value)
    kind = type(value).__name__
    prefix = "" if kind in ("Tensor", "Parameter", "FakeTensor") else f"{kind} "
    if value.is_nested:
        return f"{prefix}{dtype_name(value.dtype)} nested {value.device}"
    if is_lazy(value):
        return f"{prefix}{dtype_name(value.dtype)} uninitialised {value.device}"
    text = f"{prefix}{dtype_name(value.dtype)}[{', '.join(map(str, value.shape))}] {value.device}"
    if reason := misread(value):
        return f"{text} {reason}"
    if not value.is_contiguous():
        text += f" strides ({', '.join(map(str, value.stride()))})"
    return text


def _describe_value(value: Any) -> str:
    if isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value):
        inside = ", ".join(describe(item) for item in value[:3])
        more = f", ... {len(value)} in all" if len(value) > 3 else ""
        return f"{type(value).__name__} of {inside}{more}"
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with keys {', '.join(map(repr, list(value)[:8]))}"
    text = repr(value) if isinstance(value, int | float | str | bool | None) else ""
    if not text:
        kind = value.__class__  # which a stand-in in a traced graph has of what it stands for
        return f"a {kind.__module__}.{kind.__qualname__}"
    return text if len(text) <= 60 else text[:57] + "..."
