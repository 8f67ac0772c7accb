"""Prefill: time and transient memory of the streamed extend attention against dequantise + flash SDPA."""

import torch
from decode import DENSE, MOE, Cache, D
from timing import eager_time_us, peak_bytes
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from escha_oscar import kernels

NEW = 2048
PREFIXES = (49152, 196608)


class Extend:
    """One request of NEW tokens over an INT2 prefix."""

    def __init__(self, model, prefix):
        self.model, self.prefix, self.cache = model, prefix, Cache(model, 1, prefix, scattered=False)
        self.q = torch.randn(NEW, model.heads, D, dtype=torch.bfloat16, device="cuda")
        self.k, self.v = torch.randn(2, NEW, model.kv_heads, D, dtype=torch.bfloat16, device="cuda")
        self.o = torch.empty_like(self.q)
        self.qo = torch.tensor([0, NEW], dtype=torch.int32, device="cuda")

    def ours(self):
        c = self.cache
        kernels.extend_attention(
            self.q, self.k, self.v, self.o, c.k_codes, c.v_codes, c.k_scales, c.v_scales, self.qo, c.indptr, c.indices,
            max_len_extend=NEW, sm_scale=D**-0.5,
        )  # fmt: skip

    def dense(self):
        """One buffer of prefix and new tokens for each of K and V, then flash attention over it: P + E rows."""
        c, shape = self.cache, (self.prefix + NEW, self.model.kv_heads, D)
        both = []
        for codes, scales, new in ((c.k_codes, c.k_scales, self.k), (c.v_codes, c.v_scales, self.v)):
            full = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
            kernels.dequantize(codes, scales, c.indices, head_dim=D, dtype=full.dtype, out=full[: self.prefix])
            full[self.prefix :] = new
            both.append(full.transpose(0, 1)[None])
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(
                self.q.transpose(0, 1)[None], *both, attn_mask=causal_lower_right(NEW, shape[0]), enable_gqa=True
            )


def row(model, prefix):
    """One line of the table as a dict: times in microseconds, memory in bytes beyond the output."""
    work = Extend(model, prefix)
    work.ours()
    expected = work.dense()[0].transpose(0, 1).double()
    error = float((work.o.double() - expected).norm() / expected.norm())
    both = 2 * (prefix + NEW) * model.kv_heads * D * 2
    return {
        "model": model.name, "prefix": prefix, "new": NEW, "ours_us": eager_time_us(work.ours),
        "dense_us": eager_time_us(work.dense), "ours_transient": peak_bytes(work.ours),
        "dense_transient": peak_bytes(work.dense) - work.o.nbytes, "combined_bytes": both, "rel_difference": error,
    }  # fmt: skip


def rows():
    return [row(model, prefix) for model in (DENSE, MOE) for prefix in PREFIXES]
