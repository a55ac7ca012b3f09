"""What a refused caller reads, word by word."""

from typing import Any

import pytest
import torch
from jaxtyping import BFloat16, Float32, Int32
from torch import Tensor

from contracts import (
    ContractError,
    contiguous,
    contract,
    no_overlap,
    requires,
    rule,
    same_device,
    unit_stride,
)

Image = BFloat16[Tensor, "batch img_len num_heads head_dim"]


@contract(
    rule("0 < head_dim <= 128", id="head_dim-range"),
    rule("head_dim % 2 == 0", id="head_dim-even", hint="elements rotate in pairs"),
    rule("table_len >= img_len", id="table-covers-image"),
    same_device(id="same-device"),
    unit_stride(id="last-axis"),
)
def rotate(img_q: Image, img_k: Image, cos: Float32[Tensor, "table_len head_dim/2"]) -> Image:
    return img_q


def arguments(**others: Any) -> dict[str, Any]:
    image = torch.zeros(2, 8, 4, 16, dtype=torch.bfloat16)
    return {"img_q": image, "img_k": image.clone(), "cos": torch.zeros(8, 8)} | others


def text(function: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ContractError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


COMMAND = "explain: python -m contracts explain tests.contracts.test_refusal_texts:rotate/"


def test_a_size_that_differs() -> None:
    image = torch.zeros(2, 8, 2, 16, dtype=torch.bfloat16)
    assert text(rotate, **arguments(img_k=image)) == (
        "rotate refused this call: 1 rule broken\n"
        "- [img_k-num_heads] img_k axis 2 (num_heads) is 2, expected 4: "
        "num_heads is 4, from img_q axis 2\n"
        "    fix: img_k = img_k.repeat_interleave(2, dim=2)\n"
        "got:\n"
        "  img_q  bfloat16[2, 8, 4, 16] cpu\n"
        "  img_k  bfloat16[2, 8, 2, 16] cpu\n"
        "  cos    float32[8, 8] cpu\n"
        f"{COMMAND}img_k-num_heads"
    )


def test_several_rules_at_once() -> None:
    image = torch.zeros(2, 8, 4, 32, dtype=torch.bfloat16)[..., ::2]
    assert text(rotate, **arguments(img_k=image.float(), img_q=image, cos=torch.zeros(7, 9))) == (
        "rotate refused this call: 4 rules broken\n"
        "- [img_k-dtype] img_k is torch.float32, expected torch.bfloat16\n"
        "    fix: img_k = img_k.to(torch.bfloat16)\n"
        "- [cos-axis1] cos axis 1 (head_dim/2) is 9, expected 8: "
        "head_dim is 16, from img_q axis 3\n"
        "- [table-covers-image] table_len >= img_len does not hold: "
        "table_len is 7, from cos axis 0; img_len is 8, from img_q axis 1\n"
        "- [last-axis] img_q has stride 2 along its last axis, expected 1 "
        "(strides (1024, 128, 32, 2))\n"
        "    fix: img_q = img_q.contiguous()\n"
        "got:\n"
        "  img_q  bfloat16[2, 8, 4, 16] cpu strides (1024, 128, 32, 2)\n"
        "  img_k  float32[2, 8, 4, 16] cpu\n"
        "  cos    float32[7, 9] cpu\n"
        f"{COMMAND}img_k-dtype"
    )


def test_what_follows_from_something_refused_is_not_reported() -> None:
    image = torch.zeros(2, 8, 4, 15, dtype=torch.bfloat16)
    assert text(rotate, **arguments(img_q=image, img_k=image)) == (
        "rotate refused this call: 1 rule broken\n"
        "- [head_dim-even] head_dim % 2 == 0 does not hold; nearest sizes: 14 or 16: "
        "head_dim is 15, from img_q axis 3\n"
        "    hint: elements rotate in pairs\n"
        "got:\n"
        "  img_q  bfloat16[2, 8, 4, 15] cpu\n"
        "  img_k  bfloat16[2, 8, 4, 15] cpu\n"
        "  cos    float32[8, 8] cpu\n"
        f"{COMMAND}head_dim-even"
    )


def test_what_cannot_be_computed_is_reported_where_no_rule_says_why() -> None:
    @contract
    def f(x: Float32[Tensor, "n/2"], y: Float32[Tensor, "n"]) -> None: ...

    assert text(f, torch.zeros(2), torch.zeros(5)).splitlines()[1] == (
        "- [x-axis0] x axis 0 should be n/2, but 5 is not divisible by 2: n is 5, from y axis 0"
    )


def test_no_rank_no_tensor_no_value() -> None:
    assert text(rotate, torch.zeros(3, dtype=torch.bfloat16), "x", None) == (
        "rotate refused this call: 3 rules broken\n"
        "- [img_q-rank] img_q has 1 axis, expected 4: [batch, img_len, num_heads, head_dim]\n"
        "- [img_k-type] img_k is 'x', expected "
        'BFloat16[Tensor, "batch img_len num_heads head_dim"]\n'
        '- [cos-type] cos is None, expected Float32[Tensor, "table_len head_dim/2"]\n'
        "got:\n"
        "  img_q  bfloat16[3] cpu\n"
        "  img_k  'x'\n"
        "  cos    None\n"
        f"{COMMAND}img_q-rank"
    )


def test_devices_and_optional_arguments() -> None:
    @contract(same_device(), requires("length", when="sink"), contiguous("out"), no_overlap("out"))
    def attend(
        q: Float32[Tensor, "s h"],
        sink: Float32[Tensor, "h"] | None = None,
        length: Int32[Tensor, "s"] | None = None,
        scale: float = 1.0,
        *,
        out: Float32[Tensor, "s h"] | None = None,
    ) -> None: ...

    q = torch.zeros(4, 4)
    assert text(attend, q, torch.zeros(4, device="meta"), scale=2, out=q.T).splitlines() == [
        "test_devices_and_optional_arguments.<locals>.attend refused this call: 5 rules broken",
        "- [scale-type] scale is 2, expected float",
        "- [same_device] sink is on meta, expected cpu: q is on cpu",
        '    fix: sink = sink.to("cpu")',
        "- [sink-requires-length] length is None, expected a value, because sink is given",
        "- [contiguous(out)] out is not contiguous: shape (4, 4) has strides (1, 4)",
        "- [no_overlap(out)] out and q overlap in memory",
        "    fix: q = q.clone()",
        "got:",
        "  q       float32[4, 4] cpu",
        "  sink    float32[4] meta",
        "  length  None",
        "  scale   2",
        "  out     float32[4, 4] cpu strides (1, 4)",
        "explain: print(attend.contract.describe())",
    ]


def test_containers() -> None:
    @contract
    def join(parts: dict[str, list[Float32[Tensor, "n d"]]], *more: Float32[Tensor, "n"]): ...

    parts = {"a": [torch.zeros(2, 3)], "b": [torch.zeros(2, 3), torch.zeros(2, 4)]}
    assert text(join, parts, torch.zeros(2), torch.zeros(5)).splitlines()[1:5] == [
        "- [parts[][]-d] parts['b'][1] axis 1 (d) is 4, expected 3: "
        "d is 3, from parts['a'][0] axis 1",
        "- [more[]-n] more[1] axis 0 (n) is 5, expected 2: n is 2, from parts['a'][0] axis 0",
        "got:",
        "  parts  dict with keys 'a', 'b'",
    ]


def test_the_text_of_ten_arguments_is_about_a_kilobyte() -> None:
    names = "abcdefghij"
    scope: dict[str, Any] = {"T": BFloat16[Tensor, "batch num_tokens num_heads head_dim"]}
    exec(f"def f({', '.join(f'{name}_arg: T' for name in names)}): ...", scope)
    f = contract(rule("head_dim % 8 == 0", hint="pad the head"), unit_stride())(scope["f"])
    x = torch.zeros(2, 8, 4, 12, dtype=torch.bfloat16)
    y = torch.zeros(2, 8, 2, 24, dtype=torch.bfloat16)[..., ::2]
    assert 700 < len(text(f, *[x] * 9, y)) < 1100


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20])
def test_at_most_eight_are_spelled_out(count: int) -> None:
    scope: dict[str, Any] = {"T": Float32[Tensor, "n"]}
    exec(f"def f({', '.join(f'x{i}: T' for i in range(count))}): ...", scope)
    f = contract(scope["f"])
    with pytest.raises(ContractError) as caught:
        f(*[torch.zeros(2).half()] * count)
    assert len(caught.value.violations) == count
    lines = str(caught.value).splitlines()
    assert sum(line.startswith("- [") for line in lines) == min(count, 8)
    assert (f"- and {count - 8} more" in lines) == (count > 8)


def test_long_values_are_cut() -> None:
    @contract
    def f(x: int) -> None: ...

    lines = text(f, "x" * 500).splitlines()
    assert max(map(len, lines)) < 120
