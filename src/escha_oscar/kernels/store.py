# SPDX-License-Identifier: Apache-2.0
"""Rotate, clip, quantise and pack K and V rows into INT2 cache slots.

One launch writes K and V together when their head dimensions agree, two otherwise; empty input launches nothing.
A program holds the whole head row of a few tokens as four quarters, because byte ``j`` packs dim ``j`` of each quarter
and because the clip threshold is taken over the whole row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ._device import on_device
from .layout import LLOYD_MAX_STEP, LLOYD_MAX_THRESHOLD, MIN_RANGE, clip_index, grouping_of
from .rotation import rotate

# Rows up to which the rotation is done inside the store kernel; above it a matrix product and one launch are faster.
FUSED_ROTATION_TOKENS = 64


@triton.jit
def _kth_smallest(a0, a1, a2, a3, rank, LOW_BIT: tl.constexpr):
    """Element ``rank`` of each row of non-negative quarters, ascending, by fixing its bits from the highest down.

    Bits below LOW_BIT are zero in every input: a 16-bit float widened to float32 needs half the steps. Padding is +inf.
    """
    b0 = a0.to(tl.int32, bitcast=True)
    b1 = a1.to(tl.int32, bitcast=True)
    b2 = a2.to(tl.int32, bitcast=True)
    b3 = a3.to(tl.int32, bitcast=True)
    found = tl.zeros([a0.shape[0]], dtype=tl.int32)
    for step in range(31 - LOW_BIT):
        trial = found | (1 << (30 - step))
        t = trial[:, None]
        below = (b0 < t).to(tl.int32) + (b1 < t).to(tl.int32) + (b2 < t).to(tl.int32) + (b3 < t).to(tl.int32)
        found = tl.where(tl.sum(below, 1) <= rank, trial, found)
    return found.to(tl.float32, bitcast=True)


@triton.jit
def _code(x, scale, zero):
    """Code of ``x``: nearest step, clamped as an integer so that no input can spill into a neighbour's bits."""
    c = (tl.div_rn(x, scale) + zero + 0.5).to(tl.int32)
    return tl.minimum(tl.maximum(c, 0), 3)


@triton.jit
def _lloyd_code(x, mean, std, THRESHOLD: tl.constexpr):
    z = tl.div_rn(x - mean, std)
    return (z > -THRESHOLD).to(tl.int32) + (z > 0).to(tl.int32) + (z > THRESHOLD).to(tl.int32)


