"""A contract on your own function, then an operation that comes with one.

    python examples/quickstart.py

Runs anywhere; with a CUDA device the operation's tensors are put there.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

import backends
from contracts import ContractError, contract, same_device

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@contract(
    "num_heads % num_kv_heads == 0",
    "kv_len >= q_len",
    same_device(),
)
def attend(
    q: Float32[Tensor, "batch q_len num_heads head_dim"],
    k: Float32[Tensor, "batch kv_len num_kv_heads head_dim"],
    v: Float32[Tensor, "batch kv_len num_kv_heads head_dim"],
) -> Float32[Tensor, "batch q_len num_heads head_dim"]:
    """Grouped-query attention: each key head serves num_heads / num_kv_heads query heads."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return out.transpose(1, 2)


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def own_function() -> None:
    heading("A call that keeps its contract")
    q = torch.randn(2, 16, 8, 64)
    k, v = torch.randn(2, 2, 24, 2, 64).unbind(0)
    print("result:", tuple(attend(q, k, v).shape))
    print("axes:  ", attend.contract.check(q, k, v))

    heading("A call that breaks it in three places")
    try:
        attend(q, k[:, :, :, :48], v[:, :12].double())
    except ContractError as error:
        print(error)

    heading("The same judgement for sizes alone, before there are tensors")
    for num_kv_heads in (4, 3):
        try:
            attend.contract.check_axes(num_heads=8, num_kv_heads=num_kv_heads)
            print(f"{num_kv_heads} kv heads: fine")
        except ContractError as error:
            print(f"{num_kv_heads} kv heads: {error.violations[0]}")


def operation() -> None:
    heading(f"An operation: hunyuan_qkv_rope_pack on {DEVICE}")
    batch, img_len, txt_len, num_heads, head_dim = 1, 64, 16, 4, 32
    heads = (num_heads, head_dim)
    options = {"dtype": torch.bfloat16, "device": DEVICE}
    img = torch.randn(batch, img_len, 3, *heads, **options).unbind(2)
    txt = torch.randn(batch, txt_len, 3, *heads, **options).unbind(2)
    angles = torch.outer(torch.arange(img_len), 1e4 ** -torch.linspace(0, 1, head_dim // 2))
    tables = angles.cos().to(DEVICE), angles.sin().to(DEVICE)

    packed = backends.hunyuan_qkv_rope_pack(*img, *txt, *tables)
    for name, x in zip(("q", "k", "v"), packed, strict=True):
        print(f"{name}: {tuple(x.shape)} {x.dtype}")

    heading("Which backend serves that call, and why not the others")
    print(backends.hunyuan_qkv_rope_pack.explain(*img, *txt, *tables))


if __name__ == "__main__":
    torch.manual_seed(0)
    own_function()
    operation()
