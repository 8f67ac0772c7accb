"""The file table: what the pull request touches, what happens to each file, and which symbols must arrive.

The article that this table follows counts "6 hand-merged files" and then lists seven; all seven are rows here.
"""

from __future__ import annotations

from escha_oscar.mapping.wheels import DECODE_PATHS
from escha_oscar.model import Action, Origin, Row, Symbol, SymbolKind

ARTICLE_NOTE = "The article says 6 hand-merged files and lists 7; the table follows the list."

#: What is merged beside the pull request's own files, and why.
ALSO_MERGED = {
    "sglang/srt/model_executor/pool_configurator.py": "the cell size, in bases that keep it there (0.5.11 and later)",
    "sglang/srt/managers/schedule_policy.py": "the chunk cap: SGLANG_CHUNK_DECODE_CAP, SGLANG_CHUNK_FAIR_FLOOR",
    "sglang/srt/managers/scheduler.py": "the chunk cap: the order in which waiting requests are admitted",
}

_PR, _GLUE = Origin.PR, Origin.GLUE
_F, _M, _C, _K = SymbolKind.FUNCTION, SymbolKind.METHOD, SymbolKind.CLASS, SymbolKind.TRITON_KERNEL
_ENV = SymbolKind.ENV_FIELD


def _all(kind: SymbolKind, names: str, origin: Origin = _PR, *, public: bool = True) -> tuple[Symbol, ...]:
    return tuple(Symbol(name, kind, origin, public) for name in names.split())


def _skip(path: str, reason: str, *, in_article: bool) -> Row:
    return Row(Action.SKIP, (f"sglang/{path}",), reason=reason, in_article=in_article)


_COPY = (
    Row(
        Action.COPY,
        ("sglang/QuantKernel/oscar_rotation_clip_int2_kv.py",),
        ("sglang/QuantKernel/oscar_rotation_clip_int2_kv.py",),
        _all(_F, "quantized_set_kv_int2_pretransformed_clip_triton")
        + _all(_F, "_launch_single_clip_int2 _launch_grouped_clip_int2 _clip_index", public=False),
        "absent from the wheel",
    ),
    Row(
        Action.COPY,
        ("sglang/srt/layers/attention/quantized_kv_prefill.py",),
        ("sglang/srt/layers/attention/quantized_kv_prefill.py",),
        _all(
            _F,
            "_pool_uses_oscar_rotation _apply_oscar_rotation prepare_quantized_extend_qkv"
            " dequantize_prefix_kv apply_inverse_v_rotation",
        ),
        "absent from the wheel",
    ),
    Row(
        Action.COPY,
        ("sglang/srt/mem_cache/kv_quant_kernels.py",),
        ("sglang/srt/mem_cache/kv_quant_kernels.py",),
        _all(_F, "quantized_set_kv_int2_triton dequantize_kv_int2_triton _get_num_scale_groups"),
        "absent from the wheel",
    ),
)

