"""A small tree shaped like the pull request's, written for the tests: paths, public names, known defects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from escha_oscar.mapping import DECODE_PATHS, PIN
from escha_oscar.model import SourceId

CLIP = "sglang/QuantKernel/oscar_rotation_clip_int2_kv.py"
PREFILL = "sglang/srt/layers/attention/quantized_kv_prefill.py"
KV_QUANT = "sglang/srt/mem_cache/kv_quant_kernels.py"
DECODE = DECODE_PATHS[1]
ENVIRON = "sglang/srt/environ.py"
POOL = "sglang/srt/mem_cache/memory_pool.py"

CLIP_TEXT = '''\
"""Rotate, clip, store."""

import torch
import triton
import triton.language as tl

from sglang.srt.mem_cache.kv_quant_kernels import _get_num_scale_groups


@triton.jit
def _store_kernel(X, Out, D: tl.constexpr):
    offs = tl.arange(0, D)
    tl.store(Out + offs, tl.load(X + offs))


def _vectorized_elems_per_thread(dtype):
    assert dtype == torch.bfloat16, dtype
    return 8


def _clip_index(clip_ratio, head_dim):
    return min(int(clip_ratio * head_dim), head_dim - 1)


def _launch_single_clip_int2(data, loc, buf, sz_buf, clip_ratio, hp_global_offset=None, lloyd_max=False):
    _store_kernel[(data.shape[0],)](data, buf, D=_vectorized_elems_per_thread(data.dtype))


def _launch_grouped_clip_int2(data, loc, buf, sz_buf, clip_ratio, hp_global_offset=None):
    _store_kernel[(data.shape[0],)](data, buf, D=_clip_index(clip_ratio, data.shape[-1]))


def quantized_set_kv_int2_pretransformed_clip_triton(
    cache_k,
    cache_v,
    loc,
    k_cache_buffer,
    v_cache_buffer,
    k_scales_zeros_buffer,
    v_scales_zeros_buffer,
    clip_ratio_k,
    clip_ratio_v,
    hp_global_offset=None,
    lloyd_max=False,
):
    if _get_num_scale_groups(k_scales_zeros_buffer) == 1:
        _launch_single_clip_int2(cache_k, loc, k_cache_buffer, k_scales_zeros_buffer, clip_ratio_k, None, lloyd_max)
    else:
        _launch_grouped_clip_int2(cache_k, loc, k_cache_buffer, k_scales_zeros_buffer, clip_ratio_k)
'''

PREFILL_TEXT = '''\
"""Prefill over packed rows."""

import torch

from sglang.kernels.ops.quantization.hadamard import hadamard_transform
from sglang.srt.environ import envs


def _pool_uses_oscar_rotation(kv_pool):
    return getattr(kv_pool, "_R_k", None) is not None


def _apply_oscar_rotation(tensor, R):
    return (tensor.to(R.dtype) @ R).contiguous()


def prepare_quantized_extend_qkv(kv_pool, layer, q, k, v, q_done=False, kv_done=False):
    if envs.SGLANG_OSCAR_CHUNK.get() > 0 and not _pool_uses_oscar_rotation(kv_pool):
        q = hadamard_transform(q)
    return q, k, v, False


def dequantize_prefix_kv(kv_pool, layer_id, prefix_indices, model_dtype):
    return torch.empty(0), torch.empty(0)


def apply_inverse_v_rotation(result, kv_pool, layer, need_v_inverse):
    return result
'''

KV_QUANT_TEXT = '''\
"""Packed rows.  行"""

import torch


def _get_num_scale_groups(scales_zeros):
    return scales_zeros.shape[-1] // 2


def quantized_set_kv_int2_triton(cache_k, cache_v, loc, kbuf, vbuf, ksz, vsz, hp_global_offset=None):
    kbuf[loc] = cache_k


def dequantize_kv_int2_triton(quantized, scales_zeros, head_dim, model_dtype):
    return torch.empty((quantized.shape[0], head_dim), dtype=model_dtype)
'''

ENVIRON_TEXT = """\
class EnvField:
    pass


class Envs:
    SGLANG_OSCAR_K_ROTATION_PATH = EnvStr("")
    SGLANG_OSCAR_V_ROTATION_PATH = EnvStr("")
    SGLANG_OSCAR_K_CLIP_RATIO = EnvFloat(0.96)
    SGLANG_OSCAR_V_CLIP_RATIO = EnvFloat(0.92)
    SGLANG_LLOYD_MAX = EnvBool(False)
    SGLANG_OSCAR_CHUNK = EnvInt(256)
    SGLANG_OSCAR_TILE = EnvInt(16)
    SGLANG_NOT_READ = EnvInt(1)


envs = Envs()
"""

POOL_TEXT = """\
import logging
from dataclasses import dataclass
from typing import Optional

import torch

from sglang.srt.environ import envs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OscarRotationConfig:
    k_rotation_path: str
    v_rotation_path: str
    k_clip_ratio: float
    v_clip_ratio: float


def load_oscar_rotation_config() -> OscarRotationConfig:
    return OscarRotationConfig(
        envs.SGLANG_OSCAR_K_ROTATION_PATH.get(),
        envs.SGLANG_OSCAR_V_ROTATION_PATH.get(),
        envs.SGLANG_OSCAR_K_CLIP_RATIO.get(),
        envs.SGLANG_OSCAR_V_CLIP_RATIO.get(),
    )


def load_oscar_rotations(path, layer_num, start_layer, head_dim, device, dtype=torch.bfloat16):
    return torch.load(path)


