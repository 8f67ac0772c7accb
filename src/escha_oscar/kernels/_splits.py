# SPDX-License-Identifier: Apache-2.0
"""Cut the tokens of a batch into even pieces, on the device, and merge what the pieces produced.

The host does not know the lengths (a CUDA graph is replayed with new ones), so it fixes only how many pieces the grid
can hold. Every program derives the same cut from ``kv_indptr``: one piece length for the whole batch, so that one long
request fills the card as well as sixteen short ones do.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def piece_length(kv_indptr, batch, pieces, min_piece, TILE: tl.constexpr):
    """Tokens per piece: a multiple of TILE, at least ``min_piece``, that makes at most ``pieces + batch`` of them."""
    total = tl.load(kv_indptr + batch) - tl.load(kv_indptr)
    return tl.cdiv(tl.maximum(tl.cdiv(total, pieces), min_piece), TILE) * TILE


@triton.jit
def piece_counts(kv_indptr, batch, length, BLOCK_B: tl.constexpr):
    """Pieces of each request ``[BLOCK_B]``, and their running total including the request itself."""
    b = tl.arange(0, BLOCK_B)
    start = tl.load(kv_indptr + b, mask=b < batch, other=0)
    end = tl.load(kv_indptr + b + 1, mask=b < batch, other=0)
    count = tl.where(b < batch, tl.cdiv(end - start, length), 0).to(tl.int32)
    return count, tl.cumsum(count, 0)


@triton.jit
def find_piece(kv_indptr, batch, pieces, min_piece, piece, TILE: tl.constexpr, BLOCK_B: tl.constexpr):
    """Return ``(request, first token, end token)`` of ``piece``, as positions in kv_indices; -1: no such piece."""
    length = piece_length(kv_indptr, batch, pieces, min_piece, TILE)
    count, total = piece_counts(kv_indptr, batch, length, BLOCK_B)
    request = tl.sum((total <= piece).to(tl.int32), 0)
    before = tl.sum(tl.where(total <= piece, count, 0), 0)
    found = request < batch
    request = tl.where(found, request, -1)
    row = tl.maximum(request, 0)
    base = tl.load(kv_indptr + row)
    end = tl.load(kv_indptr + row + 1)
    start = base + (piece - before) * length
    return request, start, tl.minimum(start + length, end)


@triton.jit
def merge_kernel(
    Mid_o, Mid_lse, Out, Out_lse, Sinks, kv_indptr, batch, pieces, min_piece,
    stride_mo, stride_ob, stride_oh, heads,
    D: tl.constexpr, TILE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    HAS_SINK: tl.constexpr, WRITE_LSE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the pieces of one request and head, BLOCK_D dims a program. Mid_lse is in log2, a row for each head.

    PDL: launched while stage 1 runs. What is read before the wait was written before stage 1 began.
    A request without tokens gets zeros and a log-sum-exp of -inf (of the sink where there is one).
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    pid = tl.program_id(0)
    num_d: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    block_d = pid % num_d
    head = (pid // num_d) % heads
    request = pid // (num_d * heads)
    length = piece_length(kv_indptr, batch, pieces, min_piece, TILE)
    count, total = piece_counts(kv_indptr, batch, length, BLOCK_B)
    b = tl.arange(0, BLOCK_B)
    mine = tl.sum(tl.where(b == request, count, 0), 0)
    first = tl.sum(tl.where(b == request, total - count, 0), 0)

    if PDL:
        tl.extra.cuda.gdc_wait()
    rows = pieces + batch
    s = tl.arange(0, BLOCK_S)
    d = block_d * BLOCK_D + tl.arange(0, BLOCK_D)
    # Every lane keeps a running maximum of its own, so that a step waits for one load only and lanes meet at the end.
    top = tl.full([BLOCK_S], float("-inf"), tl.float32)
    acc = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    norm = tl.zeros([BLOCK_S], tl.float32)
    for start in range(0, mine, BLOCK_S):
        piece = first + start + s
        in_s = start + s < mine
        lse = tl.load(Mid_lse + head * rows + piece, mask=in_s, other=float("-inf"))
        row = Mid_o + piece.to(tl.int64)[:, None] * stride_mo + head * D + d[None, :]
        value = tl.load(row, mask=in_s[:, None] & (d < D)[None, :], other=0.0)
        new_top = tl.maximum(top, lse)
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        alpha = tl.exp2(top - safe)
        weight = tl.exp2(lse - safe)
        # Scratch of a piece that saw no token holds whatever was there: select, never multiply by zero.
        acc = acc * alpha[:, None] + tl.where(weight[:, None] > 0, weight[:, None] * value, 0.0)
        norm = norm * alpha + weight
        top = new_top
    peak = tl.max(top, 0)
    if HAS_SINK:
        sink = tl.load(Sinks + head).to(tl.float32) * LOG2E
        peak = tl.maximum(peak, sink)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    alpha = tl.exp2(top - safe)
    denominator = tl.sum(norm * alpha, 0)
    if HAS_SINK:
        denominator += tl.exp2(sink - safe)
    out = tl.sum(acc * alpha[:, None], 0) / tl.where(denominator > 0, denominator, 1.0)
    tl.store(Out + request.to(tl.int64) * stride_ob + head * stride_oh + d, out.to(Out.dtype.element_ty), mask=d < D)
    if WRITE_LSE:
        if block_d == 0:
            lse = safe + tl.log2(tl.where(denominator > 0, denominator, 1.0))
            lse = tl.where(denominator > 0, lse, float("-inf"))
            tl.store(Out_lse + request * heads + head, lse / LOG2E)
