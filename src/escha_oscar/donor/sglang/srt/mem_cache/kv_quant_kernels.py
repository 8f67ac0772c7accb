# SPDX-License-Identifier: Apache-2.0
"""INT2 store and dequantise under the names that others import; the kernels are those of ``oscar_int2``."""

import torch


def _get_num_scale_groups(scales_zeros: torch.Tensor) -> int:
    """Return the quantisation groups of a head row, from ``[..., 2 * groups]``."""
    return scales_zeros.shape[-1] // 2


def quantized_set_kv_int2_triton(
    cache_k: torch.Tensor,
    cache_v: torch.Tensor,
    loc: torch.Tensor,
    k_cache_buffer: torch.Tensor,
    v_cache_buffer: torch.Tensor,
    k_scales_zeros_buffer: torch.Tensor,
    v_scales_zeros_buffer: torch.Tensor,
    hp_global_offset: int | None = None,
) -> None:
    """Write rows ``[tokens, kv_heads, D]`` into slots ``loc`` without clipping.

    ``hp_global_offset`` belongs to a mixed-precision pool that is not part of this tree and must be None.
    """
    from sglang.srt.layers.attention.oscar_int2 import store_kv

    if hp_global_offset is not None:
        raise NotImplementedError("hp_global_offset: this tree has no mixed-precision KV pool")
    store_kv(
        cache_k,
        cache_v,
        loc,
        k_cache_buffer,
        v_cache_buffer,
        k_scales_zeros_buffer,
        v_scales_zeros_buffer,
    )


def dequantize_kv_int2_triton(
    quantized: torch.Tensor,
    scales_zeros: torch.Tensor,
    head_dim: int,
    model_dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``[rows, kv_heads, head_dim]`` in ``model_dtype`` from packed rows, in ``out`` where it is given."""
    from sglang.srt.layers.attention.oscar_int2 import dequantize

    rows = torch.arange(quantized.shape[0], device=quantized.device)
    return dequantize(quantized, scales_zeros, rows, head_dim=head_dim, dtype=model_dtype, out=out)
