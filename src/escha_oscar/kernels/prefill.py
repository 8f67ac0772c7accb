# SPDX-License-Identifier: Apache-2.0
"""Extend attention: new tokens over an INT2 prefix and themselves, in memory that does not grow with the prefix.

The prefix positions of the whole batch form one line (``kv_indices``). It is cut into pieces of a fixed number of
tokens; each piece is dequantised into the same small buffer and attended to, and the running softmax of every query row
(maximum, sum, accumulator) waits in float32 until the next piece. The launch for the last piece also takes the fresh
tokens and writes the result, so a prefix of one piece keeps no state at all. A request finds its share of a piece
through ``kv_indptr`` on the device: no length is read by the host.

The state is bounded too: it holds a row for each new token and head, and when those need more than STATE_BYTES the new
tokens go over the prefix in several passes. So what grows with neither prefix nor new tokens is all the memory that
prefill takes, and decode rows beside a long chunk cost one row each.

A tile of rows is ``tokens x heads of one KV group``, row ``r`` being token ``r // group`` and head ``r % group``; so a
single new token (a decode row in a mixed batch) still fills ``group`` rows, and K and V are read once per group.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ._device import capability, on_device
from ._scores import soft_cap, temperature
from .dequant import launch_dequant
from .layout import grouping_of

#: Bytes of the one buffer that prefix pieces of K and V are expanded into.
PIECE_BYTES = 6 << 20
#: Bytes of the accumulators that wait between two pieces.
STATE_BYTES = 24 << 20


@triton.jit
def _attend(
    q, K, V, first, end, top, norm, acc, scale, factor, limit,
    stride_kt, stride_vt, dk, dv,
    DK: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
    LOGIT_CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Update a running softmax with keys ``first .. end``; MASKED: rows see the keys below their ``limit``.

    Without MASKED the range must be whole tiles.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    EVEN_K: tl.constexpr = dk.shape[0] == DK
    EVEN_V: tl.constexpr = dv.shape[0] == DV
    for start in range(first, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        k_ptr = K + n[None, :].to(tl.int64) * stride_kt + dk[:, None]
        v_ptr = V + n[:, None].to(tl.int64) * stride_vt + dv[None, :]
        if MASKED:
            k = tl.load(k_ptr, mask=(n < end)[None, :] & (dk < DK)[:, None], other=0.0)
        elif EVEN_K:
            k = tl.load(k_ptr)
        else:
            k = tl.load(k_ptr, mask=(dk < DK)[:, None], other=0.0)
        score = tl.dot(q, k, input_precision=PRECISION)
        if LOGIT_CAP > 0:
            score = soft_cap(score * scale, LOGIT_CAP) * (factor * LOG2E)[:, None]
        else:
            score = score * (factor * (scale * LOG2E))[:, None]
        if MASKED:
            score = tl.where((n < end)[None, :] & (n[None, :] < limit[:, None]), score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        alpha = tl.exp2(top - safe)
        p = tl.exp2(score - safe[:, None])
        norm = norm * alpha + tl.sum(p, 1)
        top = new_top
        if MASKED:
            v = tl.load(v_ptr, mask=(n < end)[:, None] & (dv < DV)[None, :], other=0.0)
        elif EVEN_V:
            v = tl.load(v_ptr)
        else:
            v = tl.load(v_ptr, mask=(dv < DV)[None, :], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
    return top, norm, acc


@triton.jit
def _extend_kernel(
    Q, K_new, V_new, Out, K_piece, V_piece, State_o, State_top, State_norm, Sinks,
    qo_indptr, kv_indptr, piece_first, piece_end, scale, kv_heads, group, row_tiles, pass_first, pass_end,
    stride_qt, stride_qh, stride_kt, stride_kh, stride_vt, stride_vh, stride_ot, stride_oh,
    stride_pkt, stride_pkh, stride_pvt, stride_pvh,
    DK: tl.constexpr, DV: tl.constexpr, BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, CAUSAL: tl.constexpr,
    LOGIT_CAP: tl.constexpr, XAI_LEN: tl.constexpr, HAS_SINK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one request and KV head, over the prefix positions ``piece_first .. piece_end``.

    Its tokens are those of the pass, ``pass_first .. pass_end`` of the whole batch's new tokens. FIRST starts the
    running softmax afresh, LAST adds the fresh tokens and writes the result.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    pid = tl.program_id(0)
    # Long rows first within a head: the last tile of a causal request has the most to do.
    tile = row_tiles - 1 - pid % row_tiles
    kv_head = ((pid // row_tiles) % kv_heads).to(tl.int64)
    request = pid // (row_tiles * kv_heads)
    q_first = tl.load(qo_indptr + request).to(tl.int64)
    new = (tl.load(qo_indptr + request + 1) - q_first).to(tl.int32)
    low = tl.maximum(pass_first - q_first, 0).to(tl.int32)
    high = tl.minimum(new, pass_end - q_first).to(tl.int32)
    if tile * BLOCK_M < (high - low) * group:
        prefix_first = tl.load(kv_indptr + request)
        prefix_end = tl.load(kv_indptr + request + 1)
        first = tl.maximum(prefix_first, piece_first) - piece_first
        end = tl.minimum(prefix_end, piece_end) - piece_first
        if FIRST or LAST or (first < end):
            r = tile * BLOCK_M + tl.arange(0, BLOCK_M)
            token = low + r // group
            head = kv_head * group + r % group
            in_m = token < high
            dk = tl.arange(0, BLOCK_DK)
            dv = tl.arange(0, BLOCK_DV)
            q_ptr = Q + (q_first + token)[:, None] * stride_qt + head[:, None] * stride_qh + dk[None, :]
            q = tl.load(q_ptr, mask=in_m[:, None] & (dk < DK)[None, :], other=0.0)
            factor = tl.full([BLOCK_M], 1.0, tl.float32)
            if XAI_LEN > 0:
                factor = temperature((prefix_end - prefix_first).to(tl.int32) + token, XAI_LEN)
            # Bounded by STATE_BYTES, so 32 bits hold every offset.
            row = ((q_first - pass_first).to(tl.int32) + token) * (kv_heads * group) + head.to(tl.int32)
            state = State_o + row[:, None] * DV + dv[None, :]
            in_o = in_m[:, None] & (dv < DV)[None, :]
            if FIRST:
                top = tl.full([BLOCK_M], float("-inf"), tl.float32)
                norm = tl.zeros([BLOCK_M], tl.float32)
                acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
            else:
                top = tl.load(State_top + row, mask=in_m, other=float("-inf"))
                norm = tl.load(State_norm + row, mask=in_m, other=0.0)
                acc = tl.load(state, mask=in_o, other=0.0)
            if first < end:
                k = K_piece + kv_head * stride_pkh
                v = V_piece + kv_head * stride_pvh
                whole = first + (end - first) // BLOCK_N * BLOCK_N
                top, norm, acc = _attend(
                    q, k, v, first, whole, top, norm, acc, scale, factor, token, stride_pkt, stride_pvt, dk, dv,
                    DK, DV, BLOCK_N, False, LOGIT_CAP, PRECISION,
                )  # fmt: skip
                # Every row sees the whole prefix: only the ragged end needs a mask.
                everything = tl.full([BLOCK_M], 2147483647, tl.int32)
                top, norm, acc = _attend(
                    q, k, v, whole, end, top, norm, acc, scale, factor, everything, stride_pkt, stride_pvt, dk, dv,
                    DK, DV, BLOCK_N, True, LOGIT_CAP, PRECISION,
                )  # fmt: skip
            if LAST:
                k = K_new + q_first * stride_kt + kv_head * stride_kh
                v = V_new + q_first * stride_vt + kv_head * stride_vh
                # Tiles that every row sees in full come first, without a mask.
                seen = new
                plain = new // BLOCK_N * BLOCK_N
                limit = tl.full([BLOCK_M], 2147483647, tl.int32)
                if CAUSAL:
                    seen = tl.minimum(new, low + (tile * BLOCK_M + BLOCK_M - 1) // group + 1)
                    plain = tl.minimum(new, low + (tile * BLOCK_M) // group + 1) // BLOCK_N * BLOCK_N
                    limit = token + 1
                top, norm, acc = _attend(
                    q, k, v, 0, plain, top, norm, acc, scale, factor, limit, stride_kt, stride_vt, dk, dv,
                    DK, DV, BLOCK_N, False, LOGIT_CAP, PRECISION,
                )  # fmt: skip
                top, norm, acc = _attend(
                    q, k, v, plain, seen, top, norm, acc, scale, factor, limit, stride_kt, stride_vt, dk, dv,
                    DK, DV, BLOCK_N, True, LOGIT_CAP, PRECISION,
                )  # fmt: skip
                if HAS_SINK:
                    sink = tl.load(Sinks + head, mask=in_m, other=0.0).to(tl.float32) * LOG2E
                    peak = tl.maximum(top, sink)
                    alpha = tl.exp2(top - peak)
                    norm = norm * alpha + tl.exp2(sink - peak)
                    acc = acc * alpha[:, None]
                out = acc / tl.where(norm > 0, norm, 1.0)[:, None]
                o_ptr = Out + (q_first + token)[:, None] * stride_ot + head[:, None] * stride_oh + dv[None, :]
                tl.store(o_ptr, out.to(Out.dtype.element_ty), mask=in_o)
            else:
                tl.store(State_top + row, top, mask=in_m)
                tl.store(State_norm + row, norm, mask=in_m)
                tl.store(state, acc, mask=in_o)


def extend_config(head_dim: int, itemsize: int, cc: tuple[int, int], rows: int) -> dict[str, int]:
    """Tile, warps and stages of the extend kernel for a padded ``head_dim`` on a card of capability ``cc``."""
    if itemsize == 4:
        return {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 4, "num_stages": 1}
    small = (cc[0] == 8 and cc[1] != 0) or cc[0] >= 12  # 99 KiB of shared memory
    if rows <= 16:
        return {"BLOCK_M": 16, "BLOCK_N": 32 if head_dim > 256 else 64, "num_warps": 4, "num_stages": 1}
    if head_dim > 256:
        return {"BLOCK_M": 32, "BLOCK_N": 16 if small else 32, "num_warps": 4, "num_stages": 1}
    if cc[0] in (9, 10):
        return {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
    if head_dim > 128:
        # Eight warps hold the accumulators of 64 rows without spilling; four do not.
        return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 8, "num_stages": 2}
    return {"BLOCK_M": 64, "BLOCK_N": 32 if small else 64, "num_warps": 4, "num_stages": 2}


def piece_tokens(kv_heads: int, head_dims: int, itemsize: int, prefix: int) -> int:
    """Prefix tokens expanded at a time: what fits PIECE_BYTES, in steps of 256, and no more than the prefix needs."""
    per_token = kv_heads * head_dims * itemsize
    return max(256, min(PIECE_BYTES // per_token // 256 * 256, triton.cdiv(prefix, 256) * 256))


def tokens_a_pass(tokens: int, heads: int, v_head_dim: int) -> int:
    """New tokens that go over the prefix together: all of them, or even shares whose state fits STATE_BYTES."""
    passes = triton.cdiv(tokens, max(1, STATE_BYTES // (heads * v_head_dim * 4)))
    return triton.cdiv(tokens, passes)


def _checked(q, k, v, o, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, qo_indptr, kv_indptr):
    tokens, heads, DK = q.shape
    kv_heads, DV = k.shape[1], v.shape[-1]
    if k.shape != (tokens, kv_heads, DK) or v.shape[:2] != k.shape[:2] or o.shape != (tokens, heads, DV):
        raise ValueError(f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}, o {list(o.shape)} do not fit")
    if heads % kv_heads or k_buffer.shape[1] != kv_heads or v_buffer.shape[1] != kv_heads:
        raise ValueError(f"{heads} query heads, {kv_heads} KV heads, {k_buffer.shape[1]} heads in the cache do not fit")
    if k_buffer.shape[-1] * 4 != DK or v_buffer.shape[-1] * 4 != DV:
        raise ValueError(
            f"packed widths {k_buffer.shape[-1]} and {v_buffer.shape[-1]} do not hold heads of {DK} and {DV} dims"
        )
    if qo_indptr.shape != kv_indptr.shape:
        raise ValueError(f"qo_indptr {list(qo_indptr.shape)} and kv_indptr {list(kv_indptr.shape)} differ in length")
    grouping_of(DK, k_scales_zeros.shape[-1])
    grouping_of(DV, v_scales_zeros.shape[-1])


def extend_attention(
    q, k, v, o, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, qo_indptr, kv_indptr, kv_indices,
    *, max_len_extend, sm_scale, causal=True, logit_cap=0.0, sinks=None, xai_temperature_len=-1,
    prefix_lens_cpu=None, extend_lens_cpu=None,
) -> None:  # fmt: skip
    """Attend new rows to their INT2 prefix and to each other; q, k, v are rotated, ``o`` comes back rotated.

    q ``[tokens, Hq, Dk]``, k ``[tokens, Hkv, Dk]``, v ``[tokens, Hkv, Dv]``, o ``[tokens, Hq, Dv]``; request ``b`` owns
    rows ``qo_indptr[b] : qo_indptr[b + 1]`` and prefix slots ``kv_indices[kv_indptr[b] : kv_indptr[b + 1]]``, either
    possibly empty.
    ``max_len_extend`` is the longest row count. Host lists of the lengths are optional: ``prefix_lens_cpu`` spares work
    when ``kv_indices`` is longer than the prefixes. Raises ValueError for shapes that do not fit.
    """
    _checked(q, k, v, o, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, qo_indptr, kv_indptr)
    tokens, heads, DK = q.shape
    kv_heads, DV = k.shape[1], v.shape[-1]
    requests = qo_indptr.shape[0] - 1
    # Callers also hand over a 0-d tensor of the CPU, which a launch would take for a pointer.
    max_len_extend = int(max_len_extend if extend_lens_cpu is None else max(extend_lens_cpu, default=0))
    if tokens == 0 or requests == 0 or max_len_extend == 0:
        return
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    prefix = kv_indices.shape[0] if prefix_lens_cpu is None else sum(prefix_lens_cpu)
    span = piece_tokens(kv_heads, DK + DV, q.element_size(), prefix)
    pieces = max(1, triton.cdiv(prefix, span))
    k_piece = torch.empty((span if prefix else 1, kv_heads, DK), dtype=q.dtype, device=q.device)
    v_piece = torch.empty((span if prefix else 1, kv_heads, DV), dtype=q.dtype, device=q.device)
    group = heads // kv_heads
    block_d = max(16, triton.next_power_of_2(max(DK, DV)))
    config = extend_config(block_d, q.element_size(), capability(q), max_len_extend * group)
    share = tokens
    state_o = state_top = state_norm = k_piece
    if pieces > 1:
        share = tokens_a_pass(tokens, heads, DV)
        state_o = torch.empty((share * heads, DV), dtype=torch.float32, device=q.device)
        state_top, state_norm = torch.empty((2, share * heads), dtype=torch.float32, device=q.device)
    tiles = triton.cdiv(min(max_len_extend, share) * group, config["BLOCK_M"])
    with on_device(q):
        for pass_first in range(0, tokens, share):
            for index in range(pieces):
                first = index * span
                rows = min(span, prefix - first)
                for codes, scales, piece, dims in (
                    (k_buffer, k_scales_zeros, k_piece, DK),
                    (v_buffer, v_scales_zeros, v_piece, DV),
                ):
                    launch_dequant(
                        codes, scales, kv_indices, piece, head_dim=dims, first=first, rows=rows, limit=kv_indptr[-1:]
                    )
                _extend_kernel[(tiles * kv_heads * requests,)](
                    q, k, v, o, k_piece, v_piece, state_o, state_top, state_norm, o if sinks is None else sinks,
                    qo_indptr, kv_indptr, first, first + rows, sm_scale, kv_heads, group, tiles,
                    pass_first, pass_first + share,
                    q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
                    o.stride(0), o.stride(1),
                    k_piece.stride(0), k_piece.stride(1), v_piece.stride(0), v_piece.stride(1),
                    DK=DK, DV=DV,
                    BLOCK_DK=max(16, triton.next_power_of_2(DK)), BLOCK_DV=max(16, triton.next_power_of_2(DV)),
                    FIRST=index == 0, LAST=index == pieces - 1, CAUSAL=causal, LOGIT_CAP=float(logit_cap),
                    XAI_LEN=int(xai_temperature_len), HAS_SINK=sinks is not None,
                    PRECISION="ieee" if q.dtype == torch.float32 else "tf32", **config,
                )  # fmt: skip
