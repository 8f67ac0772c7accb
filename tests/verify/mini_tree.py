"""Small sglang-like trees that carry a merge: one made by this tool, one made by hand in the article's style."""

from __future__ import annotations

MARK = "# escha-oscar 0.1.0: changed from the wheel's file; OSCAR INT2 KV of sglang PR #32129 (Apache-2.0).\n"

ENVIRON = """
class EnvField:
    def __init__(self, default):
        self.default = default


class EnvStr(EnvField):
    pass


class EnvFloat(EnvField):
    pass


class EnvBool(EnvField):
    pass


class Envs:
    SGLANG_OSCAR_K_ROTATION_PATH = EnvStr("")
    SGLANG_OSCAR_V_ROTATION_PATH = EnvStr("")
    SGLANG_OSCAR_K_CLIP_RATIO = EnvFloat(0.0)
    SGLANG_OSCAR_V_CLIP_RATIO = EnvFloat(0.0)
    SGLANG_LLOYD_MAX = EnvBool(False)
    SGLANG_OSCAR_KERNELS = EnvStr("native")
    SGLANG_OSCAR_PREFILL = EnvStr("auto")


envs = Envs()
"""

SERVER_ARGS = """
import argparse
import dataclasses
from typing import Optional


@dataclasses.dataclass
class ServerArgs:
    kv_cache_dtype: str = "auto"
    kv_cache_quant_group_size: Optional[int] = None

    def __post_init__(self):
        self._check_int2_kv_cache()

    def _check_int2_kv_cache(self):
        if self.kv_cache_dtype == "int2" and self.kv_cache_quant_group_size == 0:
            raise ValueError("group size")

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        parser.add_argument("--kv-cache-dtype", type=str, choices=["auto", "bf16", "fp4_e2m1", "int2"])
        parser.add_argument("--kv-cache-quant-group-size", type=int, default=None)

    @classmethod
    def from_cli_args(cls, args):
        return cls(kv_cache_dtype=args.kv_cache_dtype)
"""

ANNOTATED_SERVER_ARGS = """
import dataclasses
from typing import Annotated as A
from typing import Optional


@dataclasses.dataclass
class Arg:
    help: str = ""
    choices: Optional[list] = None


@dataclasses.dataclass
class ServerArgs:
    kv_cache_dtype: A[str, Arg(help="Data type", choices=['auto', 'fp4_e2m1', 'int2'])] = 'auto'
    kv_cache_quant_group_size: A[Optional[int], Arg(help="Elements of one scale group")] = None

    def __post_init__(self):
        self._check_int2_kv_cache()

    def _check_int2_kv_cache(self):
        if self.kv_cache_dtype == 'int2' and self.kv_cache_quant_group_size == 0:
            raise ValueError('group size')

    @classmethod
    def from_cli_args(cls, args):
        return cls(kv_cache_dtype=args.kv_cache_dtype)
"""

MODEL_RUNNER = """
import torch

from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.model_executor.model_runner_kv_cache_mixin import ModelRunnerKVCacheMixin


class ModelRunner(ModelRunnerKVCacheMixin):
    def __init__(self, server_args):
        self.server_args = server_args
        self.configure_kv_cache_dtype()
        self.attn_backend = TritonAttnBackend(self)

    def configure_kv_cache_dtype(self):
        if self.server_args.kv_cache_dtype == "auto":
            self.kv_cache_dtype = torch.float16
        elif self.server_args.kv_cache_dtype == "int2":
            self._configure_int2_kv_cache()
        else:
            raise ValueError("Unsupported kv_cache_dtype")

    def _configure_int2_kv_cache(self):
        self.kv_cache_dtype = "int2"


def build(server_args):
    return ModelRunner(server_args)
"""

