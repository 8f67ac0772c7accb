"""INT2 pools of the real classes, with rotation files of random orthogonal matrices."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MHATokenToKVPool

DTYPES = {"float16": torch.float16, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Shape:
    """The attention of one model on one rank: heads, sizes, layers and how its cache is quantised."""

    q_heads: int
    kv_heads: int
    head_dim: int
    group_size: int | None
    layers: tuple[int, ...]
    hybrid: bool
    dtype: torch.dtype
    per_head: bool = False
    clip: tuple[float, float] = (0.0, 0.0)
    slots: int = 512
    packed: bool = True

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Shape:
        """Return the shape of a case as the tests write it."""
        fields = {name: spec[name] for name in cls.__dataclass_fields__ if name in spec}
        fields["layers"] = tuple(spec["layers"])
        fields["clip"] = tuple(spec.get("clip", (0.0, 0.0)))
        return cls(**{**fields, "dtype": DTYPES[spec["dtype"]]})

    @property
    def groups(self) -> int:
        """Return the quantisation groups of one head row."""
        return self.head_dim // (self.group_size or self.head_dim)


def orthogonal(shape: Shape, seed: int) -> torch.Tensor:
    """Return a random orthogonal ``[D, D]``, or one for each KV head, float32."""
    generator = torch.Generator().manual_seed(seed)
    count = shape.kv_heads if shape.per_head else 1
    gaussian = torch.randn(count, shape.head_dim, shape.head_dim, generator=generator, dtype=torch.float64)
    q = torch.linalg.qr(gaussian).Q.float()
    return q if shape.per_head else q[0]


def write_rotations(shape: Shape, folder: Path) -> dict[str, dict[int, torch.Tensor]]:
    """Write K and V rotation files, set the SGLANG_OSCAR_* variables and return the matrices by side and layer."""
    rotations = {
        side: {layer: orthogonal(shape, 1000 * (side == "V") + layer) for layer in shape.layers} for side in "KV"
    }
    for side, ratio in zip("KV", shape.clip, strict=True):
        path = folder / f"{side.lower()}.pt"
        torch.save({"layers": {layer: {"rotation": R} for layer, R in rotations[side].items()}}, path)
        os.environ[f"SGLANG_OSCAR_{side}_ROTATION_PATH"] = str(path)
        os.environ[f"SGLANG_OSCAR_{side}_CLIP_RATIO"] = str(ratio)
    return rotations


def build(shape: Shape, device: str) -> Any:
    """Return the pool that a server would make for ``shape``: plain, or hybrid with global layer ids."""
    int2 = {"model_dtype": shape.dtype, "kv_cache_quant_group_size": shape.group_size} if shape.packed else {}
    common = dict(
        size=shape.slots,
        page_size=1,
        dtype="int2" if shape.packed else shape.dtype,
        head_num=shape.kv_heads,
        head_dim=shape.head_dim,
        device=device,
        enable_memory_saver=False,
        **int2,
    )
    if not shape.hybrid:
        return MHATokenToKVPool(**common, layer_num=len(shape.layers), start_layer=shape.layers[0])
    older = {"enable_kvcache_transpose": False}
    known = inspect.signature(HybridLinearKVPool).parameters
    return HybridLinearKVPool(
        **common,
        full_attention_layer_ids=list(shape.layers),
        mamba_pool=None,
        **{name: value for name, value in older.items() if name in known},
    )


def inner(pool: Any) -> Any:
    """Return the pool that holds the buffers."""
    return getattr(pool, "full_kv_pool", pool)


def poison(pool: Any) -> None:
    """Fill every slot with codes and NaN scales, so that a read of a slot that was never written shows."""
    for buffers in (inner(pool).k_buffer, inner(pool).v_buffer):
        for x in buffers:
            x.fill_(0b11100100)
    for buffers in (inner(pool).k_scales_zeros, inner(pool).v_scales_zeros):
        for x in buffers:
            x.fill_(float("nan"))
