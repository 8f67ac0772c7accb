# SPDX-License-Identifier: Apache-2.0
"""What happens to a score between the dot product and the softmax, shared by decode and prefill."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def soft_cap(score, LOGIT_CAP: tl.constexpr):
    """``cap * tanh(score / cap)``; exact at both ends, where the exponential is 0 or inf."""
    return LOGIT_CAP * (1.0 - 2.0 / (tl.exp2(score * (2.8853900817779268 / LOGIT_CAP)) + 1.0))


@triton.jit
def temperature(position, LENGTH: tl.constexpr):
    """xAI's factor of a query at 0-based ``position``: ``log(position) / log(LENGTH)`` past LENGTH, else 1."""
    factor = tl.log2(tl.maximum(position, 1).to(tl.float32)) / tl.log2(LENGTH + 0.0)
    return tl.where(position > LENGTH, factor, 1.0)
