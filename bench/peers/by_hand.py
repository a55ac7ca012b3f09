"""The hand-written validators, each called from the body of the function that it protects."""

from bench.peers import handwritten


def hunyuan(img_q, img_k, img_v, txt_q, txt_k, txt_v, cos, sin):
    handwritten.hunyuan(img_q, img_k, img_v, txt_q, txt_k, txt_v, cos, sin)


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
    handwritten.sparse_mla(
        q,
        kv,
        indices,
        sm_scale,
        q_scale,
        kv_scale,
        d_v,
        attn_sink,
        topk_length,
        out=out,
        max_logits=max_logits,
        lse=lse,
    )