_MERGE = (
    Row(
        Action.MERGE,
        ("sglang/srt/environ.py",),
        ("sglang/srt/environ.py",),
        _all(
            _ENV,
            "SGLANG_OSCAR_K_ROTATION_PATH SGLANG_OSCAR_V_ROTATION_PATH SGLANG_OSCAR_K_CLIP_RATIO"
            " SGLANG_OSCAR_V_CLIP_RATIO SGLANG_LLOYD_MAX",
        )
        + _all(_ENV, "SGLANG_OSCAR_KERNELS SGLANG_OSCAR_PREFILL", _GLUE),
        "environment variables",
    ),
    Row(
        Action.MERGE,
        ("sglang/srt/server_args.py",),
        ("sglang/srt/server_args.py",),
        (
            Symbol("int2", SymbolKind.CHOICE),
            Symbol("--kv-cache-quant-group-size", SymbolKind.FLAG),
            Symbol("ServerArgs.kv_cache_quant_group_size", SymbolKind.DATACLASS_FIELD),
            Symbol("ServerArgs._check_int2_kv_cache", _M, _GLUE),
        ),
        "the int2 choice, the group-size option and its start-up check",
    ),
    Row(
        Action.MERGE,
        ("sglang/srt/model_executor/model_runner.py",),
        ("sglang/srt/model_executor/model_runner.py",),
        _all(_M, "ModelRunner._configure_int2_kv_cache", _GLUE),
        "the int2 branch of the dtype choice, with its guards",
    ),
    Row(
        Action.MERGE,
        ("sglang/srt/model_executor/model_runner_kv_cache_mixin.py",),
        ("sglang/srt/model_executor/model_runner_kv_cache_mixin.py",),
        _all(_M, "ModelRunnerKVCacheMixin._int2_cell_size ModelRunnerKVCacheMixin._int2_pool_kwargs", _GLUE),
        "true cell size; dtype, group size and rotation layer ids handed to the pools",
    ),
    Row(
        Action.MERGE,
        ("sglang/srt/mem_cache/memory_pool.py",),
        ("sglang/srt/mem_cache/memory_pool.py",),
        _all(_C, "OscarRotationConfig")
        + _all(_F, "load_oscar_rotation_config load_oscar_rotations")
        + _all(
            _M,
            "MHATokenToKVPool._resolve_quant_grouping MHATokenToKVPool._allocate_scales_zeros_buffers"
            " MHATokenToKVPool.get_raw_key_buffer MHATokenToKVPool.get_raw_value_buffer"
            " MHATokenToKVPool.get_key_scales_zeros MHATokenToKVPool.get_value_scales_zeros",
        )
        + _all(
            _M,
            "MHATokenToKVPool.get_oscar_rotation MHATokenToKVPool._init_int2 MHATokenToKVPool._create_int2_buffers"
            " MHATokenToKVPool._set_int2_kv_buffer HybridLinearKVPool.get_raw_key_buffer"
            " HybridLinearKVPool.get_raw_value_buffer HybridLinearKVPool.get_key_scales_zeros"
            " HybridLinearKVPool.get_value_scales_zeros HybridLinearKVPool.get_oscar_rotation",
            _GLUE,
        ),
        "configuration, rotations, scale/zero buffers, accessors, store path, hybrid forwarding",
    ),
    Row(
        Action.MERGE,
        ("sglang/srt/layers/attention/triton_backend.py",),
        ("sglang/srt/layers/attention/triton_backend.py",),
        _all(_M, "TritonAttnBackend._forward_extend_int2 TritonAttnBackend._forward_decode_int2", _GLUE),
        "the int2 extend and decode paths and their dispatch",
    ),
    Row(
        Action.MERGE,
        (DECODE_PATHS[1], DECODE_PATHS[0]),
        DECODE_PATHS,
        _all(
            _F,
            "_get_scale_group_size _get_shared_kv_scale_group_size decode_attention_fwd_normal_quant_int2"
            " decode_attention_fwd_grouped_quant_int2 decode_attention_fwd_quantized",
        )
        + _all(_K, "_fwd_kernel_stage1_quant_int2 _fwd_grouped_kernel_stage1_quant_int2", public=False)
        + _all(_F, "_decode_att_m_fwd_quant_int2 _decode_grouped_att_m_fwd_quant_int2", public=False)
        + _all(_F, "_safe_block_h", _GLUE),
        "the INT2 decode entry points and kernels, and the head-tile clamp",
    ),
)

_SKIP = (
    _skip(
        "srt/mem_cache/kv_cache_dtype.py",
        "the wheel's tree resolves the dtype in model_runner.py",
        in_article=True,
    ),
    _skip(
        "srt/mem_cache/unified_kv_pool.py",
        "the mixed-precision pool; the wheel's tree has none",
        in_article=True,
    ),
    _skip(
        "srt/models/qwen3.py",
        "absorbs the V rotation into weights; the wheel rotates activations",
        in_article=True,
    ),
    _skip("srt/models/glm4_moe.py", "not a model of the wheel", in_article=True),
    _skip("srt/models/utils.py", "helper of the weight absorption that is not carried over", in_article=True),
    _skip(
        "QuantKernel/gpu_flush_int2.py",
        "flushes the high-precision window of the mixed pool",
        in_article=True,
    ),
    _skip("srt/mem_cache/unified_kv_allocator.py", "allocator of the mixed pool", in_article=False),
    _skip(
        "QuantKernel/fused_hadamard_int2_kv.py",
        "data-free Hadamard inside the pool; rotations come from files here",
        in_article=False,
    ),
    _skip(
        "QuantKernel/__init__.py",
        "imports modules that are not carried over; an empty one is made",
        in_article=False,
    ),
    _skip(
        "srt/model_executor/kv_cache_configurator.py",
        "newer home of pool construction; the wheel builds pools in the mixin",
        in_article=False,
    ),
    _skip(
        "srt/model_executor/pool_configurator.py",
        "the pull request's own form fits another tree; the wheel's own file gets an early branch (see: also merged)",
        in_article=False,
    ),
    _skip(
        "srt/layers/attention/flashattention_backend.py",
        "int2 is served by the triton backend only",
        in_article=False,
    ),
)

ROWS: tuple[Row, ...] = _COPY + _MERGE + _SKIP


def copies() -> tuple[Row, ...]:
    """Return the rows that are copied."""
    return _COPY


def merges() -> tuple[Row, ...]:
    """Return the rows that are merged."""
    return _MERGE


def row_for(path: str) -> Row | None:
    """Return the row that writes ``path`` in the wheel, or None."""
    return next((row for row in ROWS if path in row.wheel_paths), None)
