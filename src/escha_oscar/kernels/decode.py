# SPDX-License-Identifier: Apache-2.0
"""Decode attention over an INT2 KV cache: one query row per request, MHA, GQA and MQA alike.

Stage 1 gives every program one piece of one request (see ``_splits``) and a tile of the query heads that share a KV
head; stage 2 merges the pieces. A head tile never crosses a KV head, whatever the group is. Everything the grid
depends on is known on the host without reading a length, so both stages can be captured in a CUDA graph.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from ._decode_codes import COMPILED, HEADS_PER_PROGRAM, decode_codes_kernel
from ._device import capability, driver_version, on_device, processors
from ._scores import soft_cap, temperature
from ._splits import find_piece, merge_kernel
from .layout import grouping_of

#: Shared memory of a multiprocessor by compute capability; 9.x and 10.x have 228 KiB, all others the small cards' 100.
LARGE_SHARED = {(8, 0): 164 << 10, (8, 7): 164 << 10}


@triton.jit
def _dense_quarter(packed, scales, dims, valid, quarter: tl.constexpr, Q: tl.constexpr, GROUP: tl.constexpr):
    """Values of one quarter of the head ``[T, BLOCK_Q]`` in float32."""
    pair = scales + (2 * ((quarter * Q + dims) // GROUP))[None, :]
    scale = tl.load(pair, mask=valid, other=0.0).to(tl.float32)
    zero = tl.load(pair + 1, mask=valid, other=0.0).to(tl.float32)
    return (((packed >> (2 * quarter)) & 3).to(tl.float32) - zero) * scale


@triton.jit
def _decode_any_kernel(
    Q_rows, K_codes, V_codes, K_scales, V_scales, kv_indptr, kv_indices, Mid_o, Mid_lse,
    batch, pieces, min_piece, sm_scale, heads, group, tiles,
    stride_qb, stride_qh, stride_kct, stride_kch, stride_vct, stride_vch,
    stride_kst, stride_ksh, stride_vst, stride_vsh, stride_mo,
    DK: tl.constexpr, DV: tl.constexpr, GROUP_K: tl.constexpr, GROUP_V: tl.constexpr,
    BLOCK_QK: tl.constexpr, BLOCK_QV: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_B: tl.constexpr, LOGIT_CAP: tl.constexpr, XAI_LEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Stage 1 for any head dimension and any groups: plain and exact, not fast."""
    LOG2E: tl.constexpr = 1.4426950408889634
    QK: tl.constexpr = DK // 4
    QV: tl.constexpr = DV // 4
    piece = tl.program_id(0) // tiles
    kv_head = ((tl.program_id(0) % tiles) // tl.cdiv(group, BLOCK_H)).to(tl.int64)
    tile = (tl.program_id(0) % tiles) % tl.cdiv(group, BLOCK_H)
    request, start, end = find_piece(kv_indptr, batch, pieces, min_piece, piece, BLOCK_T, BLOCK_B)
    if request >= 0:
        h = tile * BLOCK_H + tl.arange(0, BLOCK_H)
        in_h = h < group
        head = kv_head * group + h
        jk = tl.arange(0, BLOCK_QK)
        jv = tl.arange(0, BLOCK_QV)
        q = Q_rows + request.to(tl.int64) * stride_qb + head[:, None] * stride_qh + jk[None, :]
        in_q = in_h[:, None] & (jk < QK)[None, :]
        q0 = tl.load(q, mask=in_q, other=0.0).to(tl.float32)
        q1 = tl.load(q + QK, mask=in_q, other=0.0).to(tl.float32)
        q2 = tl.load(q + 2 * QK, mask=in_q, other=0.0).to(tl.float32)
        q3 = tl.load(q + 3 * QK, mask=in_q, other=0.0).to(tl.float32)
        factor = 1.0
        if XAI_LEN > 0:
            factor = temperature(tl.load(kv_indptr + request + 1) - tl.load(kv_indptr + request) - 1, XAI_LEN)
        top = tl.full([BLOCK_H], float("-inf"), tl.float32)
        norm = tl.zeros([BLOCK_H], tl.float32)
        o0 = tl.zeros([BLOCK_H, BLOCK_QV], tl.float32)
        o1 = tl.zeros([BLOCK_H, BLOCK_QV], tl.float32)
        o2 = tl.zeros([BLOCK_H, BLOCK_QV], tl.float32)
        o3 = tl.zeros([BLOCK_H, BLOCK_QV], tl.float32)
        for at in range(start, end, BLOCK_T):
            t = at + tl.arange(0, BLOCK_T)
            in_t = t < end
            slot = tl.load(kv_indices + t, mask=in_t, other=0).to(tl.int64)[:, None]
            in_k = in_t[:, None] & (jk < QK)[None, :]
            in_v = in_t[:, None] & (jv < QV)[None, :]
            codes = tl.load(K_codes + slot * stride_kct + kv_head * stride_kch + jk[None, :], mask=in_k, other=0)
            codes = codes.to(tl.int32)
            scales = K_scales + slot * stride_kst + kv_head * stride_ksh
            score = tl.dot(
                q0, tl.trans(_dense_quarter(codes, scales, jk, in_k, 0, QK, GROUP_K)), input_precision=PRECISION
            )
            score = tl.dot(
                q1, tl.trans(_dense_quarter(codes, scales, jk, in_k, 1, QK, GROUP_K)), score, input_precision=PRECISION
            )
            score = tl.dot(
                q2, tl.trans(_dense_quarter(codes, scales, jk, in_k, 2, QK, GROUP_K)), score, input_precision=PRECISION
            )
            score = tl.dot(
                q3, tl.trans(_dense_quarter(codes, scales, jk, in_k, 3, QK, GROUP_K)), score, input_precision=PRECISION
            )
            score *= sm_scale
            if LOGIT_CAP > 0:
                score = soft_cap(score, LOGIT_CAP)
            score = tl.where(in_t[None, :], score * (factor * LOG2E), float("-inf"))
            new_top = tl.maximum(top, tl.max(score, 1))
            alpha = tl.exp2(top - new_top)
            p = tl.exp2(score - new_top[:, None])
            norm = norm * alpha + tl.sum(p, 1)
            top = new_top
            codes = tl.load(V_codes + slot * stride_vct + kv_head * stride_vch + jv[None, :], mask=in_v, other=0)
            codes = codes.to(tl.int32)
            scales = V_scales + slot * stride_vst + kv_head * stride_vsh
            alpha = alpha[:, None]
            o0 = tl.dot(
                p, _dense_quarter(codes, scales, jv, in_v, 0, QV, GROUP_V), o0 * alpha, input_precision=PRECISION
            )
            o1 = tl.dot(
                p, _dense_quarter(codes, scales, jv, in_v, 1, QV, GROUP_V), o1 * alpha, input_precision=PRECISION
            )
            o2 = tl.dot(
                p, _dense_quarter(codes, scales, jv, in_v, 2, QV, GROUP_V), o2 * alpha, input_precision=PRECISION
            )
            o3 = tl.dot(
                p, _dense_quarter(codes, scales, jv, in_v, 3, QV, GROUP_V), o3 * alpha, input_precision=PRECISION
            )
        out = Mid_o + piece.to(tl.int64) * stride_mo + head[:, None] * DV + jv[None, :]
        in_o = in_h[:, None] & (jv < QV)[None, :]
        inverse = (1.0 / norm)[:, None]
        tl.store(out, o0 * inverse, mask=in_o)
        tl.store(out + QV, o1 * inverse, mask=in_o)
        tl.store(out + 2 * QV, o2 * inverse, mask=in_o)
        tl.store(out + 3 * QV, o3 * inverse, mask=in_o)
        tl.store(Mid_lse + head * (pieces + batch) + piece, top + tl.log2(norm), mask=in_h)


def decode_config(dims: tuple[int, int], groups: tuple[int, int], cc: tuple[int, int], fast: bool) -> dict[str, int]:
    """Tile, warps and stages of stage 1 for the head ``dims`` and group sizes of K and V on a card of type ``cc``.

    ``resident`` is how many programs a multiprocessor takes at once, which is what the grid is cut for: the register
    file takes 8 warps of up to 255 registers, and the tiles in flight must fit its shared memory.
    """
    if not fast:
        # Whole heads in float32 are in flight: one stage, and fewer tokens the longer they are.
        tile = 32 if max(dims) <= 128 else 16
        return {"BLOCK_T": tile, "BLOCK_H": 16, "num_warps": 4, "num_stages": 1, "resident": 4, "min_piece": 32}
    # Tokens a step: the most whose accumulators, scales and zeros still fit 255 registers.
    many_groups = max(d // g for d, g in zip(dims, groups, strict=True)) > 4
    if max(dims) > 256 or cc[0] == 8 or (many_groups and cc[0] != 9) or (cc[0] == 10 and min(groups) < 32):
        tile = 16
    else:
        tile = 32
    stages = 5 if cc in LARGE_SHARED or cc[0] in (9, 10) else 3
    token_bytes = sum(d // 4 + 8 * (d // g) for d, g in zip(dims, groups, strict=True)) + 8
    # Indirect loads get half of the stages; scratch takes up to 4 KiB, the driver 1 KiB.
    program_bytes = (stages - 1) // 2 * tile * token_bytes + 5120
    shared = LARGE_SHARED.get(cc, 228 << 10 if cc[0] in (9, 10) else 100 << 10)
    return {
        "BLOCK_T": tile, "BLOCK_H": HEADS_PER_PROGRAM, "num_warps": 1, "num_stages": stages,
        "resident": max(1, min(8, shared // program_bytes)), "min_piece": 32,
    }  # fmt: skip


def merge_config(pieces: int, v_head_dim: int) -> dict[str, int]:
    """Tile and warps of stage 2 for requests of about ``pieces`` pieces: one step for up to 512, 64 values a thread."""
    block_s = min(512, max(32, 1 << round(math.log2(max(1, pieces)))))
    block_d = min(32, triton.next_power_of_2(v_head_dim))
    return {"BLOCK_S": block_s, "BLOCK_D": block_d, "num_warps": max(2, block_s // 64)}


def _tiles_align(head_dim: int, group_size: int) -> bool:
    """True when the codes kernel takes this head: groups that tile a quarter or whole quarters, powers of two."""
    return head_dim >= 64 and head_dim & (head_dim - 1) == 0 and group_size >= 16 and group_size & (group_size - 1) == 0


def _words(codes):
    """``codes`` as 16-bit words, or None where an offset or a stride is odd."""
    if codes.storage_offset() % 2 or codes.data_ptr() % 2 or any(s % 2 for s in codes.stride()[:-1]):
        return None
    return codes.view(torch.int16)


def _query_words(q):
    """16-bit ``q`` as words of two dims, copied where an offset or a stride is odd."""
    if q.data_ptr() % 4 or q.storage_offset() % 2 or any(s % 2 for s in q.stride()[:-1]):
        q = q.clone(memory_format=torch.contiguous_format)
    return q.view(torch.int32)


def _pairs(scales):
    """Float32 ``scales`` as 8-byte scale and zero pairs, or None where they are no such pairs."""
    if scales.dtype != torch.float32 or scales.data_ptr() % 8 or any(s % 2 for s in scales.stride()[:-1]):
        return None
    return None if scales.storage_offset() % 2 else scales.view(torch.int64)


def _checked(q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, o, kv_indptr, kv_dtype):
    """Validate the shapes; return ``(head_dim_k, head_dim_v, group_size_k, group_size_v, kv_group_num)``."""
    if kv_dtype != "int2":
        raise ValueError(f"kv_dtype must be 'int2', got {kv_dtype!r}")
    batch, heads, DK = q.shape
    DV, kv_heads = o.shape[-1], k_buffer.shape[1]
    if k_buffer.shape[-1] * 4 != DK or v_buffer.shape[-1] * 4 != DV:
        raise ValueError(
            f"packed widths {k_buffer.shape[-1]} and {v_buffer.shape[-1]} do not hold heads of {DK} and {DV} dims"
        )
    if heads % kv_heads or v_buffer.shape[1] != kv_heads or o.shape[:2] != q.shape[:2]:
        raise ValueError(f"{heads} query heads do not share {kv_heads} K and {v_buffer.shape[1]} V heads")
    if kv_indptr.shape[0] < batch + 1:
        raise ValueError(f"kv_indptr of {kv_indptr.shape[0]} entries does not cover a batch of {batch}")
    group_k, _ = grouping_of(DK, k_scales_zeros.shape[-1])
    group_v, _ = grouping_of(DV, v_scales_zeros.shape[-1])
    return DK, DV, group_k, group_v, heads // kv_heads


def _scratch(attn_logits, attn_lse, rows, heads, DV, device):
    """Room for ``rows`` partial results: the caller's buffers where they are large enough, else new ones.

    New ones come from torch's allocator in every call, so a CUDA graph owns those it captured.
    """
    need = rows * heads * DV
    if attn_logits is not None and attn_logits.numel() >= need and attn_logits.is_contiguous():
        if attn_logits.dtype == torch.float32 and attn_lse.dtype == torch.float32:
            if attn_lse.numel() >= rows * heads and attn_lse.is_contiguous():
                return attn_logits, attn_lse
    out = torch.empty(need, dtype=torch.float32, device=device)
    return out, torch.empty(rows * heads, dtype=torch.float32, device=device)


def decode_attention_fwd_quantized(
    q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, o, kv_indptr, kv_indices, attn_logits, attn_lse,
    num_kv_splits, max_kv_splits, sm_scale, kv_dtype, logit_cap=0.0, sinks=None, xai_temperature_len=-1,
    output_lse=None,
) -> None:  # fmt: skip
    """Attend rotated queries ``q [bs, Hq, D]`` to their INT2 slots; ``o [bs, Hq, Dv]`` comes back rotated.

    Request ``b`` reads slots ``kv_indices[kv_indptr[b] : kv_indptr[b + 1]]``. ``attn_logits``, ``attn_lse`` (float32)
    are scratch, used when large enough; ``num_kv_splits`` and ``max_kv_splits`` are accepted for the caller's sake: the
    split follows from the batch and the device. ``output_lse`` (float32 ``[bs, Hq]``) receives the natural
    log-sum-exp, sinks included. A request without slots gets zeros. Raises ValueError for shapes that do not fit.
    """
    DK, DV, group_k, group_v, group = _checked(
        q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, o, kv_indptr, kv_dtype
    )
    batch, heads, _ = q.shape
    if batch == 0:
        return
    k_words, v_words = _words(k_buffer), _words(v_buffer)
    fast = q.dtype != torch.float32 and k_words is not None and v_words is not None
    fast = fast and _tiles_align(DK, group_k) and _tiles_align(DV, group_v)
    config = decode_config((DK, DV), (group_k, group_v), capability(q), fast)
    resident, min_piece = config.pop("resident"), config.pop("min_piece")
    head_tiles = triton.cdiv(group, config["BLOCK_H"])
    tiles = heads // group * head_tiles
    pieces = max(1, processors(q) * resident // tiles - batch)
    mid_o, mid_lse = _scratch(attn_logits, attn_lse, pieces + batch, heads, DV, q.device)
    block_b = triton.next_power_of_2(batch)
    q = q if q.stride(-1) == 1 else q.contiguous()
    shared = {
        "DK": DK, "DV": DV, "GROUP_K": group_k, "GROUP_V": group_v, "BLOCK_B": block_b,
        "LOGIT_CAP": float(logit_cap), "XAI_LEN": int(xai_temperature_len),
    }  # fmt: skip
    # On Hopper a grid may start before the one that it waits for has ended; older drivers cannot capture that, and
    # newer cards, which could, have not run it.
    early = {"launch_pdl": True} if fast and capability(q)[0] == 9 and driver_version() >= 12030 else {}
    with on_device(q):
        grid = ((pieces + batch) * tiles,)
        if fast:
            k_pairs, v_pairs = _pairs(k_scales_zeros), _pairs(v_scales_zeros)
            paired = k_pairs is not None and v_pairs is not None
            q_words = _query_words(q)
            k_scales, v_scales = (k_pairs, v_pairs) if paired else (k_scales_zeros, v_scales_zeros)
            decode_codes_kernel[grid](
                q_words, k_words, v_words, k_scales, v_scales, kv_indptr, kv_indices, mid_o, mid_lse,
                batch, pieces, min_piece, sm_scale, heads, group, head_tiles, tiles,
                q_words.stride(0), q_words.stride(1), k_words.stride(0), k_words.stride(1),
                v_words.stride(0), v_words.stride(1),
                k_scales.stride(0), k_scales.stride(1), v_scales.stride(0), v_scales.stride(1), heads * DV,
                STAGES=config["num_stages"], BF16=q.dtype == torch.bfloat16, PAIRED=paired, COMPILED=COMPILED,
                PDL=bool(early), **shared, **config, **early,
            )  # fmt: skip
        else:
            _decode_any_kernel[grid](
                q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, kv_indptr, kv_indices, mid_o, mid_lse,
                batch, pieces, min_piece, sm_scale, heads, group, tiles,
                q.stride(0), q.stride(1), k_buffer.stride(0), k_buffer.stride(1),
                v_buffer.stride(0), v_buffer.stride(1), k_scales_zeros.stride(0), k_scales_zeros.stride(1),
                v_scales_zeros.stride(0), v_scales_zeros.stride(1), heads * DV,
                BLOCK_QK=max(16, triton.next_power_of_2(DK // 4)), BLOCK_QV=max(16, triton.next_power_of_2(DV // 4)),
                PRECISION="ieee" if q.dtype == torch.float32 else "tf32", **shared, **config,
            )  # fmt: skip
        merge = merge_config(pieces // batch, DV)
        merge_kernel[(batch * heads * triton.cdiv(DV, merge["BLOCK_D"]),)](
            mid_o, mid_lse, o, o if output_lse is None else output_lse, o if sinks is None else sinks,
            kv_indptr, batch, pieces, min_piece, heads * DV, o.stride(0), o.stride(1), heads,
            D=DV, TILE=config["BLOCK_T"], BLOCK_B=block_b,
            HAS_SINK=sinks is not None, WRITE_LSE=output_lse is not None, PDL=bool(early), **merge, **early,
        )  # fmt: skip
