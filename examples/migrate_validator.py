"""From hand-written checks to a contract: what thirty careful lines had missed.

    python examples/migrate_validator.py

`check_attention` is a validator of the usual kind. The contract below it was written from the same
intentions. `compare` runs every call that the contract generates through both, and says where they
part: first what the validator let through, then what it refused without a reason.
"""

from __future__ import annotations

import torch
from jaxtyping import BFloat16, Float16, Int32
from torch import Tensor

from contracts import contract, same_device, same_dtype, unit_stride
from contracts.testing import compare


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Tensor | None,
    window: int,
) -> None:
    """Thirty lines of care."""
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ValueError(f"expected 4-D tensors, got {q.dim()}, {k.dim()}, {v.dim()}")
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(f"unsupported dtype {q.dtype}")
    if k.dtype != q.dtype:
        raise TypeError("k must have the dtype of q")
    if not (q.device == k.device == v.device):
        raise ValueError("q, k and v must be on one device")
    batch, q_len, num_heads, head_dim = q.shape
    _, kv_len, num_kv_heads, _ = k.shape
    if k.shape[0] != batch:
        raise ValueError("batch sizes differ")
    if v.shape != k.shape:
        raise ValueError("k and v must have one shape")
    if num_heads % num_kv_heads:
        raise ValueError("num_heads must be a multiple of num_kv_heads")
    if head_dim % 8 or head_dim > 256:
        raise ValueError(f"unsupported head_dim {head_dim}")
    if not q.is_contiguous():
        raise ValueError("q must be contiguous")
    if k.stride(-1) != 1:
        raise ValueError("k must be contiguous in its last axis")
    if block_table is not None:
        if block_table.dtype != torch.int32:
            raise TypeError("block_table must be int32")
        if block_table.dim() != 2:
            raise ValueError("block_table must be 2-D")
    if window == 0:
        raise ValueError("window must not be 0")
    if q_len > kv_len:
        raise ValueError("more queries than keys")


Queries = (
    Float16[Tensor, "batch q_len num_heads head_dim"]
    | (BFloat16[Tensor, "batch q_len num_heads head_dim"])
)
Keys = (
    Float16[Tensor, "batch kv_len num_kv_heads head_dim"]
    | (BFloat16[Tensor, "batch kv_len num_kv_heads head_dim"])
)


@contract(
    "num_kv_heads > 0 and num_heads % num_kv_heads == 0",
    "0 < head_dim <= 256 and head_dim % 8 == 0",
    "q_len <= kv_len",
    "window > 0 or window == -1",
    same_dtype("q", "k", "v"),
    same_device(),
    unit_stride("q", "k", "v"),
)
def attention(
    q: Queries,
    k: Keys,
    v: Keys,
    block_table: Int32[Tensor, "batch num_blocks"] | None = None,
    window: int = -1,
) -> Queries:
    """The same demands, in the order of the arguments they are about."""


if __name__ == "__main__":
    print(compare(check_attention, attention))
