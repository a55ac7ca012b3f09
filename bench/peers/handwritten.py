"""Validators as kernels write them by hand today: the yardstick for generated checks.

They catch every single fault but overlapping buffers.
"""

import torch


def hunyuan(img_q, img_k, img_v, txt_q, txt_k, txt_v, cos, sin):
    xs = (img_q, img_k, img_v, txt_q, txt_k, txt_v)
    if any(x.ndim != 4 for x in xs):
        raise ValueError("rank")
    if any(x.dtype != torch.bfloat16 for x in xs):
        raise ValueError("dtype")
    if any(x.device != img_q.device for x in xs):
        raise ValueError("device")
    b, s, h, d = img_q.shape
    t = txt_q.shape[1]
    if any(tuple(x.shape) != (b, s, h, d) for x in xs[:3]):
        raise ValueError("img")
    if any(tuple(x.shape) != (b, t, h, d) for x in xs[3:]):
        raise ValueError("txt")
    if any(x.stride(-1) != 1 for x in xs):
        raise ValueError("stride")
    if d <= 0 or d > 128 or d % 2:
        raise ValueError("head_dim")
    if cos.ndim != 2 or sin.ndim != 2 or cos.shape != sin.shape:
        raise ValueError("table")
    if cos.shape[0] < s or cos.shape[1] != d // 2:
        raise ValueError("table size")
    if cos.stride(-1) != 1 or sin.stride(-1) != 1:
        raise ValueError("table stride")
    if cos.device != img_q.device or sin.device != img_q.device:
        raise ValueError("table device")
    if cos.dtype != torch.float32 or sin.dtype != torch.float32:
        raise ValueError("table dtype")


def _buffer(t, name, shape, dtype, device):
    if tuple(t.shape) != tuple(shape):
        raise ValueError(name)
    if t.dtype != dtype:
        raise ValueError(name)
    if t.device != device:
        raise ValueError(name)
    if not t.is_contiguous():
        raise ValueError(name)


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
    if q.ndim != 3 or kv.ndim != 3 or indices.ndim != 3:
        raise ValueError("rank")
    s_q, h_q, d_qk = q.shape
    _, h_kv, kv_d = kv.shape
    topk = indices.shape[2]
    dev = q.device
    for n, x in (("kv", kv), ("indices", indices)):
        if x.device != dev:
            raise ValueError(n)
    for n, x in (("q", q), ("kv", kv)):
        if x.dtype != torch.float8_e4m3fn:
            raise ValueError(n)
    for n, x in (("q", q), ("kv", kv), ("indices", indices)):
        if not x.is_contiguous():
            raise ValueError(n)
    if kv_d != d_qk:
        raise ValueError("d")
    if h_q == 0 or h_q % 64 != 0:
        raise ValueError("h_q")
    if h_kv != 1:
        raise ValueError("h_kv")
    if d_qk not in (512, 576):
        raise ValueError("d_qk")
    if indices.shape[:2] != (s_q, h_kv):
        raise ValueError("indices")
    if indices.dtype != torch.int32:
        raise ValueError("indices dtype")
    if topk == 0 or topk % 128 != 0:
        raise ValueError("topk")
    if topk_length is not None:
        if topk_length.shape != (s_q,) or topk_length.dtype != torch.int32:
            raise ValueError("topk_length")
        if topk_length.device != dev or not topk_length.is_contiguous():
            raise ValueError("topk_length")
    if d_v != 512:
        raise ValueError("d_v")
    if attn_sink is not None and topk_length is None:
        raise ValueError("sink")
    if attn_sink is not None:
        if attn_sink.shape != (h_q,) or attn_sink.dtype != torch.float32:
            raise ValueError("sink")
        if attn_sink.device != dev or not attn_sink.is_contiguous():
            raise ValueError("sink")
    for n, s in (("q_scale", q_scale), ("kv_scale", kv_scale)):
        if (
            not isinstance(s, torch.Tensor)
            or s.device != dev
            or s.dtype != torch.float32
            or s.numel() != 1
            or not s.is_contiguous()
        ):
            raise ValueError(n)
    if out is not None:
        _buffer(out, "out", (s_q, h_q, d_v), torch.bfloat16, dev)
    if max_logits is not None:
        _buffer(max_logits, "max_logits", (s_q, h_q), torch.float32, dev)
    if lse is not None:
        _buffer(lse, "lse", (s_q, h_q), torch.float32, dev)
    if out is not None and max_logits is not None and lse is not None:
        a, b, c = out.data_ptr(), max_logits.data_ptr(), lse.data_ptr()
        if a == b or a == c or b == c:
            raise ValueError("alias")
