# SPDX-License-Identifier: Apache-2.0
"""Rotate heads by an orthogonal matrix, shared or one per KV head: ``x @ R`` before attention, ``x @ R^T`` after it."""

from __future__ import annotations

import torch


def rotate(x, R, kv_group_num: int = 1):
    """Return ``x @ R`` for x ``[tokens, heads, D]``; R is ``[D, D]`` or ``[kv_heads, D, D]``.

    A per-head R serves ``kv_group_num`` consecutive query heads each. The product is taken in R's dtype and rounded to
    x's; the result is contiguous. Raises ValueError when R does not fit x.
    """
    return _apply(x, R, kv_group_num, inverse=False)


def rotate_inverse(x, R, kv_group_num: int = 1):
    """Return ``x @ R^T``, the inverse of :func:`rotate` for an orthogonal R; same shapes and dtypes."""
    return _apply(x, R, kv_group_num, inverse=True)


def _apply(x, R, kv_group_num, inverse):
    tokens, heads, D = x.shape
    if R.shape[-2:] != (D, D) or R.dim() not in (2, 3) or (R.dim() == 3 and R.shape[0] * kv_group_num != heads):
        raise ValueError(f"R {list(R.shape)} does not fit {heads} heads of {D} dims in groups of {kv_group_num}")
    matrix = R.transpose(-1, -2) if inverse else R
    if R.dim() == 2:
        return torch.matmul(x.to(R.dtype).reshape(tokens * heads, D), matrix).to(x.dtype).reshape(tokens, heads, D)
    grouped = x.to(R.dtype).reshape(tokens, R.shape[0], kv_group_num, D)
    rows = grouped.permute(1, 0, 2, 3).reshape(R.shape[0], tokens * kv_group_num, D)
    rotated = torch.bmm(rows, matrix).reshape(R.shape[0], tokens, kv_group_num, D)
    return rotated.permute(1, 0, 2, 3).reshape(tokens, heads, D).to(x.dtype).contiguous()
