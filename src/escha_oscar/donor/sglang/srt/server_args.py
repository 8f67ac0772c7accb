"""The start-up check of the int2 options."""


class ServerArgs:
    def _check_int2_kv_cache(self):
        """Refuse by name every option under which packed INT2 rows would be read as something else."""
        size = self.kv_cache_quant_group_size
        if self.kv_cache_dtype != "int2":
            if size is not None:
                raise ValueError("--kv-cache-quant-group-size has no effect without --kv-cache-dtype int2")
            return
        if size is not None and size <= 0:
            raise ValueError(f"--kv-cache-quant-group-size must be positive, got {size}")
        backends = self.get_attention_backends()
        if any(backend not in ("triton", None) for backend in backends):
            raise ValueError(
                f"--kv-cache-dtype int2 needs --attention-backend triton for prefill and decode, got {backends}"
            )
        # field, value under which it is off, option
        for field, off, option in (
            ("speculative_algorithm", None, "--speculative-algorithm"),
            ("disaggregation_mode", "null", "--disaggregation-mode"),
            ("disaggregation_decode_enable_offload_kvcache", False, "--disaggregation-decode-enable-offload-kvcache"),
            ("enable_hierarchical_cache", False, "--enable-hierarchical-cache"),
            ("hicache_storage_backend", None, "--hicache-storage-backend"),
            ("hierarchical_sparse_attention_extra_config", None, "--hierarchical-sparse-attention-extra-config"),
            ("enable_lmcache", False, "--enable-lmcache"),
            ("enable_deterministic_inference", False, "--enable-deterministic-inference"),
            ("enable_double_sparsity", False, "--enable-double-sparsity"),
            ("enable_hisparse", False, "--enable-hisparse"),
            ("dcp_size", 1, "--dcp-size"),
            ("attn_cp_size", 1, "--attn-cp-size"),
            ("enable_prefill_context_parallel", False, "--enable-prefill-context-parallel"),
            ("enable_nsa_prefill_context_parallel", False, "--enable-nsa-prefill-context-parallel"),
            ("prefill_only_disable_kv_cache", False, "--prefill-only-disable-kv-cache"),
            ("enable_unified_memory", False, "--enable-unified-memory"),
            ("enable_page_major_kv_layout", False, "--enable-page-major-kv-layout"),
            ("radix_cache_backend", None, "--radix-cache-backend"),
            ("dllm_algorithm", None, "--dllm-algorithm"),
            ("kv_canary", "none", "--kv-canary"),
        ):
            if getattr(self, field, off) not in (off, None):
                raise ValueError(f"--kv-cache-dtype int2 cannot be used together with {option}")
