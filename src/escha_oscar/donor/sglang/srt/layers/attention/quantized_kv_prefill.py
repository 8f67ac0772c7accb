# SPDX-License-Identifier: Apache-2.0
"""Helpers of prefill over an INT2 prefix: rotation in and out, and the dense prefix."""

import torch


def _pool_uses_oscar_rotation(kv_pool) -> bool:
    """Return whether the pool rotates K and V before it quantises them."""
    return getattr(kv_pool, "get_oscar_rotation", None) is not None


def _apply_oscar_rotation(tensor: torch.Tensor, R: torch.Tensor, kv_group_num: int = 1) -> torch.Tensor:
    """Return ``tensor [tokens, heads, D] @ R``, with R ``[D, D]`` or one ``[kv_heads, D, D]``."""
    from sglang.srt.layers.attention.oscar_int2 import rotate

    return rotate(tensor, R, kv_group_num)


def prepare_quantized_extend_qkv(
    kv_pool,
    layer,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_already_hadamard_transformed: bool = False,
    kv_already_hadamard_transformed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
    """Return q, k, v ``[tokens, heads, D]`` in the rotated basis and whether the output needs the inverse of V's."""
    R_k, R_v = kv_pool.get_oscar_rotation(layer.layer_id)
    q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
    k = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
    v = v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
    if not q_already_hadamard_transformed:
        q = _apply_oscar_rotation(q, R_k, layer.tp_q_head_num // layer.tp_k_head_num)
    if not kv_already_hadamard_transformed:
        k, v = _apply_oscar_rotation(k, R_k), _apply_oscar_rotation(v, R_v)
    return q, k, v, True


def dequantize_prefix_kv(
    kv_pool,
    layer_id: int,
    prefix_indices: torch.Tensor,
    model_dtype: torch.dtype,
    out_k: torch.Tensor | None = None,
    out_v: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V ``[prefix, kv_heads, D]`` of the slots ``prefix_indices``, still rotated."""
    from sglang.srt.layers.attention.oscar_int2 import dequantize

    k_codes, v_codes = kv_pool.get_raw_key_buffer(layer_id), kv_pool.get_raw_value_buffer(layer_id)
    k = dequantize(
        k_codes,
        kv_pool.get_key_scales_zeros(layer_id),
        prefix_indices,
        head_dim=k_codes.shape[-1] * 4,
        dtype=model_dtype,
        out=out_k,
    )
    v = dequantize(
        v_codes,
        kv_pool.get_value_scales_zeros(layer_id),
        prefix_indices,
        head_dim=v_codes.shape[-1] * 4,
        dtype=model_dtype,
        out=out_v,
    )
    return k, v


def apply_inverse_v_rotation(result: torch.Tensor, kv_pool, layer, need_v_inverse: bool) -> torch.Tensor:
    """Return the attention output ``[tokens, Hq * D]`` or ``[tokens, Hq, D]`` in the model's basis."""
    from sglang.srt.layers.attention.oscar_int2 import rotate_inverse

    if not need_v_inverse:
        return result
    _, R_v = kv_pool.get_oscar_rotation(layer.layer_id)
    heads = result.view(-1, layer.tp_q_head_num, layer.v_head_dim)
    group = layer.tp_q_head_num // layer.tp_k_head_num
    return rotate_inverse(heads, R_v, group).view(result.shape)
