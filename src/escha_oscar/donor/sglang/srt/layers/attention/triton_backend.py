"""Attention over the int2 KV pool: rotate, attend over packed codes, rotate back."""

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.triton_backend import logit_capping_mod
from sglang.srt.layers.radix_attention import AttentionType


def _is_int2_pool(backend, forward_batch) -> bool:
    """Return whether the batch is served by a pool of packed INT2 rows."""
    return getattr(_int2_pool_of(backend, forward_batch), "dtype", None) == "int2"


def _int2_pool_of(backend, forward_batch):
    """Return the KV pool: the backend holds it in newer trees, the batch in older ones."""
    pool = getattr(backend, "token_to_kv_pool", None)
    return forward_batch.token_to_kv_pool if pool is None else pool


class TritonAttnBackend:
    def _check_int2_layer(self, layer, k, v):
        """Refuse the layers whose attention would read packed rows in another way."""
        if k is None or v is None:
            raise NotImplementedError(f"layer {layer.layer_id} shares another layer's KV; int2 does not support that")
        if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
            raise NotImplementedError(f"layer {layer.layer_id} has a sliding window; int2 does not support that")
        if layer.is_cross_attention:
            raise NotImplementedError(f"layer {layer.layer_id} is cross attention; int2 does not support that")
        if self.forward_metadata.custom_mask is not None:
            raise NotImplementedError("a custom attention mask (speculative decoding) is not supported with int2")

    def _int2_is_causal(self, layer) -> bool:
        return not (
            layer.attn_type == AttentionType.ENCODER_ONLY
            or (layer.attn_type == AttentionType.DECODER_BIDIRECTIONAL and self.allow_bidirectional_attention_in_extend)
        )

    @torch.compiler.disable
    def _forward_extend_int2(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None):
        """Attend new tokens to an int2 prefix and to themselves, unquantised; q ``[tokens, Hq * D]`` -> the same."""
        from sglang.srt.layers.attention.oscar_int2 import extend_attention, rotate

        self._check_int2_layer(layer, k, v)
        pool = _int2_pool_of(self, forward_batch)
        R_k, R_v = pool.get_oscar_rotation(layer.layer_id)
        group = layer.tp_q_head_num // layer.tp_k_head_num
        q = rotate(q.view(-1, layer.tp_q_head_num, layer.qk_head_dim), R_k, group)
        k = rotate(k.view(-1, layer.tp_k_head_num, layer.qk_head_dim), R_k)
        v = rotate(v.view(-1, layer.tp_v_head_num, layer.v_head_dim), R_v)
        if save_kv_cache:
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v, already_hadamard_transformed=True)
        rotated = q.new_empty((q.shape[0], layer.tp_q_head_num, layer.v_head_dim))
        slots = self._int2_prefix_slots(forward_batch)
        if self._int2_streams_prefill():
            meta = self.forward_metadata
            extend_attention(
                q, k, v, rotated,
                pool.get_raw_key_buffer(layer.layer_id), pool.get_raw_value_buffer(layer.layer_id),
                pool.get_key_scales_zeros(layer.layer_id), pool.get_value_scales_zeros(layer.layer_id),
                meta.qo_indptr, meta.kv_indptr, slots,
                max_len_extend=meta.max_extend_len, sm_scale=layer.scaling, causal=self._int2_is_causal(layer),
                logit_cap=logit_capping_mod(layer.logit_capping_method, layer.logit_cap), sinks=sinks,
                xai_temperature_len=layer.xai_temperature_len,
            )  # fmt: skip
        else:
            self._extend_int2_dense(q, k, v, rotated, layer, pool, slots, sinks)
        return self._int2_output(rotated, R_v, group, forward_batch)

    def _int2_prefix_slots(self, forward_batch) -> torch.Tensor:
        """Return the slots of all prefixes; newer trees may hand over a longer buffer with an unwritten tail."""
        meta = self.forward_metadata
        lens = forward_batch.extend_prefix_lens_cpu
        count = meta.kv_indptr[forward_batch.batch_size] if lens is None else sum(lens)
        return meta.kv_indices[: int(count)]

    def _int2_streams_prefill(self) -> bool:
        """Return whether the prefix is read in pieces; not so with SGLANG_OSCAR_PREFILL=dense or kernels=pr."""
        prefill = envs.SGLANG_OSCAR_PREFILL.get()
        if prefill not in ("stream", "dense"):
            raise ValueError(f"SGLANG_OSCAR_PREFILL must be stream or dense, got {prefill!r}")
        return prefill == "stream" and envs.SGLANG_OSCAR_KERNELS.get() == "native"

    def _extend_int2_dense(self, q, k, v, o, layer, pool, slots, sinks):
        """Dequantise the whole prefix once (P rows beside the E new ones) and run the stock extend kernel over it."""
        meta = self.forward_metadata
        prefix_k = self._dequantize_int2(
            pool.get_raw_key_buffer(layer.layer_id), pool.get_key_scales_zeros(layer.layer_id),
            slots, layer.qk_head_dim, q.dtype,
        )  # fmt: skip
        prefix_v = self._dequantize_int2(
            pool.get_raw_value_buffer(layer.layer_id), pool.get_value_scales_zeros(layer.layer_id),
            slots, layer.v_head_dim, q.dtype,
        )  # fmt: skip
        self.extend_attention_fwd(
            q, k, v, o, prefix_k, prefix_v,
            meta.qo_indptr, meta.kv_indptr, torch.arange(slots.numel(), dtype=slots.dtype, device=slots.device),
            custom_mask=None, is_causal=self._int2_is_causal(layer), mask_indptr=None,
            max_len_extend=meta.max_extend_len, k_scale=1.0, v_scale=1.0, sm_scale=layer.scaling,
            logit_cap=logit_capping_mod(layer.logit_capping_method, layer.logit_cap), sinks=sinks,
            xai_temperature_len=layer.xai_temperature_len,
        )  # fmt: skip

    def _dequantize_int2(self, codes, scales_zeros, slots, head_dim, dtype):
        from sglang.srt.layers.attention.oscar_int2 import dequantize
        from sglang.srt.mem_cache.kv_quant_kernels import dequantize_kv_int2_triton

        if envs.SGLANG_OSCAR_KERNELS.get() == "native" or slots.numel() == 0:
            return dequantize(codes, scales_zeros, slots, head_dim=head_dim, dtype=dtype)
        slots = slots.long()
        return dequantize_kv_int2_triton(codes[slots], scales_zeros[slots], head_dim, dtype)

    @torch.compiler.disable
    def _forward_decode_int2(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None):
        """Store one new token per sequence and attend it over packed codes; q ``[batch, Hq * D]`` -> the same."""
        from sglang.srt.layers.attention.oscar_int2 import rotate

        self._check_int2_layer(layer, k, v)
        pool = _int2_pool_of(self, forward_batch)
        R_k, R_v = pool.get_oscar_rotation(layer.layer_id)
        group = layer.tp_q_head_num // layer.tp_k_head_num
        if save_kv_cache:
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        q = rotate(q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim), R_k, group)
        rotated = q.new_empty((q.shape[0], layer.tp_q_head_num, layer.v_head_dim))
        meta = self.forward_metadata
        self._int2_decode_kernel()(
            q,
            pool.get_raw_key_buffer(layer.layer_id), pool.get_raw_value_buffer(layer.layer_id),
            pool.get_key_scales_zeros(layer.layer_id), pool.get_value_scales_zeros(layer.layer_id),
            rotated, meta.kv_indptr, meta.kv_indices, meta.attn_logits, meta.attn_lse, meta.num_kv_splits,
            self.max_kv_splits, layer.scaling, "int2",
            logit_cap=logit_capping_mod(layer.logit_capping_method, layer.logit_cap), sinks=sinks,
            xai_temperature_len=layer.xai_temperature_len,
        )  # fmt: skip
        return self._int2_output(rotated, R_v, group, forward_batch)

    def _int2_decode_kernel(self):
        from sglang.srt.layers.attention import oscar_int2
        from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd_quantized

        native = envs.SGLANG_OSCAR_KERNELS.get() == "native"
        return oscar_int2.decode_attention_fwd_quantized if native else decode_attention_fwd_quantized

    def _int2_output(self, rotated, R_v, group, forward_batch):
        """Undo the V rotation and flatten the heads, into the batch's own output buffer where it has one."""
        from sglang.srt.layers.attention.oscar_int2 import rotate_inverse

        out = rotate_inverse(rotated, R_v, group).flatten(1)
        given = getattr(forward_batch, "_attn_output", None)
        return out if given is None else given.copy_(out.view(given.shape))