MIXIN = """
import torch

from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MHATokenToKVPool


class ModelRunnerKVCacheMixin:
    def get_cell_size_per_token(self, num_layers):
        if self.kv_cache_dtype == "int2":
            return self._int2_cell_size(num_layers)
        kv_size = torch._utils._element_size(self.kv_cache_dtype)
        return num_layers * self.heads * 2 * self.head_dim * kv_size

    def _int2_cell_size(self, num_layers):
        scale_bytes = 8 * self.groups
        return num_layers * self.heads * (self.head_dim // 2 + 2 * scale_bytes)

    def _int2_pool_kwargs(self):
        if self.kv_cache_dtype != "int2":
            return {}
        return {"kv_cache_quant_group_size": self.server_args.kv_cache_quant_group_size}

    def init_memory_pool(self):
        if self.hybrid:
            self.token_to_kv_pool = HybridLinearKVPool(
                self.size, self.kv_cache_dtype, self.full_ids, **self._int2_pool_kwargs()
            )
        else:
            self.token_to_kv_pool = MHATokenToKVPool(self.size, self.kv_cache_dtype, **self._int2_pool_kwargs())
"""

MEMORY_POOL = """
from dataclasses import dataclass

import torch

from sglang.QuantKernel.oscar_rotation_clip_int2_kv import quantized_set_kv_int2_pretransformed_clip_triton
from sglang.srt.environ import envs


@dataclass(frozen=True)
class OscarRotationConfig:
    k_path: str
    v_path: str


def load_oscar_rotation_config():
    k_path = envs.SGLANG_OSCAR_K_ROTATION_PATH.default
    if not k_path:
        raise ValueError("SGLANG_OSCAR_K_ROTATION_PATH is not set")
    return OscarRotationConfig(k_path, envs.SGLANG_OSCAR_V_ROTATION_PATH.default)


def load_oscar_rotations(path, layer_num, start_layer, head_dim, device, dtype=torch.bfloat16, layer_ids=None):
    return [torch.load(path) for _ in layer_ids or range(start_layer, start_layer + layer_num)]


class KVCache:
    def __init__(self, size, dtype):
        self.size = size
        self.dtype = dtype


class MHATokenToKVPool(KVCache):
    def __init__(self, size, dtype, kv_cache_quant_group_size=None):
        super().__init__(size, dtype)
        self.group = kv_cache_quant_group_size
        self.v_head_dim = 256
        if dtype == "int2":
            self._init_int2()
        self._create_buffers()

    def _init_int2(self):
        self.groups = self._resolve_quant_grouping(256, "k")
        self._R_k = load_oscar_rotations(load_oscar_rotation_config().k_path, 1, 0, 256, "cpu")

    def _resolve_quant_grouping(self, head_dim, tensor_name):
        return head_dim // (self.group or head_dim)

    def _create_buffers(self):
        if self.dtype == "int2":
            return self._create_int2_buffers()
        self.k_buffer = [torch.zeros(1)]
        self.v_buffer = [torch.zeros(1)]

    def _create_int2_buffers(self):
        self.k_scales_zeros, self.v_scales_zeros = self._allocate_scales_zeros_buffers(self.groups)

    def _allocate_scales_zeros_buffers(self, num_groups):
        return [torch.zeros(num_groups)], [torch.zeros(num_groups)]

    def get_raw_key_buffer(self, layer_id):
        return self.k_buffer[layer_id]

    def get_raw_value_buffer(self, layer_id):
        return self.v_buffer[layer_id]

    def get_key_scales_zeros(self, layer_id):
        return self.k_scales_zeros[layer_id]

    def get_value_scales_zeros(self, layer_id):
        return self.v_scales_zeros[layer_id]

    def get_value_buffer(self, layer_id):
        return self.v_buffer[layer_id]

    def get_oscar_rotation(self, layer_id):
        return self._R_k[layer_id], self._R_k[layer_id]

    def set_kv_buffer(self, layer, loc, cache_k, cache_v, layer_id_override=None, already_hadamard_transformed=False):
        layer_id = layer_id_override if layer_id_override is not None else layer.layer_id
        if self.dtype == "int2":
            return self._set_int2_kv_buffer(layer_id, loc, cache_k, cache_v, already_hadamard_transformed)
        self.k_buffer[layer_id][loc] = cache_k

    def _set_int2_kv_buffer(self, layer_id, loc, cache_k, cache_v, transformed):
        quantized_set_kv_int2_pretransformed_clip_triton(
            cache_k,
            cache_v,
            loc,
            self.k_buffer[layer_id],
            self.v_buffer[layer_id],
            self.k_scales_zeros[layer_id],
            self.v_scales_zeros[layer_id],
            0.0,
            0.0,
        )


class HybridLinearKVPool(KVCache):
    def __init__(self, size, dtype, full_attention_layer_ids, kv_cache_quant_group_size=None):
        self.dtype = dtype
        pool_class = MHATokenToKVPool
        self.full_kv_pool = pool_class(size, dtype, kv_cache_quant_group_size=kv_cache_quant_group_size)
        self.full_attention_layer_id_mapping = {layer: i for i, layer in enumerate(full_attention_layer_ids)}

    def _transfer_full_attention_id(self, layer_id):
        return self.full_attention_layer_id_mapping[layer_id]

    def get_raw_key_buffer(self, layer_id):
        return self.full_kv_pool.get_raw_key_buffer(self._transfer_full_attention_id(layer_id))

    def get_raw_value_buffer(self, layer_id):
        return self.full_kv_pool.get_raw_value_buffer(self._transfer_full_attention_id(layer_id))

    def get_key_scales_zeros(self, layer_id):
        return self.full_kv_pool.get_key_scales_zeros(self._transfer_full_attention_id(layer_id))

    def get_value_scales_zeros(self, layer_id):
        return self.full_kv_pool.get_value_scales_zeros(self._transfer_full_attention_id(layer_id))

    def get_oscar_rotation(self, layer_id):
        return self.full_kv_pool.get_oscar_rotation(self._transfer_full_attention_id(layer_id))

    def set_kv_buffer(self, layer, loc, cache_k, cache_v, already_hadamard_transformed=False):
        self.full_kv_pool.set_kv_buffer(
            None,
            loc,
            cache_k,
            cache_v,
            layer_id_override=self._transfer_full_attention_id(layer.layer_id),
            already_hadamard_transformed=already_hadamard_transformed,
        )

    def get_v_head_dim(self):
        if self.dtype == "int2":
            return self.full_kv_pool.v_head_dim
        return self.full_kv_pool.get_value_buffer(0).shape[-1]
"""

