# SPDX-License-Identifier: Apache-2.0
"""Gather INT2 cache slots into a dense tensor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ._device import on_device
from .layout import grouping_of


@triton.jit
def _dequant_kernel(
    Codes, Scales, slots, limit, first, Out, num_rows, num_blocks,
    stride_ct, stride_ch, stride_st, stride_sh, stride_ot, stride_oh,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_Q: tl.constexpr, LIMITED: tl.constexpr,
):  # fmt: skip
    """One program per (block of rows, head). With LIMITED, rows at or past ``limit[0] - first`` are left alone."""
    Q: tl.constexpr = D // 4
    pid = tl.program_id(0)
    head = (pid // num_blocks).to(tl.int64)
    rows = (pid % num_blocks) * BLOCK_T + tl.arange(0, BLOCK_T)
    in_t = rows < num_rows
    if LIMITED:
        in_t = in_t & (rows < tl.load(limit) - first)
    slot = tl.load(slots + first + rows, mask=in_t, other=0).to(tl.int64)
    j = tl.arange(0, BLOCK_Q)
    valid = in_t[:, None] & (j < Q)[None, :]
    packed = tl.load(Codes + slot[:, None] * stride_ct + head * stride_ch + j[None, :], mask=valid, other=0).to(
        tl.int32
    )
    scales = Scales + slot[:, None] * stride_st + head * stride_sh
    out = Out + rows[:, None].to(tl.int64) * stride_ot + head * stride_oh
    for quarter in tl.static_range(4):
        dim = quarter * Q + j
        if GROUP % Q == 0:
            # The whole quarter lies in one group: one scale a row.
            pair = scales + 2 * ((quarter * Q) // GROUP)
            scale = tl.load(pair, mask=in_t[:, None], other=0.0).to(tl.float32)
            zero = tl.load(pair + 1, mask=in_t[:, None], other=0.0).to(tl.float32)
        else:
            pair = scales + (2 * (dim // GROUP))[None, :]
            scale = tl.load(pair, mask=valid, other=0.0).to(tl.float32)
            zero = tl.load(pair + 1, mask=valid, other=0.0).to(tl.float32)
        code = ((packed >> (2 * quarter)) & 3).to(tl.float32)
        tl.store(out + dim[None, :], ((code - zero) * scale).to(Out.dtype.element_ty), mask=valid)


def launch_dequant(codes, scales_zeros, slots, out, *, head_dim, first=0, rows=None, limit=None) -> None:
    """Fill ``out[:rows]`` from ``slots[first : first + rows]``; no checks, no launch for zero rows.

    ``limit`` is a one-element device tensor: positions at or past it hold no slot and are not touched.
    """
    rows = slots.shape[0] - first if rows is None else rows
    heads = codes.shape[1]
    if rows == 0 or heads == 0:
        return
    group_size, _ = grouping_of(head_dim, scales_zeros.shape[-1])
    block = triton.next_power_of_2(max(1, 2048 // head_dim))
    blocks = triton.cdiv(rows, block)
    with on_device(codes):
        _dequant_kernel[(blocks * heads,)](
            codes, scales_zeros, slots, slots if limit is None else limit, first, out, rows, blocks,
            codes.stride(0), codes.stride(1), scales_zeros.stride(0), scales_zeros.stride(1),
            out.stride(0), out.stride(1),
            D=head_dim, GROUP=group_size, BLOCK_T=block,
            BLOCK_Q=triton.next_power_of_2(head_dim // 4), LIMITED=limit is not None, num_warps=4,
        )  # fmt: skip


def dequantize(codes, scales_zeros, slots, *, head_dim, dtype, out=None):
    """Return the dense ``[n, kv_heads, head_dim]`` of the cache ``slots`` (int32 or int64 ``[n]``).

    ``out`` takes the result in place of a new tensor: any view of that shape with a unit last stride. Zero slots launch
    nothing. Raises ValueError when the buffers, ``head_dim`` or ``out`` do not fit each other.
    """
    shape = (slots.shape[0], codes.shape[1], head_dim)
    if codes.dtype != torch.uint8 or codes.shape[-1] * 4 != head_dim:
        raise ValueError(f"codes {codes.dtype} {list(codes.shape)} do not hold heads of {head_dim} dims")
    grouping_of(head_dim, scales_zeros.shape[-1])
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=codes.device)
    elif tuple(out.shape) != shape or out.stride(-1) != 1 or out.dtype != dtype:
        raise ValueError(f"out {out.dtype} {list(out.shape)} is not {dtype} {list(shape)} with a unit last stride")
    launch_dequant(codes, scales_zeros, slots, out, head_dim=head_dim)
    return out
