# SPDX-License-Identifier: Apache-2.0
"""The INT2 kernels in plain torch: slow, short, and what every kernel is tested against.

Nothing here imports triton. Attention is computed in float64; quantisation in float32, operation for operation as the
kernels do it, so that codes can be compared bit for bit.
"""

from __future__ import annotations

import math

import torch

from .layout import LLOYD_MAX_STEP, LLOYD_MAX_THRESHOLD, MIN_RANGE, clip_index, grouping_of, resolve_grouping


def rotate(x, R, kv_group_num=1, inverse=False):
    """Return ``x @ R`` (or ``x @ R^T``) in float64; x ``[tokens, heads, D]``, R ``[D, D]`` or ``[kv_heads, D, D]``."""
    R = R.double().transpose(-1, -2) if inverse else R.double()
    if R.dim() == 3:
        R = R.repeat_interleave(kv_group_num, dim=0)
        return torch.einsum("thd,hde->the", x.double(), R)
    return x.double() @ R


def pack(codes):
    """Pack codes ``[..., D]`` (0..3) into uint8 ``[..., D / 4]``."""
    q0, q1, q2, q3 = codes.to(torch.int32).chunk(4, dim=-1)
    return (q0 | q1 << 2 | q2 << 4 | q3 << 6).to(torch.uint8)