BACKEND = """
import torch

from sglang.srt.layers.attention.quantized_kv_prefill import (
    apply_inverse_v_rotation,
    dequantize_prefix_kv,
    prepare_quantized_extend_qkv,
)


class TritonAttnBackend:
    def __init__(self, runner):
        from sglang.srt.layers.attention.triton_ops.decode_attention import (
            decode_attention_fwd,
            decode_attention_fwd_quantized,
        )

        self.pool = runner.token_to_kv_pool
        self.decode_attention_fwd = torch.compiler.disable(decode_attention_fwd)
        self.decode_attention_fwd_quantized = torch.compiler.disable(decode_attention_fwd_quantized)
        if self.pool.dtype == "int2":
            self.v_head_dim = self.pool.v_head_dim
        else:
            self.v_head_dim = self.pool.get_value_buffer(0).shape[-1]

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None):
        if getattr(self.pool, "dtype", None) == "int2":
            return self._forward_extend_int2(q, k, v, layer, forward_batch)
        return q

    def _forward_extend_int2(self, q, k, v, layer, forward_batch):
        q, k, v, inverse = prepare_quantized_extend_qkv(self.pool, layer, q, k, v)
        prefix = dequantize_prefix_kv(self.pool, layer.layer_id, forward_batch.indices, q.dtype)
        return apply_inverse_v_rotation(prefix, self.pool, layer, inverse)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None):
        is_int2 = getattr(self.pool, "dtype", None) == "int2"
        if is_int2:
            return self._forward_decode_int2(q, layer, forward_batch)
        return self.decode_attention_fwd(q, k, v)

    def _forward_decode_int2(self, q, layer, forward_batch):
        return self.decode_attention_fwd_quantized(
            q,
            self.pool.get_raw_key_buffer(layer.layer_id),
            self.pool.get_raw_value_buffer(layer.layer_id), sm_scale=1.0
        )
"""

