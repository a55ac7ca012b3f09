"""jaxtyping annotations judged by beartype: shapes and dtypes, nothing between the tensors' lines.

Devices, strides, bounds and divisibility have no place in the annotations. Of the two spellings
that jaxtyping offers, this one takes half the time of `@jaxtyped(typechecker=beartype)`.
"""

from beartype import beartype
from jaxtyping import BFloat16, Float8e4m3fn, Float32, Int32, jaxtyped
from torch import Tensor


@jaxtyped(typechecker=None)
@beartype
def hunyuan(
    img_q: BFloat16[Tensor, "batch img_len num_heads head_dim"],
    img_k: BFloat16[Tensor, "batch img_len num_heads head_dim"],
    img_v: BFloat16[Tensor, "batch img_len num_heads head_dim"],
    txt_q: BFloat16[Tensor, "batch txt_len num_heads head_dim"],
    txt_k: BFloat16[Tensor, "batch txt_len num_heads head_dim"],
    txt_v: BFloat16[Tensor, "batch txt_len num_heads head_dim"],
    cos: Float32[Tensor, "table_len head_dim//2"],
    sin: Float32[Tensor, "table_len head_dim//2"],
) -> None:
    pass


@jaxtyped(typechecker=None)
@beartype
def sparse_mla(
    q: Float8e4m3fn[Tensor, "s_q h_q d_qk"],
    kv: Float8e4m3fn[Tensor, "s_kv 1 d_qk"],
    indices: Int32[Tensor, "s_q 1 topk"],
    sm_scale: float,
    q_scale: Float32[Tensor, "1"] | Float32[Tensor, ""],
    kv_scale: Float32[Tensor, "1"] | Float32[Tensor, ""],
    d_v: int = 512,
    attn_sink: Float32[Tensor, "h_q"] | None = None,
    topk_length: Int32[Tensor, "s_q"] | None = None,
    *,
    out: BFloat16[Tensor, "s_q h_q 512"] | None = None,
    max_logits: Float32[Tensor, "s_q h_q"] | None = None,
    lse: Float32[Tensor, "s_q h_q"] | None = None,
) -> None:
    pass
