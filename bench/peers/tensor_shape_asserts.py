"""tensor-shape-assert: shapes and dtypes in one string, constraints between sizes beside them.

Devices and strides have no place in it.
"""

import torch
from tensor_shape_assert import ShapedTensor, check_tensor_shapes, register_label

register_label("bf16", lambda tensor: tensor.dtype is torch.bfloat16)
register_label("e4m3", lambda tensor: tensor.dtype is torch.float8_e4m3fn)

ImageHeads = ShapedTensor["bf16 batch img_len num_heads head_dim"]
TextHeads = ShapedTensor["bf16 batch txt_len num_heads head_dim"]
Table = ShapedTensor["float32 table_len rotary_dim"]


# A constraint in text needs an == of its own, or each = in it is doubled: hence the long ones.
@check_tensor_shapes(
    constraints=["head_dim == 2 * rotary_dim and 0 < head_dim <= 128 and table_len >= img_len"]
)
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


@check_tensor_shapes(
    constraints=[
        "h_q > 0 and h_q % 64 == 0",
        "topk > 0 and topk % 128 == 0",
        "d_qk == 512 or d_qk == 576",
    ]
)
def sparse_mla(
    q: ShapedTensor["e4m3 s_q h_q d_qk"],
    kv: ShapedTensor["e4m3 s_kv 1 d_qk"],
    indices: ShapedTensor["int32 s_q 1 topk"],
    sm_scale: float,
    q_scale: ShapedTensor["float32 1"],
    kv_scale: ShapedTensor["float32 1"],
    d_v: int = 512,
    attn_sink: ShapedTensor["float32 h_q"] | None = None,
    topk_length: ShapedTensor["int32 s_q"] | None = None,
    *,
    out: ShapedTensor["bf16 s_q h_q 512"] | None = None,
    max_logits: ShapedTensor["float32 s_q h_q"] | None = None,
    lse: ShapedTensor["float32 s_q h_q"] | None = None,
) -> None:
    pass
