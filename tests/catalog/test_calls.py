"""Calls written as text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contracts.calls import CallSyntaxError, read_call, write_tensor


def read(text: str) -> Any:
    return read_call([f"x={text}"])["x"]


@pytest.mark.parametrize(
    ("text", "dtype", "shape", "device"),
    [
        ("f8e4m3[4096,16,576]@cuda:0", torch.float8_e4m3fn, (4096, 16, 576), "cuda:0"),
        ("bf16[2, 8]", torch.bfloat16, (2, 8), "cpu"),
        ("f32[]", torch.float32, (), "cpu"),
        ("i64[0,3]@meta", torch.int64, (0, 3), "meta"),
        ("torch.float8_e5m2[4]", torch.float8_e5m2, (4,), "cpu"),
        ("float8_e4m3fnuz[4]", torch.float8_e4m3fnuz, (4,), "cpu"),
        ("u8[3]@cuda:1", torch.uint8, (3,), "cuda:1"),
        ("bool[3]", torch.bool, (3,), "cpu"),
    ],
)
def test_a_tensor(text: str, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    x = read(text)
    assert (x.dtype, tuple(x.shape), str(x.device)) == (dtype, shape, device)


@pytest.mark.parametrize(
    "text",
    [
        "f32[32,4]strides[1,32]@cuda:0",
        "f32[32,4]@cuda:0strides[1,32]",
        "float32[32, 4] cuda:0 strides (1, 32)",
    ],
)
def test_strides_in_every_place_and_as_an_error_prints_them(text: str) -> None:
    x = read(text)
    assert (x.stride(), str(x.device)) == ((1, 32), "cuda:0")


def test_a_tensor_that_requires_grad() -> None:
    assert read("f32[3]+grad").requires_grad
    assert not read("f32[3]").requires_grad


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("none", None),
        ("None", None),
        ("true", True),
        ("512", 512),
        ("-1", -1),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("'causal'", "causal"),
        ("causal", "causal"),
        ("[]", []),
        ("(1,2)", (1, 2)),
        ("[1,[2,none]]", [1, [2, None]]),
    ],
)
def test_other_values(text: str, value: Any) -> None:
    assert read(text) == value
    assert type(read(text)) is type(value)


def test_a_container_of_tensors() -> None:
    first, second = read("[f32[2,3],bf16[4]strides[2]]")
    assert (tuple(first.shape), second.stride()) == ((2, 3), (2,))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "not NAME=VALUE"),
        ("2=f32[1]", "not NAME=VALUE"),
        ("x=", "not a value"),
        ("x=f33[2]", "no dtype 'f33'"),
        ("x=f32[2,a]", "not a value"),
        ("x=f32[2,3]strides[1]", "2 sizes and 1 strides"),
        ("x=f32[-1]", "negative"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(CallSyntaxError, match=said):
        read_call([text])


def test_no_argument_is_given_twice() -> None:
    with pytest.raises(CallSyntaxError, match="twice"):
        read_call(["x=1", "x=2"])


@pytest.mark.parametrize(
    "text", ["float32[2,3]", "bfloat16[4,2]strides[1,4]@cuda:0", "int32[]", "float16[2]+grad"]
)
def test_a_tensor_is_written_as_it_is_read(text: str) -> None:
    assert write_tensor(read(text)) == text
