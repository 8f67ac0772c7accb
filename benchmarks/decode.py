"""Decode: ours, the OSCAR authors' kernel and a bf16 Triton kernel over the same requests."""

from dataclasses import dataclass

import torch
from timing import graph_time_us

from escha_oscar import kernels
from escha_oscar.kernels import reference

D = 256
SPLITS = (8, 16, 32, 64, 128, 256)
#: Inputs rotate until they are several times the 60 MB level-2 cache.
ROTATE_BYTES = 256 << 20


@dataclass(frozen=True)
class Model:
    name: str
    heads: int
    kv_heads: int
    group_size: int

    @property
    def token_bytes(self):
        """Bytes that one cached token costs a decode step: codes, scales and zeros of K and V, and its slot index."""
        return self.kv_heads * 2 * (D // 4 + 8 * D // self.group_size) + 8


DENSE, MOE = Model("dense", 12, 2, 64), Model("moe", 8, 1, 32)
SHAPES = [
    (DENSE, 1, 8192), (DENSE, 1, 32768), (DENSE, 1, 131072), (DENSE, 1, 262144), (DENSE, 8, 32768),
    (DENSE, 16, 8192), (DENSE, 16, 32768),
    (MOE, 1, 8192), (MOE, 1, 32768), (MOE, 1, 131072), (MOE, 1, 262144), (MOE, 8, 32768), (MOE, 16, 8192),
    (MOE, 16, 32768),
]  # fmt: skip


class Cache:
    """An INT2 pool holding every token of the batch once, plus the queries."""

    def __init__(self, model, batch, length, scattered):
        n, self.model, self.length = batch * length, model, length
        new = {"device": "cuda"}
        self.k_codes = torch.empty(n, model.kv_heads, D // 4, dtype=torch.uint8, **new)
        self.v_codes = torch.empty_like(self.k_codes)
        self.k_scales = torch.empty(n, model.kv_heads, 2 * D // model.group_size, **new)
        self.v_scales = torch.empty_like(self.k_scales)
        for first in range(0, n, 65536):
            loc = torch.arange(first, min(n, first + 65536), **new)
            k, v = torch.randn(2, len(loc), model.kv_heads, D, dtype=torch.bfloat16, **new)
            kernels.store_kv(k, v, loc, self.k_codes, self.v_codes, self.k_scales, self.v_scales)
        self.q = torch.randn(batch, model.heads, D, dtype=torch.bfloat16, **new)
        self.o = torch.empty_like(self.q)
        self.indptr = torch.arange(0, n + 1, length, dtype=torch.int32, **new)
        self.indices = torch.randperm(n, **new) if scattered else torch.arange(n, **new)

    def scratch(self, splits):
        batch, heads = self.q.shape[:2]
        shape = (batch, heads, splits)
        return (
            torch.full((*shape, D), float("nan"), device="cuda"), torch.full(shape, float("nan"), device="cuda"),
            torch.full((batch,), splits, dtype=torch.int32, device="cuda"), splits,
        )  # fmt: skip

    def dense(self):
        every = torch.arange(self.k_codes.shape[0], device="cuda")
        make = kernels.dequantize
        return (
            make(self.k_codes, self.k_scales, every, head_dim=D, dtype=torch.bfloat16),
            make(self.v_codes, self.v_scales, every, head_dim=D, dtype=torch.bfloat16),
        )

    def int2_call(self, function, splits):
        logits, lse, counts, most = self.scratch(splits)
        return lambda: function(
            self.q, self.k_codes, self.v_codes, self.k_scales, self.v_scales, self.o, self.indptr, self.indices,
            logits, lse, counts, most, D**-0.5, "int2",
        )  # fmt: skip

    def bf16_call(self, function, splits, dense):
        logits, lse, counts, most = self.scratch(splits)
        return lambda: function(self.q, *dense, self.o, self.indptr, self.indices, logits, lse, counts, most, D**-0.5)

    def error(self):
        """Relative error of ``o`` against float64, over at most two requests."""
        few = min(2, len(self.indptr) - 1)
        expected, _ = reference.decode_attention(
            self.q[:few], self.k_codes, self.v_codes, self.k_scales, self.v_scales, self.indptr, self.indices, D**-0.5
        )
        return float((self.o[:few].double() - expected).norm() / expected.norm())


def caches(model, batch, length, scattered=False):
    """Enough equal caches to outrun the level-2 cache."""
    count = max(1, min(24, -(-ROTATE_BYTES // (batch * length * model.token_bytes))))
    return [Cache(model, batch, length, scattered) for _ in range(count)]


def ours(sets):
    """Microseconds and error of our kernel, given the scratch that sglang allocates by default (8 splits)."""
    calls = [cache.int2_call(kernels.decode_attention_fwd_quantized, 8) for cache in sets]
    time = graph_time_us(calls)
    return time, sets[0].error()


def best(make_call, sets):
    """``(microseconds, splits)`` of a peer at its best split count, and its time at 8 splits."""
    times = {splits: graph_time_us([make_call(cache, splits) for cache in sets]) for splits in SPLITS}
    splits = min(times, key=times.get)
    return times[splits], splits, times[8]


def row(model, batch, length, bandwidth, peer, stock):
    """One line of the table as a dict."""
    sets = caches(model, batch, length)
    floor = batch * length * model.token_bytes / bandwidth * 1e6
    time, error = ours(sets)
    result = {
        "model": model.name, "batch": batch, "length": length, "floor_us": floor, "ours_us": time,
        "bandwidth_share": floor / time, "rel_error": error,
    }  # fmt: skip
    if peer is not None:
        function = peer.decode_attention_fwd_quantized
        us, splits, at_8 = best(lambda cache, n: cache.int2_call(function, n), sets)
        result |= {
            "authors_us": us,
            "authors_splits": splits,
            "authors_8_splits_us": at_8,
            "authors_rel_error": sets[0].error(),
        }
    if stock is not None:
        # Four times the bytes of a cache: as many sets as outrun the level-2 cache, no more.
        few = sets[: max(1, len(sets) // 4)]
        dense = {id(cache): cache.dense() for cache in few}
        function = stock.decode_attention_fwd
        us, splits, _ = best(lambda cache, n: cache.bf16_call(function, n, dense[id(cache)]), few)
        result |= {"bf16_us": us, "bf16_splits": splits}
    return result