def unpack(packed):
    """Unpack uint8 ``[..., D / 4]`` into int32 codes ``[..., D]``."""
    p = packed.to(torch.int32)
    return torch.cat([p >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)


def clip(x, ratio):
    """Clamp float32 ``x`` ``[..., D]`` to the element of each row's sorted ``|x|`` that ``ratio`` selects."""
    index = clip_index(ratio, x.shape[-1])
    if index < 0:
        return x
    threshold = x.abs().sort(dim=-1).values[..., index : index + 1]
    return torch.minimum(torch.maximum(x, -threshold), threshold)


def quantize(x, group_size=None, clip_ratio=0.0, lloyd_max=False):
    """Return ``(packed uint8 [..., D/4], scales_zeros float32 [..., 2G])`` of ``x`` ``[..., D]``.

    Raises ValueError for groups that do not tile the head, and for Lloyd-Max with several groups.
    """
    size, groups = resolve_grouping(x.shape[-1], group_size)
    if lloyd_max and groups > 1:
        raise ValueError(f"Lloyd-Max needs one group per head, got {groups} groups of {size}")
    x = clip(x.float(), clip_ratio)
    if lloyd_max:
        mean = x.mean(-1, keepdim=True)
        std = torch.sqrt((x - mean).square().mean(-1, keepdim=True) + 1e-8)
        z = (x - mean) / std
        codes = (z > -LLOYD_MAX_THRESHOLD).int() + (z > 0).int() + (z > LLOYD_MAX_THRESHOLD).int()
        scale = LLOYD_MAX_STEP * std
        return pack(codes), torch.cat([scale, 1.5 - mean / scale], dim=-1)
    grouped = x.unflatten(-1, (groups, size))
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scale = (high - low).clamp(min=MIN_RANGE) / 3.0
    zero = -low / scale
    codes = (grouped / scale + zero + 0.5).trunc().clamp(0, 3).flatten(-2)
    return pack(codes), torch.cat([scale, zero], dim=-1).flatten(-2)


def store_kv(
    cache_k, cache_v, loc, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros,
    *, R_k=None, R_v=None, clip_ratio_k=0.0, clip_ratio_v=0.0, lloyd_max=False,
):  # fmt: skip
    """Rotate, quantise and write K and V rows ``[tokens, kv_heads, D]`` to slots ``loc`` of the buffers, in place."""
    rows = (
        (cache_k, k_buffer, k_scales_zeros, R_k, clip_ratio_k),
        (cache_v, v_buffer, v_scales_zeros, R_v, clip_ratio_v),
    )
    for x, buffer, scales, R, ratio in rows:
        if R is not None:
            x = rotate(x, R).to(x.dtype)
        size, _ = grouping_of(x.shape[-1], scales.shape[-1])
        packed, sz = quantize(x, size, ratio, lloyd_max)
        buffer[loc.long()] = packed
        scales[loc.long()] = sz.to(scales.dtype)


def dequantize(codes, scales_zeros, slots, *, head_dim, dtype=torch.float64):
    """Return the dense ``[n, kv_heads, head_dim]`` of the gathered ``slots``, computed in float64."""
    size, groups = grouping_of(head_dim, scales_zeros.shape[-1])
    values = unpack(codes[slots.long()]).double()
    sz = scales_zeros[slots.long()].double().unflatten(-1, (groups, 2)).repeat_interleave(size, dim=-2)
    return ((values - sz[..., 1]) * sz[..., 0]).to(dtype)


def attention(q, k, v, mask, sm_scale, *, logit_cap=0.0, sinks=None, temperature=None):
    """Attention of ``q [Tq, Hq, Dk]`` over ``k [Tk, Hkv, Dk]``, ``v [Tk, Hkv, Dv]`` in float64; mask ``[Tq, Tk]``.

    Returns ``(o [Tq, Hq, Dv], lse [Tq, Hq])``, natural logarithm, sinks included. No keys give zeros and -inf.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * sm_scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if temperature is not None:
        scores = scores * temperature.double()[None, :, None]
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    if sinks is not None:
        sink = sinks.double()[:, None, None].expand(-1, q.shape[0], 1)
        lse = torch.logsumexp(torch.cat([scores, sink], dim=-1), dim=-1, keepdim=True)
    else:
        lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    p = torch.where(lse.isinf(), torch.zeros_like(scores), torch.exp(scores - lse))
    return torch.einsum("hqk,khd->qhd", p, v), lse[..., 0].T


def temperature(positions, length):
    """Return xAI's per-query factor for 0-based ``positions``: ``log(pos) / log(length)`` past ``length``, else 1."""
    pos = positions.double()
    return torch.where(pos > length, torch.log2(pos.clamp(min=1)) / math.log2(length), torch.ones_like(pos))


def decode_attention(
    q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, kv_indptr, kv_indices,
    sm_scale, logit_cap=0.0, sinks=None, xai_temperature_len=-1,
):  # fmt: skip
    """One query row per request over its slots; returns ``(o [bs, Hq, Dv], lse [bs, Hq])`` in float64."""
    head_dims = k_buffer.shape[-1] * 4, v_buffer.shape[-1] * 4
    outs, lses = [], []
    for b in range(q.shape[0]):
        slots = kv_indices[int(kv_indptr[b]) : int(kv_indptr[b + 1])]
        k = dequantize(k_buffer, k_scales_zeros, slots, head_dim=head_dims[0])
        v = dequantize(v_buffer, v_scales_zeros, slots, head_dim=head_dims[1])
        factor = None
        if xai_temperature_len > 0:
            factor = temperature(torch.tensor([len(slots) - 1], device=q.device), xai_temperature_len)
        o, lse = attention(q[b : b + 1], k, v, None, sm_scale, logit_cap=logit_cap, sinks=sinks, temperature=factor)
        outs.append(o)
        lses.append(lse)
    if not outs:
        return q.new_zeros(0, q.shape[1], head_dims[1]).double(), q.new_zeros(0, q.shape[1]).double()
    return torch.cat(outs), torch.cat(lses)


def extend_attention(
    q, k, v, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, qo_indptr, kv_indptr, kv_indices,
    *, sm_scale, causal=True, logit_cap=0.0, sinks=None, xai_temperature_len=-1,
):  # fmt: skip
    """New rows of each request over its INT2 prefix plus the fresh rows; returns ``o [tokens, Hq, Dv]`` in float64."""
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[-1], dtype=torch.float64, device=q.device)
    for b in range(qo_indptr.shape[0] - 1):
        rows = slice(int(qo_indptr[b]), int(qo_indptr[b + 1]))
        slots = kv_indices[int(kv_indptr[b]) : int(kv_indptr[b + 1])]
        new, past = rows.stop - rows.start, len(slots)
        k_past = dequantize(k_buffer, k_scales_zeros, slots, head_dim=k.shape[-1])
        v_past = dequantize(v_buffer, v_scales_zeros, slots, head_dim=v.shape[-1])
        keys, values = torch.cat([k_past, k[rows].double()]), torch.cat([v_past, v[rows].double()])
        position = past + torch.arange(new, device=q.device)
        mask = position[:, None] >= torch.arange(past + new, device=q.device)[None, :] if causal else None
        factor = temperature(position, xai_temperature_len) if xai_temperature_len > 0 else None
        out[rows], _ = attention(
            q[rows], keys, values, mask, sm_scale, logit_cap=logit_cap, sinks=sinks, temperature=factor
        )
    return out