DECODE = """
import triton
import triton.language as tl


@triton.jit
def _fwd_grouped_kernel_stage1(Q, Out, BLOCK: tl.constexpr):
    tl.store(Out, tl.load(Q))


def _safe_block_h(block_h, kv_group_num):
    return block_h if block_h >= kv_group_num else triton.next_power_of_2(kv_group_num)


def _decode_grouped_att_m_fwd(q, o, kv_group_num):
    BLOCK_H = _safe_block_h(16, kv_group_num)
    _fwd_grouped_kernel_stage1[(BLOCK_H,)](q, o, BLOCK=16, num_warps=4)


def decode_attention_fwd(q, k, v):
    _decode_grouped_att_m_fwd(q, q, 8)
    return q


def _get_scale_group_size(head_dim, scales_zeros):
    return head_dim // (scales_zeros.shape[-1] // 2)


def _get_shared_kv_scale_group_size(Lk, Lv, k_scales_zeros, v_scales_zeros):
    return _get_scale_group_size(Lk, k_scales_zeros)


def decode_attention_fwd_normal_quant_int2(q, k_buffer, v_buffer, sm_scale, logit_cap=0.0):
    return q


def decode_attention_fwd_grouped_quant_int2(q, k_buffer, v_buffer, sm_scale, logit_cap=0.0):
    return q


def decode_attention_fwd_quantized(q, k_buffer, v_buffer, sm_scale, logit_cap=0.0):
    return decode_attention_fwd_grouped_quant_int2(q, k_buffer, v_buffer, sm_scale, logit_cap=logit_cap)
"""

#: What a merge that took the pull request's own kernels has on top.
DECODE_INTERNALS = """

@triton.jit
def _fwd_kernel_stage1_quant_int2(Q, Out, NUM_GROUPS: tl.constexpr):
    FAST: tl.constexpr = NUM_GROUPS >= 4
    if FAST:
        QUARTER: tl.constexpr = NUM_GROUPS // 4
    else:
        QUARTER: tl.constexpr = 1
    tl.store(Out, tl.load(Q) * QUARTER)


@triton.jit
def _fwd_grouped_kernel_stage1_quant_int2(Q, Out, NUM_GROUPS: tl.constexpr, BLOCK_H: tl.constexpr):
    NUM_GROUPS_QUARTER: tl.constexpr = NUM_GROUPS // 4
    tl.store(Out, tl.load(Q) * NUM_GROUPS_QUARTER)


def _decode_att_m_fwd_quant_int2(q, o, kv_group_num):
    _fwd_kernel_stage1_quant_int2[(1,)](q, o, NUM_GROUPS=4)


def _decode_grouped_att_m_fwd_quant_int2(q, o, kv_group_num):
    BLOCK_H = _safe_block_h(4, kv_group_num)
    _fwd_grouped_kernel_stage1_quant_int2[(1,)](q, o, NUM_GROUPS=4, BLOCK_H=BLOCK_H)
"""

CLIP = """
import torch

from sglang.srt.mem_cache.kv_quant_kernels import _get_num_scale_groups


def quantized_set_kv_int2_pretransformed_clip_triton(
    cache_k, cache_v, loc, k_cache_buffer, v_cache_buffer, k_scales_zeros_buffer, v_scales_zeros_buffer,
    clip_ratio_k, clip_ratio_v, hp_global_offset=None, lloyd_max=False,
):
    return _get_num_scale_groups(k_scales_zeros_buffer)
"""

CLIP_INTERNALS = """

def _vectorized_elems_per_thread(dtype):
    assert dtype in (torch.bfloat16, torch.float16)
    return 8


def _clip_index(clip_ratio, head_dim):
    return min(int(clip_ratio * head_dim), head_dim - 1)


def _launch_single_clip_int2(data, loc, buf, sz_buf, clip_ratio):
    return _vectorized_elems_per_thread(data.dtype)


def _launch_grouped_clip_int2(data, loc, buf, sz_buf, clip_ratio):
    return _vectorized_elems_per_thread(data.dtype)
"""

PREFILL = """
import torch

from sglang.srt.mem_cache.kv_quant_kernels import dequantize_kv_int2_triton

try:
    from sglang.jit_kernel.hadamard import hadamard_transform
except ImportError:
    hadamard_transform = None


def _pool_uses_oscar_rotation(kv_pool):
    return getattr(kv_pool, "_R_k", None) is not None


def _apply_oscar_rotation(tensor, R):
    return (tensor.to(R.dtype) @ R).contiguous()


def prepare_quantized_extend_qkv(kv_pool, layer, q, k, v):
    return q, k, v, _pool_uses_oscar_rotation(kv_pool)


def dequantize_prefix_kv(kv_pool, layer_id, prefix_indices, model_dtype):
    return dequantize_kv_int2_triton(kv_pool.get_raw_key_buffer(layer_id), None, 256, model_dtype)


def apply_inverse_v_rotation(result, kv_pool, layer, need_v_inverse):
    return result
"""

