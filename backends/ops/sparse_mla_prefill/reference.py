"""Sparse MLA prefill in plain torch: the meaning of the operation, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK_BYTES = 256 << 20
"""Bound on the temporaries of one chunk of queries."""


def sparse_mla_reference(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    sm_scale: float,
    q_scale: Tensor,
    kv_scale: Tensor,
    attn_sink: Tensor | None,
    topk_length: Tensor | None,
    out: Tensor,
    max_logits: Tensor,
    lse: Tensor,
) -> None:
    """Attend from every query to the kv rows that its lanes name, and write the three results.

    For query i and head h, over the lanes j with ``j < topk_length[i]`` and
    ``0 <= indices[i, 0, j] < s_kv``, with t the index of lane j::

        logit[j]         = (q[i, h] · kv[t, 0]) * q_scale * kv_scale * sm_scale
        max_logits[i, h] = max_j logit[j]
        lse[i, h]        = log sum_j exp(logit[j])
        out[i, h]        = sum_j exp(logit[j]) * kv[t, 0, :512] * kv_scale
                           / (sum_j exp(logit[j]) + exp(attn_sink[h]))

    A row without such a lane gets out 0, max_logits -inf and lse +inf. The rows of all other lanes
    are not read. Computed in float64, in chunks of queries, without synchronising with the host,
    and rounded once, to the buffers' dtypes: into float64 buffers it writes unrounded results.

    Shapes: q ``[s_q, h_q, d_qk]`` and kv ``[s_kv, 1, d_qk]`` float8_e4m3fn, indices
    ``[s_q, 1, topk]`` int32, q_scale and kv_scale one float32 element, attn_sink ``[h_q]`` float32,
    topk_length ``[s_q]`` int32; out ``[s_q, h_q, 512]`` bfloat16, max_logits and lse ``[s_q, h_q]``
    float32. The arguments are trusted: the operation's contract has judged them.
    """
    s_q, h_q, d_qk = q.shape
    s_kv, topk = kv.shape[0], indices.shape[-1]
    d_v = out.shape[-1]
    if s_kv == 0:  # one row to gather from; no lane is valid, so what it holds does not count
        kv = kv.new_empty((1, 1, d_qk))
    kv_bytes = kv[:, 0].view(torch.uint8)  # indexing has no FP8 kernels
    value_scale = kv_scale.double().reshape(())
    logit_scale = q_scale.double().reshape(()) * value_scale * sm_scale
    lane = torch.arange(topk, device=q.device)

    # Per query: bytes and float64 of the gathered rows, and about four float64 a logit.
    chunk = max(1, CHUNK_BYTES // (topk * (9 * d_qk + 32 * h_q)))
    for first in range(0, s_q, chunk):
        rows = slice(first, first + chunk)
        index = indices[rows, 0]
        valid = (index >= 0) & (index < s_kv)
        if topk_length is not None:
            valid &= lane < topk_length[rows, None]
        gathered = kv_bytes[index.where(valid, 0).long()].view(kv.dtype).double()
        gathered.masked_fill_(~valid[..., None], 0.0)

        logits = q[rows].double() @ gathered.mT * logit_scale
        logits.masked_fill_(~valid[:, None], -torch.inf)
        log_total = logits.logsumexp(-1)
        empty = ~valid.any(-1, keepdim=True)
        log_denominator = log_total
        if attn_sink is not None:
            log_denominator = log_total.logaddexp(attn_sink.double())
        weights = (logits - log_denominator.masked_fill(empty, 0.0)[..., None]).exp_()

        out[rows] = weights @ gathered[..., :d_v] * value_scale
        max_logits[rows] = logits.amax(-1)
        lse[rows] = log_total.masked_fill(empty, torch.inf)
