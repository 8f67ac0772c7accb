"""The int2 branch of the KV dtype choice."""

import torch


class ModelRunner:
    def _configure_int2_kv_cache(self) -> str:
        """Return "int2" once options and model are known to suit packed rows; raise ValueError naming what does not."""
        from sglang.srt.layers.attention.oscar_int2.layout import resolve_grouping

        self.server_args._check_int2_kv_cache()
        config = self.model_config
        for refused, what in (
            (self.is_draft_worker, "a speculative draft model"),
            (self.use_mla_backend, "a model with MLA attention"),
            (self.is_hybrid_swa, "a model with hybrid sliding-window attention"),
            (self.sliding_window_size is not None and self.sliding_window_size > 0, "sliding-window attention"),
            (getattr(self, "attention_chunk_size", None) is not None, "chunked attention"),
            (getattr(config.hf_text_config, "num_kv_shared_layers", 0), "layers that share another layer's KV"),
            (getattr(self, "hybrid_lightning_config", None) is not None, "lightning linear attention"),
            (torch.version.hip is not None, "ROCm"),
        ):
            if refused:
                raise ValueError(f"--kv-cache-dtype int2 does not support {what}")
        group_size = self.server_args.kv_cache_quant_group_size
        for head_dim in (config.head_dim, config.v_head_dim):
            resolve_grouping(head_dim, group_size)
        return "int2"
