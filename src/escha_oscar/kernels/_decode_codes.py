# SPDX-License-Identifier: Apache-2.0
"""Decode stage 1 on raw codes: the tensor cores multiply 2-bit codes, scale and zero stay outside of the products.

One warp owns a piece of one request. Per group ``g`` of a head,

    score_t = sum_g s_gt * (q_g . codes_gt - z_gt * sum(q_g))
    out_d   = sum_t (p_t s_gt) codes_td - sum_t p_t s_gt z_gt

so a code meets nothing but a mask: AND-ing a word of codes with 0x0003 leaves a float16 subnormal of value
``code * 2^-24``, and the next codes of the word are ``4^k`` times that. The powers of four go into q (exactly) and into
the epilogue; the tensor cores take subnormals at full precision. Eight 16-bit registers of two codes each cost nine
instructions. Tokens are the M side of the first product and dims that of the second, so that up to 8 query heads pad to
8 and not to 16.

The weights ``p s`` of the second product are rounded to float16. The running maximum is therefore taken over
``score + log2(largest scale of the token)``: the weights stay at or below 2^14 whatever the scales are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._scores import soft_cap, temperature
from ._splits import find_piece

#: Query heads of one program: the N side of the tensor core's smallest product.
HEADS_PER_PROGRAM = 8


@triton.jit
def _codes(words, COMPILED: tl.constexpr):
    """Eight float16 tensors from a tensor of 16-bit words: the code in bits 2k as ``code * 4^k * 2^-24``.

    Bits 10-15 come down by 10 first, because a float16 mantissa ends at bit 9: the powers are 0 1 2 3 4 0 1 2.
    """
    if COMPILED:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 high;
            and.b32 $0, $8, 0x00030003;
            and.b32 $1, $8, 0x000C000C;
            and.b32 $2, $8, 0x00300030;
            and.b32 $3, $8, 0x00C000C0;
            and.b32 $4, $8, 0x03000300;
            shr.u32 high, $8, 10;
            and.b32 $5, high, 0x00030003;
            and.b32 $6, high, 0x000C000C;
            and.b32 $7, high, 0x00300030;
            }
            """,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        # What the instructions above do, for the interpreter.
        out = ()
        for p in tl.static_range(8):
            low = words.to(tl.int32) >> (10 * (p // 5))
            out = out + ((low & (3 << (2 * (p % 5)))).to(tl.int16).to(tl.float16, bitcast=True),)
        return out


#: False under the Triton interpreter, which knows no inline assembly.
COMPILED = isinstance(_codes, triton.JITFunction)


@triton.jit
def _uniform(x):
    """``x``, the same in all lanes of the one warp, said so that the assembler guards no shuffle after it."""
    return tl.inline_asm_elementwise(
        "redux.sync.min.s32 $0, $1, 0xffffffff;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _fold(x):
    """Sum ``[T, H]`` to ``[8, H]``: rows 8 apart sit in one thread, so this saves registers and moves nothing."""
    return tl.sum(tl.reshape(x, [x.shape[0] // 8, 8, x.shape[1]]), 0)


@triton.jit
def _float_pair(pair):
    """Scale and zero of an 8-byte word."""
    return pair.to(tl.int32).to(tl.float32, bitcast=True), (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _halves(pair, BF16: tl.constexpr):
    """The two 16-bit floats of a word in float32, the lower one first."""
    if BF16:
        return (pair << 16).to(tl.float32, bitcast=True), (pair & -65536).to(tl.float32, bitcast=True)
    else:
        low, high = pair.to(tl.int16), (pair >> 16).to(tl.int16)
        return low.to(tl.float16, bitcast=True).to(tl.float32), high.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _scales_zeros(rows, GROUPS: tl.constexpr, PAIRED: tl.constexpr, WIDE: tl.constexpr):
    """Tuple ``(scale, zero, scale, zero, ...)`` of each token's groups; PAIRED: float32 pairs, read as 8-byte words.

    Two groups come in one 16-byte access.
    """
    out = ()
    if PAIRED and WIDE and GROUPS % 2 == 0:
        for half in tl.static_range(GROUPS // 2):
            even, odd = tl.split(tl.load(rows[:, None] + (2 * half + tl.arange(0, 2))[None, :]))
            out = out + _float_pair(even) + _float_pair(odd)
    else:
        for g in tl.static_range(GROUPS):
            if PAIRED:
                out = out + _float_pair(tl.load(rows + g))
            else:
                out = out + (tl.load(rows + 2 * g).to(tl.float32), tl.load(rows + 2 * g + 1).to(tl.float32))
    return out


@triton.jit
def decode_codes_kernel(
    Q_words, K_words, V_words, K_scales, V_scales, kv_indptr, kv_indices, Mid_o, Mid_lse,
    batch, pieces, min_piece, sm_scale, heads, group, head_tiles, tiles,
    stride_qb, stride_qh, stride_kct, stride_kch, stride_vct, stride_vch,
    stride_kst, stride_ksh, stride_vst, stride_vsh, stride_mo,
    DK: tl.constexpr, DV: tl.constexpr, GROUP_K: tl.constexpr, GROUP_V: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_B: tl.constexpr, STAGES: tl.constexpr,
    LOGIT_CAP: tl.constexpr, XAI_LEN: tl.constexpr, BF16: tl.constexpr, PAIRED: tl.constexpr, COMPILED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One piece of one request, up to BLOCK_H heads of one KV head; strides are in elements of each view.

    PDL: launched before the preceding kernel has ended, so nothing is read or written until that one has.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    QK: tl.constexpr = DK // 4
    QV: tl.constexpr = DV // 4
    # A tile is the words of one quarter that share a group; 8 of the 16 words are padding when D is 64.
    DIMS_K: tl.constexpr = GROUP_K if GROUP_K < QK else QK
    DIMS_V: tl.constexpr = GROUP_V if GROUP_V < QV else QV
    WORDS_K: tl.constexpr = 16 if DIMS_K < 32 else DIMS_K // 2
    WORDS_V: tl.constexpr = 16 if DIMS_V < 32 else DIMS_V // 2
    NUM_K: tl.constexpr = QK // DIMS_K
    NUM_V: tl.constexpr = QV // DIMS_V
    GROUPS_K: tl.constexpr = DK // GROUP_K
    GROUPS_V: tl.constexpr = DV // GROUP_V
    # The largest weight: float16 ends at 2^16, and everything down to 2^-38 of it still counts.
    HEADROOM: tl.constexpr = 126 + 14

    if PDL:
        tl.extra.cuda.gdc_wait()
    piece = tl.program_id(0) // tiles
    kv_head = ((tl.program_id(0) % tiles) // head_tiles).to(tl.int64)
    head_tile = (tl.program_id(0) % tiles) % head_tiles
    request, start, end = find_piece(kv_indptr, batch, pieces, min_piece, piece, BLOCK_T, BLOCK_B)
    if COMPILED:
        request, start, end = _uniform(request), _uniform(start), _uniform(end)
    if request >= 0:
        ek = tl.arange(0, WORDS_K)
        ev = tl.arange(0, WORDS_V)
        in_ek = ek < DIMS_K // 2
        in_ev = ev < DIMS_V // 2
        h = head_tile * BLOCK_H + tl.arange(0, BLOCK_H)
        in_h = h < group
        head = kv_head * group + h
        K_words += kv_head * stride_kch
        V_words += kv_head * stride_vch
        K_scales += kv_head * stride_ksh
        V_scales += kv_head * stride_vsh
        row = Q_words + request.to(tl.int64) * stride_qb + head[None, :] * stride_qh

        # A power of two that brings the largest |q| of a head just below 2^15. A word holds two dims.
        q_rows = ()
        biggest = tl.zeros([WORDS_K, BLOCK_H], tl.float32)
        for tile in tl.static_range(NUM_K):
            odd = ()
            for quarter in tl.static_range(4):
                word = (quarter * QK + DIMS_K * tile) // 2 + ek
                pair = tl.load(row + word[:, None], mask=in_ek[:, None] & in_h[None, :], other=0)
                low, high = _halves(pair, BF16)
                q_rows = q_rows + (low,)
                odd = odd + (high,)
                biggest = tl.maximum(biggest, tl.maximum(tl.abs(low), tl.abs(high)))
            q_rows = q_rows + odd
        exponent = tl.maximum(tl.max(biggest, 0).to(tl.int32, bitcast=True) >> 23, 20)
        raise_q = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
        q_words = ()
        for tile in tl.static_range(NUM_K):
            for p in tl.static_range(8):
                x = q_rows[tile * 8 + p] * (raise_q * (1.0 / (1 << (2 * (p % 5)))))[None, :]
                q_words = q_words + (x.to(tl.float16),)
        # What codes of one would score, with q as rounded: the zero point then takes the same error as the codes.
        q_sums = ()
        for g in tl.static_range(GROUPS_K):
            q_sum = tl.zeros([16, BLOCK_H], tl.float32)
            for tile in tl.static_range(NUM_K):
                for p in tl.static_range(8):
                    if ((p % 4) * QK + DIMS_K * tile) // GROUP_K == g:
                        ones = tl.full([16, WORDS_K], (1 << (2 * (p % 5))) * 5.9604644775390625e-08, tl.float16)
                        q_sum = tl.dot(ones, q_words[tile * 8 + p], q_sum)
            q_sums = q_sums + (tl.max(q_sum, 0),)
        scale = (sm_scale * 16777216.0) * ((exponent - 14) << 23).to(tl.float32, bitcast=True)
        factor = 1.0
        if XAI_LEN > 0:
            factor = temperature(tl.load(kv_indptr + request + 1) - tl.load(kv_indptr + request) - 1, XAI_LEN)

        acc = ()
        for _ in tl.static_range(NUM_V * 8):
            acc = acc + (tl.zeros([WORDS_V, BLOCK_H], tl.float32),)
        zero_acc = ()
        for _ in tl.static_range(GROUPS_V):
            zero_acc = zero_acc + (tl.zeros([8, BLOCK_H], tl.float32),)
        top = tl.full([BLOCK_H], float("-inf"), tl.float32)
        norm = tl.zeros([8, BLOCK_H], tl.float32)
        for at in tl.range(start, end, BLOCK_T, num_stages=STAGES):
            t = at + tl.arange(0, BLOCK_T)
            # Past the end the last token is read again: its own slot, never a foreign one.
            slot = tl.load(kv_indices + tl.minimum(t, end - 1)).to(tl.int64)
            k_codes = ()
            for tile in tl.static_range(NUM_K):
                k_row = K_words + slot[:, None] * stride_kct + (DIMS_K // 2 * tile + ek)[None, :]
                if 2 * WORDS_K == DIMS_K:
                    words = tl.load(k_row)
                else:
                    words = tl.load(k_row, mask=in_ek[None, :], other=0)
                k_codes = k_codes + (_codes(words, COMPILED),)
            k_scales = _scales_zeros(K_scales + slot * stride_kst, GROUPS_K, PAIRED, True)
            score = tl.zeros([BLOCK_T, BLOCK_H], tl.float32)
            for g in tl.static_range(GROUPS_K):
                part = tl.zeros([BLOCK_T, BLOCK_H], tl.float32)
                for tile in tl.static_range(NUM_K):
                    for p in tl.static_range(8):
                        if ((p % 4) * QK + DIMS_K * tile) // GROUP_K == g:
                            part = tl.dot(k_codes[tile][p], q_words[tile * 8 + p], part)
                score += k_scales[2 * g][:, None] * (part - k_scales[2 * g + 1][:, None] * q_sums[g][None, :])
            if LOGIT_CAP > 0:
                score = soft_cap(score * scale[None, :], LOGIT_CAP) * (factor * LOG2E)
            else:
                score = score * (scale * (factor * LOG2E))[None, :]
            score = tl.where((t < end)[:, None], score, float("-inf"))

            v_scales = _scales_zeros(V_scales + slot * stride_vst, GROUPS_V, PAIRED, False)
            largest = v_scales[0]
            for g in tl.static_range(1, GROUPS_V):
                largest = tl.maximum(largest, v_scales[2 * g])
            # The biased exponent stands for log2: the running maximum only has to bound the weights.
            bound = score + (largest.to(tl.int32, bitcast=True) >> 23).to(tl.float32)[:, None]
            new_top = tl.maximum(top, tl.max(bound, 0) - HEADROOM)
            alpha = tl.exp2(top - new_top)[None, :]
            weight = tl.exp2(score - new_top[None, :])
            norm = norm * alpha + _fold(weight)
            top = new_top

            v_codes = ()
            for tile in tl.static_range(NUM_V):
                v_row = V_words + slot[None, :] * stride_vct + (DIMS_V // 2 * tile + ev)[:, None]
                if 2 * WORDS_V == DIMS_V:
                    words = tl.load(v_row)
                else:
                    words = tl.load(v_row, mask=in_ev[:, None], other=0)
                v_codes = v_codes + (_codes(words, COMPILED),)
            weights = ()
            new_zero_acc = ()
            for g in tl.static_range(GROUPS_V):
                scaled = weight * v_scales[2 * g][:, None]
                new_zero_acc = new_zero_acc + (zero_acc[g] * alpha + _fold(scaled * v_scales[2 * g + 1][:, None]),)
                weights = weights + (scaled.to(tl.float16),)
            new_acc = ()
            for tile in tl.static_range(NUM_V):
                for p in tl.static_range(8):
                    kept = acc[tile * 8 + p] * alpha
                    new_acc = new_acc + (
                        tl.dot(v_codes[tile][p], weights[((p % 4) * QV + DIMS_V * tile) // GROUP_V], kept),
                    )
            acc = new_acc
            zero_acc = new_zero_acc

        if PDL:
            # The merge may start: its prologue overlaps what is left here, and then it waits for all of this grid.
            tl.extra.cuda.gdc_launch_dependents()
        # No division: its slow path is a call, for which registers are spilled.
        total = tl.log2(tl.sum(norm, 0))
        inverse = tl.exp2(-total)
        d = tl.arange(0, 2 * WORDS_V)
        out = Mid_o + piece.to(tl.int64) * stride_mo + head[:, None] * DV + d[None, :]
        in_o = in_h[:, None] & (d < DIMS_V)[None, :]
        for tile in tl.static_range(NUM_V):
            for quarter in tl.static_range(4):
                zero = tl.sum(zero_acc[(quarter * QV + DIMS_V * tile) // GROUP_V], 0)[None, :]
                low = acc[tile * 8 + quarter] * (16777216.0 / (1 << (2 * quarter))) - zero
                high = acc[tile * 8 + quarter + 4] * (16777216.0 / (1 << (2 * ((quarter + 4) % 5)))) - zero
                both = tl.join(low * inverse[None, :], high * inverse[None, :])
                value = tl.reshape(tl.permute(both, (1, 0, 2)), [BLOCK_H, 2 * WORDS_V])
                tl.store(out + quarter * QV + DIMS_V * tile, value, mask=in_o)
        tl.store(Mid_lse + head * (pieces + batch) + piece, top + total, mask=in_h)
