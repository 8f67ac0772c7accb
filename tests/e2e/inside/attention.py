"""Run attention layers of the merged tree over an INT2 pool and measure them against fp64.

``main`` takes ``{name: case}``; a case is a shape (see ``pools.Shape``), ``env`` and ``steps``, each step being
``[mode, [[request, new tokens], ...]]`` with mode ``extend``, ``mixed``, ``decode`` or ``graph`` (decode, replayed), or
``["share", [to, from, tokens]]`` which gives a request the cached prefix of another. The answer holds, per case, the
worst error of each step relative to the largest expected value, the worst distance of a stored row in quantisation
steps, and the seconds that it took.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from inside import expected, graphs, pools, serving
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

REQUESTS = 16
MODES = {"extend": ForwardMode.EXTEND, "mixed": ForwardMode.MIXED, "decode": ForwardMode.DECODE}


class Model:
    """The attention layers of one shape, their pool and backend, and which slots each request holds."""

    def __init__(self, shape: pools.Shape, folder: Path, device: str) -> None:
        self.shape, self.device = shape, device
        self.rotations = pools.write_rotations(shape, folder)
        self.pool = pools.build(shape, device)
        if shape.packed:
            pools.poison(self.pool)
        self.requests = ReqToTokenPool(REQUESTS + 1, shape.slots, device, enable_memory_saver=False)
        self.backend = TritonAttnBackend(serving.model_runner(shape, self.pool, self.requests, device))
        scaling = shape.head_dim**-0.5
        heads, D, kv = shape.q_heads, shape.head_dim, shape.kv_heads
        self.layers = [RadixAttention(heads, D, scaling, num_kv_heads=kv, layer_id=layer) for layer in shape.layers]
        self.generator = torch.Generator().manual_seed(0)
        order = torch.randperm(shape.slots, generator=self.generator) + 1
        self.free = order.tolist()
        self.held: dict[str, list[int]] = {}
        self.rows: dict[str, int] = {}
        self.graphs: dict[int, Any] = {}

    def row_of(self, request: str) -> int:
        """Return the request's row of the request pool; row 0 is padding in newer releases."""
        return self.rows.setdefault(request, len(self.rows) + 1)

    def share(self, to: str, source: str, tokens: int) -> None:
        """Let ``to`` begin with the cached prefix of ``source``."""
        self.held[to] = self.held[source][:tokens]
        self.requests.req_to_token[self.row_of(to), :tokens] = torch.tensor(self.held[to], dtype=torch.int32)

    def batch(self, mode: str, rows: list[list[Any]]) -> ForwardBatch:
        """Take slots for the new tokens and return the batch as the scheduler would hand it over."""
        prefixes = [len(self.held.get(name, [])) for name, _ in rows]
        taken: list[int] = []
        for (name, new), prefix in zip(rows, prefixes, strict=True):
            slots = [self.free.pop() for _ in range(new)]
            self.held[name] = self.held.get(name, []) + slots
            self.requests.req_to_token[self.row_of(name), prefix : prefix + new] = torch.tensor(
                slots, dtype=torch.int32
            )
            taken += slots
        return self._forward_batch(mode, [name for name, _ in rows], prefixes, [new for _, new in rows], taken)

    def _forward_batch(
        self, mode: str, names: list[str], prefixes: list[int], new: list[int], taken: list[int]
    ) -> ForwardBatch:
        lengths = [p + n for p, n in zip(prefixes, new, strict=True)]
        batch = ForwardBatch(
            forward_mode=MODES[mode],
            batch_size=len(names),
            input_ids=torch.zeros(sum(new), dtype=torch.int64, device=self.device),
            req_pool_indices=torch.tensor([self.row_of(name) for name in names], device=self.device),
            seq_lens=torch.tensor(lengths, device=self.device),
            out_cache_loc=torch.tensor(taken, dtype=torch.int64, device=self.device),
            seq_lens_sum=sum(lengths),
            seq_lens_cpu=torch.tensor(lengths),
        )
        batch.req_to_token_pool, batch.token_to_kv_pool, batch.attn_backend = self.requests, self.pool, self.backend
        if mode != "decode":
            batch.extend_num_tokens = sum(new)
            batch.extend_seq_lens = torch.tensor(new, dtype=torch.int32, device=self.device)
            batch.extend_prefix_lens = torch.tensor(prefixes, dtype=torch.int32, device=self.device)
            batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu = new, prefixes
        return batch

    def random(self, heads: int, tokens: int) -> torch.Tensor:
        """Return ``[tokens, heads * D]`` in the model's dtype, off-centre so that zero points matter."""
        values = torch.randn(tokens, heads, self.shape.head_dim, generator=self.generator)
        offset = torch.randn(1, heads, self.shape.head_dim, generator=self.generator)
        return (values + 0.5 * offset).flatten(1).to(self.shape.dtype).to(self.device)


