"""Run attention layers over a pool of the model's own dtype and return digests: what int2 must leave as it was.

``main`` takes a case as ``attention`` does and returns the SHA-256 of every step's outputs and of the pool at the end.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from inside import attention, pools, serving


def main(case: dict[str, Any]) -> list[str]:
    """Run the steps of ``case`` on any tree, merged or not."""
    serving.initialise()
    digests = []
    with tempfile.TemporaryDirectory() as folder:
        model = attention.Model(pools.Shape.of({**case, "packed": False}), Path(folder), serving.device())
        for kind, rows in case["steps"]:
            if kind == "share":
                model.share(*rows)
                continue
            batch = model.batch(kind, rows)
            tokens = sum(new for _, new in rows)
            heads = (model.shape.q_heads, model.shape.kv_heads, model.shape.kv_heads)
            inputs = [tuple(model.random(count, tokens) for count in heads) for _ in model.layers]
            digests.append(_digest(attention._eager(model, batch, inputs)))
    held = pools.inner(model.pool)
    return [*digests, _digest([*held.k_buffer, *held.v_buffer])]


def _digest(tensors: list[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for x in tensors:
        digest.update(x.contiguous().numpy().tobytes())
    return digest.hexdigest()
