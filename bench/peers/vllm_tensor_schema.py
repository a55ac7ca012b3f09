"""vLLM's TensorSchema: one object is made, and validated, per call; shapes alone.

An expression such as head_dim/2 has no place in it: the tables' width is a name of its own.
"""

from typing import Annotated, Optional

from torch import Tensor
from vllm.utils.tensor_schema import TensorSchema, TensorShape

ImageHeads = Annotated[Tensor, TensorShape("batch", "img_len", "num_heads", "head_dim")]
TextHeads = Annotated[Tensor, TensorShape("batch", "txt_len", "num_heads", "head_dim")]
Table = Annotated[Tensor, TensorShape("table_len", "rotary_dim")]
# TensorSchema knows an optional field by typing.Union, which `Tensor | None` is not.
MaybePerHead = Annotated[Optional[Tensor], TensorShape("s_q", "h_q")]  # noqa: UP045


class Hunyuan(TensorSchema):
    img_q: ImageHeads
    img_k: ImageHeads
    img_v: ImageHeads
    txt_q: TextHeads
    txt_k: TextHeads
    txt_v: TextHeads
    cos: Table
    sin: Table


class SparseMLA(TensorSchema):
    q: Annotated[Tensor, TensorShape("s_q", "h_q", "d_qk")]
    kv: Annotated[Tensor, TensorShape("s_kv", 1, "d_qk")]
    indices: Annotated[Tensor, TensorShape("s_q", 1, "topk")]
    q_scale: Annotated[Tensor, TensorShape(1)]
    kv_scale: Annotated[Tensor, TensorShape(1)]
    attn_sink: Annotated[Optional[Tensor], TensorShape("h_q")]  # noqa: UP045
    topk_length: Annotated[Optional[Tensor], TensorShape("s_q")]  # noqa: UP045
    out: Annotated[Optional[Tensor], TensorShape("s_q", "h_q", 512)]  # noqa: UP045
    max_logits: MaybePerHead
    lse: MaybePerHead


def hunyuan(img_q, img_k, img_v, txt_q, txt_k, txt_v, cos, sin):
    Hunyuan(
        img_q=img_q,
        img_k=img_k,
        img_v=img_v,
        txt_q=txt_q,
        txt_k=txt_k,
        txt_v=txt_v,
        cos=cos,
        sin=sin,
    )


def sparse_mla(
    q,
    kv,
    indices,
    sm_scale,
    q_scale,
    kv_scale,
    d_v=512,
    attn_sink=None,
    topk_length=None,
    *,
    out=None,
    max_logits=None,
    lse=None,
):
    SparseMLA(
        q=q,
        kv=kv,
        indices=indices,
        q_scale=q_scale,
        kv_scale=kv_scale,
        attn_sink=attn_sink,
        topk_length=topk_length,
        out=out,
        max_logits=max_logits,
        lse=lse,
    )
