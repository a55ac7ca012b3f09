"""A call written as text: `q=f8e4m3[4096,16,576]@cuda:0 d_v=512 topk_length=none`.

Tensors are made without memory, on any device, whether or not this machine has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .tensors import dtype_name

SYNTAX = """\
NAME=VALUE, where VALUE is
  a tensor     dtype[sizes], then any of: strides[...], @device, +grad
               f32[4,8]   bf16[2,64,24,128]@cuda:0   f8e4m3[32,1,576]strides[656,656,1]
               as an error prints it, too: 'bfloat16[2, 8] cuda:0 strides (1, 2)'
  a scalar     none  true  false  512  0.5  text
  a container  [VALUE,VALUE]  (VALUE,VALUE)"""

_SHORT = {
    "bf16": "bfloat16",
    "half": "float16",
    "f8e4m3": "float8_e4m3fn",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "b8": "bool",
}
_FAMILIES = {"f": "float", "i": "int", "u": "uint", "c": "complex"}

_NUMBERS = r"\s*(-?\d+(?:\s*,\s*-?\d+)*)?\s*,?\s*"
_TENSOR = re.compile(
    rf"(?P<dtype>(?:torch\.)?[a-z]\w*)\s*\[(?P<shape>{_NUMBERS})\]"
    rf"(?P<rest>(?:\s*(?:strides?\s*[\[(]{_NUMBERS}[\])]|@?\s*[a-z]+(?::\d+)?|\+grad))*)\s*"
)
_STRIDES = re.compile(rf"strides?\s*[\[(](?P<numbers>{_NUMBERS})[\])]")
_SCALARS = {"none": None, "true": True, "false": False}


class CallSyntaxError(ValueError):
    """A call that cannot be read."""


def read_call(texts: Iterable[str]) -> dict[str, Any]:
    """The arguments of a call from `NAME=VALUE` texts; tensors are fake. CallSyntaxError."""
    arguments: dict[str, Any] = {}
    with FakeTensorMode(), torch.enable_grad():
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or not name.strip().isidentifier():
                raise CallSyntaxError(f"{text!r} is not NAME=VALUE\n\n{SYNTAX}")
            if name.strip() in arguments:
                raise CallSyntaxError(f"{name.strip()} is given twice")
            arguments[name.strip()] = _read(value.strip())
    return arguments


def _read(text: str) -> Any:
    if found := _TENSOR.fullmatch(text):
        return _tensor(found)
    if text[:1] + text[-1:] in ("[]", "()"):
        items = [_read(item) for item in _split(text[1:-1])]
        return items if text[0] == "[" else tuple(items)
    if text.lower() in _SCALARS:
        return _SCALARS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if "[" in text or not text:
        raise CallSyntaxError(f"{text!r} is not a value\n\n{SYNTAX}")
    return text.strip("'\"")


def _split(text: str) -> Iterator[str]:
    """At the commas that stand in no bracket."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            yield text[begin:place].strip()
            begin = place + 1
    if text[begin:].strip():
        yield text[begin:].strip()


def _tensor(found: re.Match[str]) -> torch.Tensor:
    shape, rest = _numbers(found["shape"]), found["rest"]
    dtype = _dtype(found["dtype"])
    strides = None
    if stated := _STRIDES.search(rest):
        strides = _numbers(stated["numbers"])
        if len(strides) != len(shape):
            raise CallSyntaxError(f"{found[0]!r} has {len(shape)} sizes and {len(strides)} strides")
        rest = _STRIDES.sub("", rest)
    device = re.sub(r"[@\s]|\+grad", "", rest) or "cpu"
    try:
        if strides is None:
            x = torch.empty(shape, dtype=dtype, device=device)
        else:
            x = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        return x.requires_grad_() if "+grad" in rest else x
    except RuntimeError as error:
        raise CallSyntaxError(f"{found[0]!r}: {str(error).splitlines()[0]}") from None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"-?\d+", text))


def _dtype(text: str) -> torch.dtype:
    name = text.removeprefix("torch.")
    name = _SHORT.get(name, name)
    if short := re.fullmatch(r"([fiuc])(\d+)", name):
        name = f"{_FAMILIES[short[1]]}{short[2]}"
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        known = ", ".join(sorted({*_SHORT, "f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8"}))
        raise CallSyntaxError(f"there is no dtype {text!r}; torch's names, and: {known}")
    return found


def write_tensor(x: torch.Tensor) -> str:
    """A tensor as `read_call` reads it."""
    text = f"{dtype_name(x.dtype)}[{','.join(map(str, x.shape))}]"
    if not x.is_contiguous():
        text += f"strides[{','.join(map(str, x.stride()))}]"
    if x.device.type != "cpu":
        text += f"@{x.device}"
    return f"{text}+grad" if x.requires_grad else text
