"""What attention over an INT2 cache must give, in fp64 and without any of the tool's code."""

from __future__ import annotations

import torch


def unpacked(codes: torch.Tensor) -> torch.Tensor:
    """Return codes 0..3 ``[..., D]`` of packed bytes ``[..., D/4]``: byte j holds dims j, j+D/4, j+D/2, j+3D/4."""
    return torch.cat([(codes >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-1).double()


def dequantised(codes: torch.Tensor, scales_zeros: torch.Tensor) -> torch.Tensor:
    """Return rows ``[..., D]`` in the rotated basis: ``(code - zero) * scale``, scale and zero interleaved by group."""
    values = unpacked(codes)
    groups = scales_zeros.shape[-1] // 2
    pairs = scales_zeros.double().unflatten(-1, (groups, 2))
    grouped = values.unflatten(-1, (groups, -1))
    return ((grouped - pairs[..., 1:]) * pairs[..., :1]).flatten(-2)


def rotated(rows: torch.Tensor, R: torch.Tensor, *, back: bool = False) -> torch.Tensor:
    """Return ``rows [tokens, kv_heads, D] @ R`` (or ``R^T``), R being ``[D, D]`` or ``[kv_heads, D, D]``."""
    matrices = R.double().expand(rows.shape[1], *R.shape[-2:])
    return torch.einsum("thd,hed->the" if back else "thd,hde->the", rows.double(), matrices)


def clipped(rows: torch.Tensor, ratio: float) -> torch.Tensor:
    """Clamp each row ``[..., D]`` to the element of its sorted magnitudes at ``int(ratio * D)``; 0 clamps nothing."""
    if ratio == 0:
        return rows
    D = rows.shape[-1]
    limit = rows.abs().sort(dim=-1).values[..., min(int(ratio * D), D - 1), None]
    return rows.clamp(-limit, limit)


def store_error(rows: torch.Tensor, stored: torch.Tensor, groups: int) -> float:
    """Return the worst distance of ``stored`` from ``rows`` (both rotated, ``[..., D]``) in quantisation steps."""
    grouped = rows.unflatten(-1, (groups, -1))
    step = (grouped.amax(-1, keepdim=True) - grouped.amin(-1, keepdim=True)) / 3
    return float(((stored.unflatten(-1, (groups, -1)) - grouped).abs() / step).max())


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Attend the last ``q.shape[0]`` positions causally; q ``[new, Hq, D]``, k and v ``[all, Hkv, D]``."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.double(), k) * scale
    new, total = q.shape[0], k.shape[0]
    late = torch.arange(total) > torch.arange(total - new, total)[:, None]
    weights = scores.masked_fill(late, float("-inf")).softmax(dim=-1)
    return torch.einsum("hnm,mhd->nhd", weights, v)
