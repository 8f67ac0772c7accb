"""Sizes of the int2 pool and what its constructor has to know."""

from sglang.srt.layers.dp_attention import get_attention_tp_size


class ModelRunnerKVCacheMixin:
    def _int2_cell_size(self, num_layers: int) -> int:
        """Return the bytes that one token takes over ``num_layers``: packed codes, fp32 scales and zeros of K and V."""
        from sglang.srt.layers.attention.oscar_int2.layout import resolve_grouping

        per_head = 0
        for head_dim in (self.model_config.head_dim, self.model_config.v_head_dim):
            _, num_groups = resolve_grouping(head_dim, self.server_args.kv_cache_quant_group_size)
            per_head += head_dim // 4 + 2 * num_groups * 4
        return self.model_config.get_num_kv_heads(get_attention_tp_size()) * per_head * num_layers

    def _int2_pool_kwargs(self) -> dict:
        """Return the extra arguments of an int2 pool, and none for every other dtype."""
        if self.kv_cache_dtype != "int2":
            return {}
        from sglang.srt.layers.dp_attention import get_attention_tp_rank

        size, rank = get_attention_tp_size(), get_attention_tp_rank()
        total = self.model_config.get_total_num_kv_heads()
        heads = self.model_config.get_num_kv_heads(size)
        # With fewer KV heads than ranks each head is replicated over neighbouring ranks.
        first = rank * heads if total >= size else rank * total // size
        return {
            "model_dtype": self.dtype,
            "kv_cache_quant_group_size": self.server_args.kv_cache_quant_group_size,
            "kv_head_range": (first, heads, total),
        }
