# SPDX-License-Identifier: Apache-2.0
"""INT2 KV cache kernels: store, dequantise, decode attention, extend attention. Needs torch and triton only.

The cache layout is described in ``layout`` (plain Python); every kernel has its twin in ``reference`` (plain
torch). Attention takes rotated queries, ``rotate(q, R_k, kv_group_num)``, and returns rotated outputs,
``rotate_inverse(o, R_v, kv_group_num)``. Names are loaded at first use, so that the layout can be read without torch.
"""

import importlib

_HOMES = {
    "decode_attention_fwd_quantized": "decode",
    "dequantize": "dequant",
    "extend_attention": "prefill",
    "resolve_grouping": "layout",
    "rotate": "rotation",
    "rotate_inverse": "rotation",
    "store_kv": "store",
}

__all__ = [
    "decode_attention_fwd_quantized",
    "dequantize",
    "extend_attention",
    "resolve_grouping",
    "rotate",
    "rotate_inverse",
    "store_kv",
]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
