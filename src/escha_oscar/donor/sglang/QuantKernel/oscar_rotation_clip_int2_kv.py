# SPDX-License-Identifier: Apache-2.0
"""Clip, quantise and pack rotated K and V rows; the kernels are those of ``oscar_int2``."""

import torch


def quantized_set_kv_int2_pretransformed_clip_triton(
    cache_k: torch.Tensor,
    cache_v: torch.Tensor,
    loc: torch.Tensor,
    k_cache_buffer: torch.Tensor,
    v_cache_buffer: torch.Tensor,
    k_scales_zeros_buffer: torch.Tensor,
    v_scales_zeros_buffer: torch.Tensor,
    clip_ratio_k: float,
    clip_ratio_v: float,
    hp_global_offset: int | None = None,
    lloyd_max: bool = False,
) -> None:
    """Write rows ``[tokens, kv_heads, D]``, rotated already, into slots ``loc`` of the packed buffers.

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
        clip_ratio_k=clip_ratio_k,
        clip_ratio_v=clip_ratio_v,
        lloyd_max=lloyd_max,
    )
