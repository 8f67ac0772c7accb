"""What would silently misread packed rows is refused by name; what is easy to support copies scales with the codes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.rig import Rig

pytestmark = pytest.mark.network

#: option as the user writes it -> (field, a value that turns it on)
OPTIONS: dict[str, tuple[str, Any]] = {
    "--speculative-algorithm": ("speculative_algorithm", "EAGLE"),
    "--disaggregation-mode": ("disaggregation_mode", "prefill"),
    "--disaggregation-decode-enable-offload-kvcache": ("disaggregation_decode_enable_offload_kvcache", True),
    "--enable-hierarchical-cache": ("enable_hierarchical_cache", True),
    "--hicache-storage-backend": ("hicache_storage_backend", "file"),
    "--enable-lmcache": ("enable_lmcache", True),
    "--enable-deterministic-inference": ("enable_deterministic_inference", True),
    "--attn-cp-size": ("attn_cp_size", 2),
    "--dllm-algorithm": ("dllm_algorithm", "LowConfidence"),
    "--attention-backend triton": ("attention_backend", "flashinfer"),
    "--attention-backend triton for prefill": ("prefill_attention_backend", "fa3"),
    "--attention-backend triton for prefill and decode": ("decode_attention_backend", "flashinfer"),
    "--kv-cache-quant-group-size": ("kv_cache_quant_group_size", 0),
}
#: options that one of the two releases has
OLDER = {
    "--enable-double-sparsity": ("enable_double_sparsity", True),
    "--hierarchical-sparse-attention-extra-config": ("hierarchical_sparse_attention_extra_config", "{}"),
    "--enable-nsa-prefill-context-parallel": ("enable_nsa_prefill_context_parallel", True),
}
NEWER = {
    "--dcp-size": ("dcp_size", 2),
    "--enable-hisparse": ("enable_hisparse", True),
    "--enable-prefill-context-parallel": ("enable_prefill_context_parallel", True),
    "--prefill-only-disable-kv-cache": ("prefill_only_disable_kv_cache", True),
    "--enable-unified-memory": ("enable_unified_memory", True),
    "--enable-page-major-kv-layout": ("enable_page_major_kv_layout", True),
    "--kv-canary": ("kv_canary", "log"),
}
EXTRA = {"0.5.9": OLDER, "0.5.15": NEWER}
FACTS: dict[str, tuple[str, Any]] = {
    "draft model": ("is_draft_worker", True),
    "MLA": ("use_mla_backend", True),
    "hybrid sliding-window": ("is_hybrid_swa", True),
    "sliding-window": ("sliding_window_size", 4096),
    "chunked attention": ("attention_chunk_size", 8192),
    "share another layer's KV": ("num_kv_shared_layers", 4),
    "lightning": ("hybrid_lightning_config", {}),
    "32": ("head_dim", 80),
}


@pytest.fixture(scope="module")
def asked(merged: Rig) -> dict[str, Any]:
    answer = merged.run("guards", {"options": {**OPTIONS, **EXTRA[merged.release]}, "facts": FACTS})
    assert isinstance(answer, dict)
    return answer


def test_a_plain_launch_passes_the_real_parser_and_check(asked: dict[str, Any]) -> None:
    assert asked["launch"] is None
    assert asked["dtype"] is None
    assert asked["unknown"] == []
    assert asked["layers"]["plain"] is None


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_refused_by_name_at_start_up(asked: dict[str, Any], option: str) -> None:
    assert option.removesuffix(" for prefill") in asked["options"][option]


def test_options_of_one_release_are_refused_by_name(asked: dict[str, Any], merged: Rig) -> None:
    for option in EXTRA[merged.release]:
        assert f"int2 cannot be used together with {option}" in asked["options"][option]


@pytest.mark.parametrize("fact", FACTS)
def test_a_model_that_packed_rows_do_not_suit_is_refused(asked: dict[str, Any], fact: str) -> None:
    assert fact in (asked["facts"][fact] or "accepted")


@pytest.mark.parametrize("layer", ["shared KV", "sliding window", "cross attention"])
def test_a_layer_that_reads_rows_in_another_way_is_refused(asked: dict[str, Any], layer: str) -> None:
    words = {"shared KV": "shares another layer's KV"}.get(layer, layer)
    assert words in (asked["layers"][layer] or "accepted")


@pytest.mark.parametrize("read", ["get_key_buffer", "get_value_buffer", "get_kv_buffer"])
def test_unpacked_rows_cannot_be_had(asked: dict[str, Any], read: str) -> None:
    assert "packed 2-bit codes" in (asked["pool"][read] or "accepted")


@pytest.mark.parametrize("use", ["restored", "moved", "buffers"])
def test_copies_take_the_scales_along(asked: dict[str, Any], use: str) -> None:
    assert asked["pool"][use] is True
