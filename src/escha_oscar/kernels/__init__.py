# SPDX-License-Identifier: Apache-2.0
"""INT2 KV cache kernels: store, dequantise, decode attention, extend attention. Needs torch and triton only.

The cache layout is described in ``layout``; every kernel has its plain-torch twin in ``reference``. Attention takes
rotated queries (``rotate(q, R_k, kv_group_num)``) and returns rotated outputs (``rotate_inverse(o, R_v, kv_group_num)``).
"""

from .decode import decode_attention_fwd_quantized
from .dequant import dequantize
from .layout import resolve_grouping
from .prefill import extend_attention
from .rotate import rotate, rotate_inverse
from .store import store_kv

__all__ = [
    "decode_attention_fwd_quantized",
    "dequantize",
    "extend_attention",
    "resolve_grouping",
    "rotate",
    "rotate_inverse",
    "store_kv",
]