KV_QUANT = """
import torch


def quantized_set_kv_int2_triton(cache_k, cache_v, loc, kbuf, vbuf, ksz, vsz):
    return None


def dequantize_kv_int2_triton(quantized, scales_zeros, head_dim, model_dtype):
    return quantized


def _get_num_scale_groups(scales_zeros):
    return scales_zeros.shape[-1] // 2
"""

QUANTIZATION = """
from sglang.srt.layers.quantization.escha import EschaConfig

BASE_QUANTIZATION_METHODS = {"escha": EschaConfig, "eschamoe": EschaConfig}
"""

_COPIED = {
    "sglang/QuantKernel/oscar_rotation_clip_int2_kv.py": CLIP,
    "sglang/srt/layers/attention/quantized_kv_prefill.py": PREFILL,
    "sglang/srt/mem_cache/kv_quant_kernels.py": KV_QUANT,
}
_MERGED = {
    "sglang/srt/environ.py": ENVIRON,
    "sglang/srt/server_args.py": SERVER_ARGS,
    "sglang/srt/model_executor/model_runner.py": MODEL_RUNNER,
    "sglang/srt/model_executor/model_runner_kv_cache_mixin.py": MIXIN,
    "sglang/srt/mem_cache/memory_pool.py": MEMORY_POOL,
    "sglang/srt/layers/attention/triton_backend.py": BACKEND,
    "sglang/srt/layers/attention/triton_ops/decode_attention.py": DECODE,
}
_OTHERS = {
    "sglang/__init__.py": "",
    "sglang/QuantKernel/__init__.py": "",
    "sglang/srt/layers/quantization/__init__.py": QUANTIZATION,
    "sglang/srt/layers/quantization/escha.py": "class EschaConfig:\n    pass\n",
}
_PLACED = {
    "sglang/srt/layers/attention/oscar_int2/__init__.py": "from .store import store_kv\n",
    "sglang/srt/layers/attention/oscar_int2/store.py": "def store_kv(k, v):\n    return k, v\n",
}


def merged_by_us() -> dict[str, str]:
    """Return a tree as this tool leaves it with the bundled source."""
    return {**_OTHERS, **_COPIED, **{path: MARK + text for path, text in _MERGED.items()}, **_PLACED}


def merged_by_us_from_pr() -> dict[str, str]:
    """Return a tree with the pull request's own helpers as well, and the newer annotated options."""
    tree = merged_by_us()
    tree["sglang/srt/server_args.py"] = MARK + ANNOTATED_SERVER_ARGS
    tree["sglang/srt/layers/attention/triton_ops/decode_attention.py"] += DECODE_INTERNALS
    tree["sglang/QuantKernel/oscar_rotation_clip_int2_kv.py"] += CLIP_INTERNALS
    return tree


def merged_by_hand() -> dict[str, str]:
    """Return a merge in the article's style: no marker, own names for the glue, rotations reached through ``_R_k``."""
    tree = {**_OTHERS, **_COPIED, **_MERGED}
    tree["sglang/QuantKernel/oscar_rotation_clip_int2_kv.py"] += CLIP_INTERNALS
    tree["sglang/srt/layers/attention/triton_ops/decode_attention.py"] += DECODE_INTERNALS
    renamed = {"_configure_int2_kv_cache": "_use_packed_kv", "_int2_pool_kwargs": "_quant_group_arguments",
        "_int2_cell_size": "_packed_cell_size",
               "_set_int2_kv_buffer": "_write_packed", "_create_int2_buffers": "_packed_buffers",
               "_init_int2": "_load_rotations", "_check_int2_kv_cache": "_check_group_size",
               "_forward_decode_int2": "_decode_packed", "_forward_extend_int2": "_forward_extend_quantized_dense",
               "SGLANG_OSCAR_KERNELS": "SGLANG_ESCHA_X", "SGLANG_OSCAR_PREFILL": "SGLANG_ESCHA_Y"}  # fmt: skip
    for path, text in tree.items():
        for old, new in renamed.items():
            text = text.replace(old, new)
        tree[path] = text
    return tree
