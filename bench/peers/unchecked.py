"""No check at all: what calling an empty function costs, and the bodies that others guard."""


def hunyuan(img_q, img_k, img_v, txt_q, txt_k, txt_v, cos, sin):
    pass


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
    pass