def main(cases: dict[str, Any]) -> dict[str, Any]:
    """Measure every case."""
    serving.initialise()
    return {name: _measure(case) for name, case in cases.items()}


def _measure(case: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    with mock.patch.dict(os.environ, case.get("env", {})), tempfile.TemporaryDirectory() as folder:
        model = Model(pools.Shape.of(case), Path(folder), serving.device())
        outputs, stored = [], []
        for kind, rows in case["steps"]:
            if kind == "share":
                model.share(*rows)
                continue
            output, store = _step(model, kind, rows)
            outputs.append(output)
            stored.append(store)
    return {"outputs": outputs, "stored": max(stored), "seconds": time.monotonic() - started}


def _step(model: Model, mode: str, rows: list[list[Any]]) -> tuple[float, float]:
    tokens = sum(new for _, new in rows)
    batch = model.batch("decode" if mode == "graph" else mode, rows)
    heads = (model.shape.q_heads, model.shape.kv_heads, model.shape.kv_heads)
    inputs = [tuple(model.random(count, tokens) for count in heads) for _ in model.layers]
    # Prefix rows as they stand before the layers run: nothing must disturb them.
    prefixes = [{name: _cached(model, x.layer_id, model.held[name][:-new]) for name, new in rows} for x in model.layers]
    outputs = graphs.replayed(model, batch, inputs) if mode == "graph" else _eager(model, batch, inputs)
    fresh = mode in ("extend", "mixed")
    worst = [
        _layer_errors(model, layer, rows, (*given, out), prefix, fresh)
        for layer, given, out, prefix in zip(model.layers, inputs, outputs, prefixes, strict=True)
    ]
    return max(w[0] for w in worst), max(w[1] for w in worst)


def _eager(model: Model, batch: ForwardBatch, inputs: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    model.backend.init_forward_metadata(batch)
    with serving.forward_context(model.backend):
        given = zip(model.layers, inputs, strict=True)
        return [layer(*(x.clone() for x in tensors), batch) for layer, tensors in given]


def _layer_errors(
    model: Model,
    layer: RadixAttention,
    rows: list[list[Any]],
    tensors: tuple[torch.Tensor, ...],
    prefix: dict[str, tuple[torch.Tensor, torch.Tensor]],
    fresh: bool,
) -> tuple[float, float]:
    """Compare one layer's output and stored rows; ``fresh``: new rows are attended as they came, not as stored."""
    heads = [x.cpu().view(x.shape[0], -1, model.shape.head_dim) for x in tensors]
    worst = largest = store = 0.0
    start = 0
    for name, new in rows:
        q_new, k_new, v_new, got = (x[start : start + new] for x in heads)
        start += new
        stored = _cached(model, layer.layer_id, model.held[name][-new:])
        store = max(store, _store_error(model, layer.layer_id, (k_new, v_new), stored))
        attended = (k_new.double(), v_new.double()) if fresh else stored
        keys, values = (torch.cat([old, new]) for old, new in zip(prefix[name], attended, strict=True))
        want = expected.attention(q_new, keys, values, layer.scaling)
        error = (got.double() - want).abs().max()
        worst = max(worst, float(error) if torch.isfinite(error) else float("inf"))
        largest = max(largest, float(want.abs().max()))
    return worst / largest, store


def _cached(model: Model, layer_id: int, slots: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V ``[tokens, kv_heads, D]`` of ``slots`` as the cache holds them, in the model's basis, fp64."""
    pool, index = pools.inner(model.pool), model.shape.layers.index(layer_id)
    rows = torch.tensor(slots, dtype=torch.int64)
    found = []
    for side, codes, scales in (("K", pool.k_buffer, pool.k_scales_zeros), ("V", pool.v_buffer, pool.v_scales_zeros)):
        values = expected.dequantised(codes[index].cpu()[rows], scales[index].cpu()[rows])
        found.append(expected.rotated(values, model.rotations[side][layer_id], back=True))
    return found[0], found[1]


def _store_error(
    model: Model, layer_id: int, given: tuple[torch.Tensor, ...], stored: tuple[torch.Tensor, torch.Tensor]
) -> float:
    """Return the worst distance in steps between stored rows and the given ones, rotated and clipped in fp64."""
    worst = 0.0
    for side, ratio, rows, held in zip("KV", model.shape.clip, given, stored, strict=True):
        R = model.rotations[side][layer_id]
        wanted = expected.clipped(expected.rotated(rows, R), ratio)
        distance = expected.store_error(wanted, expected.rotated(held, R), model.shape.groups)
        worst = max(worst, distance if distance == distance else float("inf"))
    return worst
