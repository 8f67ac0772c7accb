"""INT2 decode entry points under the names that others import; each calls the kernels of ``oscar_int2``."""


def _safe_block_h(block_h: int, kv_group_num: int) -> int:
    """Return a head tile that never straddles two KV heads: it covers a whole group or divides it.

    The grouped kernels derive the KV head from the tile's number but the query heads from a flat index; the two agree
    only under this rule. Where it is broken the next power of two above the group is taken.
    """
    if block_h >= kv_group_num or kv_group_num % block_h == 0:
        return block_h
    return 1 << (kv_group_num - 1).bit_length()


def _get_scale_group_size(head_dim: int, scales_zeros) -> int:
    """Return the head dims that share one scale, from ``scales_zeros [..., 2 * groups]``."""
    groups = scales_zeros.shape[-1] // 2
    if head_dim % groups:
        raise ValueError(f"{groups} quantisation groups do not divide head_dim {head_dim}")
    return head_dim // groups


def _get_shared_kv_scale_group_size(Lk: int, Lv: int, k_scales_zeros, v_scales_zeros) -> int:
    """Return the group size of K and V; raises ValueError where one is grouped and they differ."""
    k_size = _get_scale_group_size(Lk, k_scales_zeros)
    v_size = _get_scale_group_size(Lv, v_scales_zeros)
    if k_size != v_size and (k_size < Lk or v_size < Lv):
        raise ValueError(f"K and V need one quantisation group size, got K={k_size} and V={v_size}")
    return k_size


def decode_attention_fwd_quantized(
    q,
    k_buffer,
    v_buffer,
    k_scales_zeros,
    v_scales_zeros,
    o,
    kv_indptr,
    kv_indices,
    attn_logits,
    attn_lse,
    num_kv_splits,
    max_kv_splits,
    sm_scale,
    kv_dtype,
    logit_cap=0.0,
    sinks=None,
    xai_temperature_len=-1,
    output_lse=None,
):
    """Attend rotated queries ``[batch, Hq, D]`` over packed codes into ``o``, for any number of heads per KV head."""
    from sglang.srt.layers.attention import oscar_int2

    oscar_int2.decode_attention_fwd_quantized(
        q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, o, kv_indptr, kv_indices,
        attn_logits, attn_lse, num_kv_splits, max_kv_splits, sm_scale, kv_dtype,
        logit_cap=logit_cap, sinks=sinks, xai_temperature_len=xai_temperature_len, output_lse=output_lse,
    )  # fmt: skip


def decode_attention_fwd_normal_quant_int2(
    q,
    k_buffer,
    v_buffer,
    k_scales_zeros,
    v_scales_zeros,
    o,
    kv_indptr,
    kv_indices,
    attn_logits,
    attn_lse,
    num_kv_splits,
    max_kv_splits,
    sm_scale,
    logit_cap=0.0,
    sinks=None,
    xai_temperature_len=-1,
    output_lse=None,
):
    """Attend with one query head per KV head; the same as ``decode_attention_fwd_quantized``."""
    decode_attention_fwd_quantized(
        q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, o, kv_indptr, kv_indices,
        attn_logits, attn_lse, num_kv_splits, max_kv_splits, sm_scale, "int2",
        logit_cap=logit_cap, sinks=sinks, xai_temperature_len=xai_temperature_len, output_lse=output_lse,
    )  # fmt: skip


def decode_attention_fwd_grouped_quant_int2(
    q,
    k_buffer,
    v_buffer,
    k_scales_zeros,
    v_scales_zeros,
    o,
    kv_indptr,
    kv_indices,
    attn_logits,
    attn_lse,
    num_kv_splits,
    max_kv_splits,
    sm_scale,
    logit_cap=0.0,
    sinks=None,
    xai_temperature_len=-1,
    output_lse=None,
):
    """Attend with several query heads per KV head; the same as ``decode_attention_fwd_quantized``."""
    decode_attention_fwd_quantized(
        q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, o, kv_indptr, kv_indices,
        attn_logits, attn_lse, num_kv_splits, max_kv_splits, sm_scale, "int2",
        logit_cap=logit_cap, sinks=sinks, xai_temperature_len=xai_temperature_len, output_lse=output_lse,
    )  # fmt: skip
