"""dltype: shapes and dtypes in `Annotated`, FP8 through a tensor type of one's own.

Devices, strides, bounds and divisibility have no place in the annotations.
"""

from typing import Annotated, Any

import torch
from dltype import BFloat16Tensor, Float32Tensor, Int32Tensor, TensorTypeBase, dltyped
from torch import Tensor


class Float8E4M3Tensor(TensorTypeBase):
    DTYPES = (torch.float8_e4m3fn,)


ImageHeads = Annotated[Tensor, BFloat16Tensor["batch img_len num_heads head_dim"]]
TextHeads = Annotated[Tensor, BFloat16Tensor["batch txt_len num_heads head_dim"]]
Table = Annotated[Tensor, Float32Tensor["table_len head_dim/2"]]
Scale = Annotated[Tensor, Float32Tensor["1"]]
PerHead = Annotated[Tensor, Float32Tensor["s_q h_q"]]


@dltyped()
def hunyuan(
    img_q: ImageHeads,
    img_k: ImageHeads,
    img_v: ImageHeads,
    txt_q: TextHeads,
    txt_k: TextHeads,
    txt_v: TextHeads,
    cos: Table,
    sin: Table,
) -> None:
    pass


@dltyped()
def sparse_mla(
    q: Annotated[Tensor, Float8E4M3Tensor["s_q h_q d_qk"]],
    kv: Annotated[Tensor, Float8E4M3Tensor["s_kv 1 d_qk"]],
    indices: Annotated[Tensor, Int32Tensor["s_q 1 topk"]],
    sm_scale: Any,
    q_scale: Scale,
    kv_scale: Scale,
    d_v: Any = 512,
    attn_sink: Annotated[Tensor, Float32Tensor["h_q"]] | None = None,
    topk_length: Annotated[Tensor, Int32Tensor["s_q"]] | None = None,
    *,
    out: Annotated[Tensor, BFloat16Tensor["s_q h_q 512"]] | None = None,
    max_logits: PerHead | None = None,
    lse: PerHead | None = None,
) -> None:
    pass