class MHATokenToKVPool:
    def _resolve_quant_grouping(self, head_dim: int, tensor_name: str):
        size = self.kv_cache_quant_group_size or head_dim
        if head_dim % size:
            raise ValueError(tensor_name)
        return size, head_dim // size

    def _allocate_scales_zeros_buffers(self, num_groups: int):
        return [self._hp_buffer for _ in range(num_groups)]

    def get_raw_key_buffer(self, layer_id: int):
        return self.k_buffer[layer_id - self.start_layer]

    def get_raw_value_buffer(self, layer_id: int):
        return self.v_buffer[layer_id - self.start_layer]

    def get_key_scales_zeros(self, layer_id: int):
        return self.k_scales_zeros[layer_id - self.start_layer]

    def get_value_scales_zeros(self, layer_id: int):
        return self.v_scales_zeros[layer_id - self.start_layer]
"""

_DECODE_PARAMETERS = (
    "q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, o, kv_indptr, kv_indices, attn_logits, attn_lse, "
    "num_kv_splits, max_kv_splits, sm_scale"
)
_DECODE_OPTIONS = "logit_cap=0.0, sinks=None, xai_temperature_len=-1, output_lse=None"

DECODE_TEXT = f'''\
"""Decode over packed rows, in the newer tree's place."""

import torch
import triton
import triton.language as tl

from sglang.srt.environ import envs

_MIN_BLOCK_KV = 32


def _get_scale_group_size(head_dim, scales_zeros):
    return head_dim // (scales_zeros.shape[-1] // 2)


def _get_shared_kv_scale_group_size(Lk, Lv, k_scales_zeros, v_scales_zeros):
    return _get_scale_group_size(Lk, k_scales_zeros)


@triton.jit
def _fwd_kernel_stage1_quant_int2(Q, Out, D: tl.constexpr, MIN_BLOCK_KV: tl.constexpr):
    tl.store(Out, tl.load(Q))


@triton.jit
def _fwd_grouped_kernel_stage1_quant_int2(Q, Out, D: tl.constexpr, BLOCK_H: tl.constexpr):
    QUARTER: tl.constexpr = D // 4
    tl.store(Out, tl.load(Q) + QUARTER)
    QUARTER: tl.constexpr = D // 2
    tl.store(Out, tl.load(Q) + QUARTER)


def _decode_att_m_fwd_quant_int2(q, att_out):
    _fwd_kernel_stage1_quant_int2[(1,)](q, att_out, D=16, MIN_BLOCK_KV=_MIN_BLOCK_KV)


def _decode_grouped_att_m_fwd_quant_int2(q, k_buffer, att_out):
    kv_group_num = q.shape[1] // k_buffer.shape[1]
    BLOCK_H = envs.SGLANG_OSCAR_TILE.get()
    grid = (q.shape[0], triton.cdiv(q.shape[1], min(BLOCK_H, kv_group_num)))
    _fwd_grouped_kernel_stage1_quant_int2[grid](q, att_out, D=16, BLOCK_H=BLOCK_H)


def decode_attention_fwd_normal_quant_int2(
    {_DECODE_PARAMETERS}, {_DECODE_OPTIONS}
):
    _decode_att_m_fwd_quant_int2(q, attn_logits)
    _decode_softmax_reducev_fwd(
        attn_logits, attn_lse, q, o, v_scale=1.0, v_buffer=v_buffer, kv_indptr=kv_indptr, num_kv_splits=num_kv_splits,
        max_kv_splits=max_kv_splits, sinks=sinks, output_lse=output_lse,
    )


def decode_attention_fwd_grouped_quant_int2(
    {_DECODE_PARAMETERS}, {_DECODE_OPTIONS}
):
    _decode_grouped_att_m_fwd_quant_int2(q, k_buffer, attn_logits)
    _decode_softmax_reducev_fwd(
        attn_logits, attn_lse, q, o, v_scale=1.0, v_buffer=v_buffer, kv_indptr=kv_indptr, num_kv_splits=num_kv_splits,
        max_kv_splits=max_kv_splits, sinks=sinks, output_lse=output_lse,
    )


def decode_attention_fwd_quantized(
    {_DECODE_PARAMETERS}, kv_dtype, {_DECODE_OPTIONS}
):
    assert kv_dtype == "int2" and torch.is_tensor(q)
    run = (
        decode_attention_fwd_normal_quant_int2
        if q.shape[1] == v_buffer.shape[1]
        else decode_attention_fwd_grouped_quant_int2
    )
    run(
        q, k_buffer, v_buffer, k_scales_zeros, v_scales_zeros, o, kv_indptr, kv_indices, attn_logits, attn_lse,
        num_kv_splits, max_kv_splits, sm_scale, logit_cap, sinks, xai_temperature_len, output_lse,
    )


def _decode_softmax_reducev_fwd(
    logits, lse, q, o, v_scale, v_buffer, kv_indptr, num_kv_splits, max_kv_splits, sinks=None, output_lse=None
):
    pass
'''

FILES: dict[str, str] = {
    CLIP: CLIP_TEXT,
    PREFILL: PREFILL_TEXT,
    KV_QUANT: KV_QUANT_TEXT,
    ENVIRON: ENVIRON_TEXT,
    POOL: POOL_TEXT,
    DECODE: DECODE_TEXT,
}


_ID = SourceId("pr", "pull request in memory", PIN.commit, PIN.repository)


@dataclass(frozen=True)
class MemorySource:
    """A source held in memory."""

    files: Mapping[str, str | bytes] = field(default_factory=lambda: dict(FILES))
    id: SourceId = _ID

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None."""
        data = self.files.get(path)
        return data.encode() if isinstance(data, str) else data