@triton.jit
def _rotated(
    x_rows, R, stride_rk, stride_rd, j, in_j, in_t,
    D: tl.constexpr, STEP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The four quarters of ``x @ R`` in float32 for row pointers ``x_rows`` [B, 1]; one pass over R."""
    Q: tl.constexpr = D // 4
    PRECISION: tl.constexpr = "ieee" if EXACT else "tf32x3"
    y0 = tl.zeros([x_rows.shape[0], j.shape[0]], dtype=tl.float32)
    y1 = tl.zeros([x_rows.shape[0], j.shape[0]], dtype=tl.float32)
    y2 = tl.zeros([x_rows.shape[0], j.shape[0]], dtype=tl.float32)
    y3 = tl.zeros([x_rows.shape[0], j.shape[0]], dtype=tl.float32)
    for start in range(0, D, STEP):
        k = start + tl.arange(0, STEP)
        x = tl.load(x_rows + k[None, :], mask=in_t[:, None] & (k < D)[None, :], other=0.0).to(tl.float32)
        r = R + k[:, None] * stride_rk + j[None, :] * stride_rd
        inside = (k < D)[:, None] & in_j[None, :]
        r0 = tl.load(r, mask=inside, other=0.0).to(tl.float32)
        r1 = tl.load(r + Q * stride_rd, mask=inside, other=0.0).to(tl.float32)
        r2 = tl.load(r + 2 * Q * stride_rd, mask=inside, other=0.0).to(tl.float32)
        r3 = tl.load(r + 3 * Q * stride_rd, mask=inside, other=0.0).to(tl.float32)
        y0 = tl.dot(x, r0, y0, input_precision=PRECISION)
        y1 = tl.dot(x, r1, y1, input_precision=PRECISION)
        y2 = tl.dot(x, r2, y2, input_precision=PRECISION)
        y3 = tl.dot(x, r3, y3, input_precision=PRECISION)
    return y0, y1, y2, y3


@triton.jit
def _store_rows(
    X, loc, Codes, Scales, R,
    num_tokens, head, block, rank,
    stride_xt, stride_xh, stride_ct, stride_ch, stride_st, stride_sh, stride_rh, stride_rk, stride_rd,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_Q: tl.constexpr,
    CLIP: tl.constexpr, ROTATE: tl.constexpr, LLOYD: tl.constexpr, LOW_BIT: tl.constexpr, EXACT: tl.constexpr,
    STEP: tl.constexpr, THRESHOLD: tl.constexpr, MIN_WIDTH: tl.constexpr, LLOYD_STEP: tl.constexpr,
):  # fmt: skip
    """Quantise BLOCK_T tokens of one head."""
    Q: tl.constexpr = D // 4
    NUM_GROUPS: tl.constexpr = D // GROUP
    t = block * BLOCK_T + tl.arange(0, BLOCK_T)
    in_t = t < num_tokens
    j = tl.arange(0, BLOCK_Q)
    in_j = j < Q
    valid = in_t[:, None] & in_j[None, :]
    rows = X + t[:, None].to(tl.int64) * stride_xt + head * stride_xh
    if ROTATE:
        r = R + head.to(tl.int64) * stride_rh
        y0, y1, y2, y3 = _rotated(rows, r, stride_rk, stride_rd, j, in_j, in_t, D, STEP, EXACT)
        # Rounded to the input's dtype, as a rotation done outside of this kernel would be.
        x0 = y0.to(X.dtype.element_ty).to(tl.float32)
        x1 = y1.to(X.dtype.element_ty).to(tl.float32)
        x2 = y2.to(X.dtype.element_ty).to(tl.float32)
        x3 = y3.to(X.dtype.element_ty).to(tl.float32)
    else:
        x0 = tl.load(rows + j[None, :], mask=valid, other=0.0).to(tl.float32)
        x1 = tl.load(rows + (j + Q)[None, :], mask=valid, other=0.0).to(tl.float32)
        x2 = tl.load(rows + (j + 2 * Q)[None, :], mask=valid, other=0.0).to(tl.float32)
        x3 = tl.load(rows + (j + 3 * Q)[None, :], mask=valid, other=0.0).to(tl.float32)
    if CLIP:
        pad = float("inf")
        limit = _kth_smallest(
            tl.where(in_j[None, :], tl.abs(x0), pad), tl.where(in_j[None, :], tl.abs(x1), pad),
            tl.where(in_j[None, :], tl.abs(x2), pad), tl.where(in_j[None, :], tl.abs(x3), pad), rank, LOW_BIT,
        )[:, None]  # fmt: skip
        x0 = tl.minimum(tl.maximum(x0, -limit), limit)
        x1 = tl.minimum(tl.maximum(x1, -limit), limit)
        x2 = tl.minimum(tl.maximum(x2, -limit), limit)
        x3 = tl.minimum(tl.maximum(x3, -limit), limit)

    slot = tl.load(loc + t, mask=in_t, other=0).to(tl.int64)
    scales = Scales + slot * stride_st + head * stride_sh
    if LLOYD:
        total = tl.sum(x0, 1) + tl.sum(x1, 1) + tl.sum(x2, 1) + tl.sum(x3, 1)
        mean = (total / D)[:, None]
        d0 = tl.where(in_j[None, :], x0 - mean, 0.0)
        d1 = tl.where(in_j[None, :], x1 - mean, 0.0)
        d2 = tl.where(in_j[None, :], x2 - mean, 0.0)
        d3 = tl.where(in_j[None, :], x3 - mean, 0.0)
        variance = tl.sum(d0 * d0 + d1 * d1 + d2 * d2 + d3 * d3, 1)[:, None] / D
        std = tl.sqrt_rn(variance + 1e-8)
        c0 = _lloyd_code(x0, mean, std, THRESHOLD)
        c1 = _lloyd_code(x1, mean, std, THRESHOLD)
        c2 = _lloyd_code(x2, mean, std, THRESHOLD)
        c3 = _lloyd_code(x3, mean, std, THRESHOLD)
        scale = std * LLOYD_STEP
        one = tl.arange(0, 1)
        tl.store(scales[:, None] + one[None, :], scale, mask=in_t[:, None])
        tl.store(scales[:, None] + 1 + one[None, :], 1.5 - tl.div_rn(mean, scale), mask=in_t[:, None])
    else:
        # Padding lanes never enter a minimum or maximum: each group masks its own dims.
        s0 = tl.full([BLOCK_T, BLOCK_Q], 1.0, tl.float32)
        s1 = s0
        s2 = s0
        s3 = s0
        z0 = tl.zeros([BLOCK_T, BLOCK_Q], tl.float32)
        z1 = z0
        z2 = z0
        z3 = z0
        for g in tl.static_range(NUM_GROUPS):
            low = tl.full([BLOCK_T], float("inf"), tl.float32)
            high = tl.full([BLOCK_T], float("-inf"), tl.float32)
            m0 = (in_j & (j // GROUP == g))[None, :]
            m1 = (in_j & ((j + Q) // GROUP == g))[None, :]
            m2 = (in_j & ((j + 2 * Q) // GROUP == g))[None, :]
            m3 = (in_j & ((j + 3 * Q) // GROUP == g))[None, :]
            # A group that misses a quarter is known at compile time.
            if g * GROUP < Q:
                low = tl.minimum(low, tl.min(tl.where(m0, x0, float("inf")), 1))
                high = tl.maximum(high, tl.max(tl.where(m0, x0, float("-inf")), 1))
            if g * GROUP < 2 * Q and (g + 1) * GROUP > Q:
                low = tl.minimum(low, tl.min(tl.where(m1, x1, float("inf")), 1))
                high = tl.maximum(high, tl.max(tl.where(m1, x1, float("-inf")), 1))
            if g * GROUP < 3 * Q and (g + 1) * GROUP > 2 * Q:
                low = tl.minimum(low, tl.min(tl.where(m2, x2, float("inf")), 1))
                high = tl.maximum(high, tl.max(tl.where(m2, x2, float("-inf")), 1))
            if (g + 1) * GROUP > 3 * Q:
                low = tl.minimum(low, tl.min(tl.where(m3, x3, float("inf")), 1))
                high = tl.maximum(high, tl.max(tl.where(m3, x3, float("-inf")), 1))
            scale = tl.div_rn(tl.maximum(high - low, MIN_WIDTH), 3.0)
            zero = tl.div_rn(-low, scale)
            s0 = tl.where(m0, scale[:, None], s0)
            s1 = tl.where(m1, scale[:, None], s1)
            s2 = tl.where(m2, scale[:, None], s2)
            s3 = tl.where(m3, scale[:, None], s3)
            z0 = tl.where(m0, zero[:, None], z0)
            z1 = tl.where(m1, zero[:, None], z1)
            z2 = tl.where(m2, zero[:, None], z2)
            z3 = tl.where(m3, zero[:, None], z3)
            tl.store(scales + 2 * g, scale, mask=in_t)
            tl.store(scales + 2 * g + 1, zero, mask=in_t)
        c0 = _code(x0, s0, z0)
        c1 = _code(x1, s1, z1)
        c2 = _code(x2, s2, z2)
        c3 = _code(x3, s3, z3)
    packed = c0 | (c1 << 2) | (c2 << 4) | (c3 << 6)
    tl.store(Codes + slot[:, None] * stride_ct + head * stride_ch + j[None, :], packed.to(tl.uint8), mask=valid)


@triton.jit
def _store_kernel(
    K, V, loc, K_codes, V_codes, K_scales, V_scales, R_k, R_v,
    num_tokens, num_blocks, heads, rank_k, rank_v,
    stride_kt, stride_kh, stride_vt, stride_vh,
    stride_kct, stride_kch, stride_vct, stride_vch,
    stride_kst, stride_ksh, stride_vst, stride_vsh,
    stride_rkh, stride_rkk, stride_rkd, stride_rvh, stride_rvk, stride_rvd,
    D: tl.constexpr, GROUP_K: tl.constexpr, GROUP_V: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_Q: tl.constexpr,
    CLIP_K: tl.constexpr, CLIP_V: tl.constexpr, ROTATE_K: tl.constexpr, ROTATE_V: tl.constexpr, LLOYD: tl.constexpr,
    LOW_BIT: tl.constexpr, EXACT: tl.constexpr, STEP: tl.constexpr,
    THRESHOLD: tl.constexpr, MIN_WIDTH: tl.constexpr, LLOYD_STEP: tl.constexpr,
):  # fmt: skip
    """One program per (token block, head, K or V)."""
    pid = tl.program_id(0)
    block = pid % num_blocks
    head = pid // num_blocks
    if head < heads:
        _store_rows(
            K, loc, K_codes, K_scales, R_k, num_tokens, head, block, rank_k,
            stride_kt, stride_kh, stride_kct, stride_kch, stride_kst, stride_ksh,
            stride_rkh, stride_rkk, stride_rkd,
            D, GROUP_K, BLOCK_T, BLOCK_Q, CLIP_K, ROTATE_K, LLOYD, LOW_BIT, EXACT, STEP,
            THRESHOLD, MIN_WIDTH, LLOYD_STEP,
        )  # fmt: skip
    else:
        _store_rows(
            V, loc, V_codes, V_scales, R_v, num_tokens, head - heads, block, rank_v,
            stride_vt, stride_vh, stride_vct, stride_vch, stride_vst, stride_vsh,
            stride_rvh, stride_rvk, stride_rvd,
            D, GROUP_V, BLOCK_T, BLOCK_Q, CLIP_V, ROTATE_V, LLOYD, LOW_BIT, EXACT, STEP,
            THRESHOLD, MIN_WIDTH, LLOYD_STEP,
        )  # fmt: skip


def store_config(head_dim: int, num_tokens: int, rotated: bool) -> dict[str, int]:
    """Tile and warps of the store kernel for a head of ``head_dim`` dims."""
    if rotated:
        return {"BLOCK_T": 16, "STEP": 32 if head_dim <= 256 else 16, "num_warps": 4, "num_stages": 2}
    if num_tokens <= 64:
        return {"BLOCK_T": 1, "STEP": 32, "num_warps": 1, "num_stages": 1}
    return {"BLOCK_T": 8 if head_dim <= 128 else 4, "STEP": 32, "num_warps": 4, "num_stages": 1}


def _checked(x, loc, codes, scales, R, ratio, lloyd_max, name):
    """Validate one of K and V; return ``(group_size, clip rank)``."""
    tokens, heads, head_dim = x.shape
    if not x.dtype.is_floating_point or x.dtype == torch.float64:
        raise ValueError(f"{name} rows must be float16, bfloat16 or float32, got {x.dtype}")
    if codes.dtype != torch.uint8 or codes.shape[1:] != (heads, head_dim // 4):
        raise ValueError(
            f"{name} codes must be uint8 [slots, {heads}, {head_dim // 4}], got {codes.dtype} {list(codes.shape)}"
        )
    if scales.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"{name} scales must be float32 or bfloat16, got {scales.dtype}: float16 overflows at a range of 196512"
        )
    if scales.shape[1] != heads:
        raise ValueError(f"{name} scales have {scales.shape[1]} heads, the rows have {heads}")
    if loc.shape != (tokens,) or loc.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"loc must be int32 or int64 [{tokens}], got {loc.dtype} {list(loc.shape)}")
    if R is not None and R.shape not in ((head_dim, head_dim), (heads, head_dim, head_dim)):
        raise ValueError(
            f"R of {name} must be [{head_dim}, {head_dim}] or [{heads}, {head_dim}, {head_dim}], got {list(R.shape)}"
        )
    group_size, groups = grouping_of(head_dim, scales.shape[-1])
    if lloyd_max and groups > 1:
        raise ValueError(f"Lloyd-Max needs one group per head, {name} has {groups} groups of {group_size}")
    return group_size, clip_index(ratio, head_dim)


def _rotation_strides(R):
    """Strides of a rotation by head, row and column; a shared one has a head stride of 0."""
    if R is None:
        return 0, 0, 0
    return R.stride() if R.dim() == 3 else (0, *R.stride())


def _launch(k, v, loc, k_codes, v_codes, k_scales, v_scales, R_k, R_v, groups, ranks, lloyd_max, halves):
    """Launch over K and V (``halves`` 2) or over K alone (``halves`` 1)."""
    tokens, heads, D = k.shape
    config = store_config(D, tokens, R_k is not None or R_v is not None)
    blocks = triton.cdiv(tokens, config["BLOCK_T"])
    low_bit = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}[k.dtype]
    dummy = k_scales
    with on_device(k):
        _store_kernel[(blocks * heads * halves,)](
            k, v, loc, k_codes, v_codes, k_scales, v_scales,
            dummy if R_k is None else R_k, dummy if R_v is None else R_v,
            tokens, blocks, heads, ranks[0], ranks[1],
            k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            k_codes.stride(0), k_codes.stride(1), v_codes.stride(0), v_codes.stride(1),
            k_scales.stride(0), k_scales.stride(1), v_scales.stride(0), v_scales.stride(1),
            *_rotation_strides(R_k), *_rotation_strides(R_v),
            D=D, GROUP_K=groups[0], GROUP_V=groups[1], BLOCK_Q=triton.next_power_of_2(D // 4),
            CLIP_K=ranks[0] >= 0, CLIP_V=ranks[1] >= 0, ROTATE_K=R_k is not None, ROTATE_V=R_v is not None,
            LLOYD=lloyd_max, LOW_BIT=low_bit, EXACT=k.dtype == torch.float32,
            THRESHOLD=LLOYD_MAX_THRESHOLD, MIN_WIDTH=MIN_RANGE, LLOYD_STEP=LLOYD_MAX_STEP,
            **config,
        )  # fmt: skip


def store_kv(
    cache_k, cache_v, loc, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros,
    *, R_k=None, R_v=None, clip_ratio_k=0.0, clip_ratio_v=0.0, lloyd_max=False,
) -> None:  # fmt: skip
    """Quantise K and V rows ``[tokens, kv_heads, D]`` into slots ``loc`` of the INT2 buffers, in place.

    ``k_buffer``/``v_buffer`` are uint8 ``[slots, kv_heads, D/4]``, ``k_scales_zeros``/``v_scales_zeros`` float32 or
    bfloat16 ``[slots, kv_heads, 2G]``; any slot and head stride. With ``R_k``/``R_v`` (``[D, D]`` or
    ``[kv_heads, D, D]``) the rows are rotated first; a clip ratio of 0 disables clipping.

    Raises ValueError for shapes or dtypes that do not fit, a ratio outside [0, 1], float16 scales, and Lloyd-Max with
    several groups.
    """
    k_checked = _checked(cache_k, loc, k_buffer, k_scales_zeros, R_k, clip_ratio_k, lloyd_max, "K")
    v_checked = _checked(cache_v, loc, v_buffer, v_scales_zeros, R_v, clip_ratio_v, lloyd_max, "V")
    if loc.shape[0] == 0:
        return
    if loc.shape[0] > FUSED_ROTATION_TOKENS:
        cache_k, R_k = (cache_k, None) if R_k is None else (rotate(cache_k, R_k), None)
        cache_v, R_v = (cache_v, None) if R_v is None else (rotate(cache_v, R_v), None)
    k = (_unit_stride(cache_k), k_buffer, k_scales_zeros, R_k)
    v = (_unit_stride(cache_v), v_buffer, v_scales_zeros, R_v)
    if cache_k.shape == cache_v.shape and cache_k.dtype == cache_v.dtype:
        groups, ranks = zip(k_checked, v_checked, strict=True)
        _launch(k[0], v[0], loc, k[1], v[1], k[2], v[2], k[3], v[3], groups, ranks, lloyd_max, halves=2)
        return
    for (x, codes, scales, R), (group, rank) in ((k, k_checked), (v, v_checked)):
        _launch(x, x, loc, codes, codes, scales, scales, R, R, (group, group), (rank, rank), lloyd_max, halves=1)


def _unit_stride(x):
    return x if x.stride(-1) == 1 else x.contiguous()
