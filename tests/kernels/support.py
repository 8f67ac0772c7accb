"""Pools, rotations and tolerances shared by the kernel tests, on CPU (interpreter) and GPU alike."""

import math
from dataclasses import dataclass

import torch

from escha_oscar.kernels import reference

#: Absolute tolerance for values of order one, by dtype: a few units in the last place of the result.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
NAN = float("nan")


def orthogonal(*shape, seed=0, device="cpu"):
    """Random rotation matrices ``[..., D, D]``; not symmetric, so that a transpose cannot hide."""
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(*shape, generator=generator, dtype=torch.float64))
    return q.float().to(device)


def assert_close(actual, expected, dtype=None, scale=1.0):
    """Compare in float64 with the tolerance of ``dtype`` (of ``actual`` when not given) times ``scale``."""
    assert actual.isfinite().all()
    limit = TOLERANCE[dtype or actual.dtype] * scale
    worst = float((actual.double() - expected.double().to(actual.device)).abs().max()) if actual.numel() else 0.0
    assert worst <= limit, f"off by {worst:.3g}, allowed {limit:.3g}"


@dataclass
class Pool:
    """An INT2 cache whose unowned slots are poisoned: NaN scales, arbitrary codes."""

    k_codes: torch.Tensor
    v_codes: torch.Tensor
    k_scales: torch.Tensor
    v_scales: torch.Tensor
    owned: torch.Tensor

    @property
    def buffers(self):
        return self.k_codes, self.v_codes, self.k_scales, self.v_scales


def strided(shape, dtype, padding, fill, device="cpu"):
    """A tensor of ``shape`` whose first dimension is ``padding`` elements apart from compact."""
    slots, *rest = shape
    width = math.prod(rest)
    backing = torch.full((slots, width + padding), fill, dtype=dtype, device=device)
    strides = (width + padding, rest[1], 1)
    return backing.as_strided(shape, strides)


def make_pool(
    tokens, kv_heads, head_dim, group_size, *, v_head_dim=None, v_group_size=None, scales=torch.float32, padding=0,
    k=None, v=None, device="cpu", seed=0,
):  # fmt: skip
    """A pool of twice ``tokens`` slots with ``tokens`` of them, scattered, holding quantised random rows (or k, v)."""
    generator = torch.Generator().manual_seed(seed)
    v_head_dim, v_group_size = v_head_dim or head_dim, v_group_size or group_size
    slots = 2 * tokens + 3
    owned = (1 + torch.randperm(slots - 1, generator=generator))[:tokens]
    buffers = []
    for dims, group, rows in ((head_dim, group_size, k), (v_head_dim, v_group_size, v)):
        rows = torch.randn(tokens, kv_heads, dims, generator=generator) + 0.3 if rows is None else rows
        packed, sz = reference.quantize(rows, group)
        codes = strided((slots, kv_heads, dims // 4), torch.uint8, padding, 0)
        codes.copy_(torch.randint(0, 256, codes.shape, generator=generator, dtype=torch.uint8))
        scale_rows = strided((slots, kv_heads, sz.shape[-1]), scales, padding, NAN)
        codes[owned] = packed
        scale_rows[owned] = sz.to(scales)
        buffers += [(codes, scale_rows)]
    (k_codes, k_scales), (v_codes, v_scales) = buffers
    moved = [_to(t, device) for t in (k_codes, v_codes, k_scales, v_scales)]
    return Pool(*moved, owned.to(device))


def _to(tensor, device):
    if device == "cpu":
        return tensor
    target = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return target.copy_(tensor)


def indptr(lengths, dtype=torch.int32, device="cpu"):
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype).to(device)


def scattered(pool, lengths, seed=1, dtype=torch.int64):
    """Slot indices of requests of ``lengths``, drawn from the pool's owned slots in no order."""
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(0, len(pool.owned), (sum(lengths),), generator=generator).to(pool.owned.device)
    return pool.owned[picks].to(dtype)


def scratch(batch, heads, splits, dims, device="cpu"):
    """The four split arguments of the decode entry point, poisoned."""
    logits = torch.full((batch, heads, splits, dims), NAN, device=device)
    lse = torch.full((batch, heads, splits), NAN, device=device)
    return logits, lse, torch.full((batch,), splits, dtype=torch.int32, device=device), splits
