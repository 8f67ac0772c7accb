"""Two small runtimes as a fork ships them, complete enough to be integrated and verified, in two layouts.

Every file that is merged carries marks of the fork: an option, a branch, a registry entry, a method, Japanese comments.
All of them are listed in ``MARKS``.
"""

from __future__ import annotations

from collections.abc import Mapping

from escha_oscar.mapping import DECODE_PATHS

Files = dict[str, str]

SRT = "sglang/srt"
ENVIRON = f"{SRT}/environ.py"
SERVER_ARGS = f"{SRT}/server_args.py"
RUNNER = f"{SRT}/model_executor/model_runner.py"
MIXIN = f"{SRT}/model_executor/model_runner_kv_cache_mixin.py"
CONFIGURATOR = f"{SRT}/model_executor/pool_configurator.py"
POOL = f"{SRT}/mem_cache/memory_pool.py"
BACKEND = f"{SRT}/layers/attention/triton_backend.py"
DECODE = DECODE_PATHS[0]
EXTEND = f"{SRT}/layers/attention/triton_ops/extend_attention.py"
SCHEDULER = f"{SRT}/managers/scheduler.py"
POLICY = f"{SRT}/managers/schedule_policy.py"
QUANTIZATION = f"{SRT}/layers/quantization/__init__.py"

ENVIRON_TEXT = """\
import os


class EnvField:
    def __init__(self, default):
        self.default = default

    def __set_name__(self, owner, name):
        self.name = name

    def get(self):
        return os.environ.get(self.name, self.default)


class EnvStr(EnvField):
    pass


class EnvInt(EnvField):
    pass


class EnvFloat(EnvField):
    pass


class EnvBool(EnvField):
    pass


class Envs:
    # フォーク独自の変数
    ESCHA_TWO_BIT = EnvBool(True)
    SGLANG_LOG_LEVEL = EnvStr("info")

    def __setattr__(self, name, value):
        raise AttributeError(name)


envs = Envs()
"""

SERVER_ARGS_LIST = """\
from __future__ import annotations

import argparse
import dataclasses
from typing import Optional


@dataclasses.dataclass
class ServerArgs:
    model_path: str = ""
    # Data type of the KV cache
    kv_cache_dtype: str = "auto"
    escha_pack: int = 2  # フォーク: 重みのビット数
    attention_backend: Optional[str] = None

    def __post_init__(self):
        self.check_server_args()

    def check_server_args(self):
        assert self.escha_pack in (2, 4), "escha_pack"

    def get_attention_backends(self):
        return self.attention_backend, self.attention_backend

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        parser.add_argument("--model-path", type=str)
        parser.add_argument(
            "--kv-cache-dtype",
            type=str,
            default=ServerArgs.kv_cache_dtype,
            choices=["auto", "fp8_e5m2", "fp8_e4m3", "escha_kv", "fp4_e2m1"],
            help="Data type of the KV cache.",
        )
        # フォークのオプション
        parser.add_argument("--escha-pack", type=int, default=ServerArgs.escha_pack)

    @classmethod
    def from_cli_args(cls, args):
        return cls(kv_cache_dtype=args.kv_cache_dtype)
"""

SERVER_ARGS_ANNOTATED = '''\
import dataclasses
from typing import Annotated as A
from typing import List, Optional


@dataclasses.dataclass
class Arg:
    help: str = ""
    choices: Optional[List[str]] = None


@dataclasses.dataclass
class ServerArgs:
    model_path: A[str, "Where the weights are."] = ""
    kv_cache_dtype: A[
        str,
        Arg(
            help="Data type of the KV cache.",
            choices=["auto", "fp8_e5m2", "fp8_e4m3", "escha_kv", "fp4_e2m1"],
        ),
    ] = "auto"
    # フォークのオプション
    escha_pack: A[int, "Bits of a weight."] = 2

    def __post_init__(self):
        self.check_server_args()

    def check_server_args(self):
        """Check everything."""
        assert self.escha_pack in (2, 4), "escha_pack"

    def get_attention_backends(self):
        return "triton", "triton"

    @classmethod
    def from_cli_args(cls, args):
        return cls(kv_cache_dtype=args.kv_cache_dtype)
'''

RUNNER_TEXT = """\
import torch

from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.model_executor.model_runner_kv_cache_mixin import ModelRunnerKVCacheMixin


class ModelRunner(ModelRunnerKVCacheMixin):
    def __init__(self, model_config, server_args):
        self.model_config = model_config
        self.server_args = server_args
        self.dtype = torch.float16
        self.is_draft_worker = False
        self.use_mla_backend = False
        self.is_hybrid_swa = False
        self.sliding_window_size = None
        self.mambaish_config = None
        self.configure_kv_cache_dtype()
        self.init_memory_pool()
        self.attn_backend = TritonAttnBackend(self)

    def configure_kv_cache_dtype(self):
        if self.server_args.kv_cache_dtype == "auto":
            self.kv_cache_dtype = self.dtype
        elif self.server_args.kv_cache_dtype == "escha_kv":
            # フォークの分岐
            self.kv_cache_dtype = torch.int8
        elif self.server_args.kv_cache_dtype == "fp8_e4m3":
            self.kv_cache_dtype = torch.float8_e4m3fn
        else:
            raise ValueError(
                f"Unsupported kv_cache_dtype: {self.server_args.kv_cache_dtype}."
            )

    def escha_warmup(self):
        return self.kv_cache_dtype


def build(model_config, server_args):
    return ModelRunner(model_config, server_args)
"""

_POOLS = """\
        if self.mambaish_config is not None:
            self.token_to_kv_pool = HybridLinearKVPool(
                size=self.max_total_num_tokens,
                dtype=self.kv_cache_dtype,
                page_size=1,
                head_num=self.model_config.get_num_kv_heads(get_attention_tp_size()),
                head_dim=self.model_config.head_dim,
                full_attention_layer_ids=list(self.mambaish_config.full_attention_layer_ids),
                device="cuda",
            )
        else:
            self.token_to_kv_pool = MHATokenToKVPool(
                self.max_total_num_tokens,
                page_size=1,
                dtype=self.kv_cache_dtype,
                head_num=self.model_config.get_num_kv_heads(get_attention_tp_size()),
                head_dim=self.model_config.head_dim,
                layer_num=self.model_config.num_hidden_layers,
                device="cuda",
            )
"""

_MIXIN_HEAD = """\
import torch

from sglang.srt.layers.dp_attention import get_attention_tp_size
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MHATokenToKVPool


class ModelRunnerKVCacheMixin:
    # フォーク: 予約するトークン数
    ESCHA_RESERVE = 64

"""

MIXIN_OLD = f"""\
{_MIXIN_HEAD}\
    def get_cell_size_per_token(self, num_layers: int) -> int:
        size = torch._utils._element_size(self.kv_cache_dtype)
        heads = self.model_config.get_num_kv_heads(get_attention_tp_size())
        return 2 * heads * self.model_config.head_dim * num_layers * size

    def init_memory_pool(self):
        cell = self.get_cell_size_per_token(self.model_config.num_hidden_layers)
        self.max_total_num_tokens = (1 << 30) // cell - self.ESCHA_RESERVE
{_POOLS}"""

MIXIN_NEW = f"""\
{_MIXIN_HEAD}\
    def init_memory_pool(self):
        from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator

        configurator = DefaultPoolConfigurator()
        cell = configurator._compute_cell_size(self, self.model_config.num_hidden_layers)
        self.max_total_num_tokens = (1 << 30) // cell - self.ESCHA_RESERVE
        self._init_pools()

    def _init_pools(self):
{_POOLS}"""

CONFIGURATOR_TEXT = '''\
import torch

from sglang.srt.layers.dp_attention import get_attention_tp_size


class DefaultPoolConfigurator:
    def _compute_cell_size(self, mr, num_layers: int) -> int:
        """Return the bytes of one token."""
        # フォーク: 実測値との差を引かない
        size = torch._utils._element_size(mr.kv_cache_dtype)
        heads = mr.model_config.get_num_kv_heads(get_attention_tp_size())
        return 2 * heads * mr.model_config.head_dim * num_layers * size

    def escha_reserve(self):
        return 64
'''

POOL_TEXT = '''\
from __future__ import annotations

"""KV pools."""

import logging
from contextlib import nullcontext
from typing import List, Optional, Tuple

import numpy as np
import torch

from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE
from sglang.srt.environ import envs
from sglang.srt.utils import TorchMemorySaverAdapter

logger = logging.getLogger(__name__)

# フォークの登録表
ESCHA_POOLS = {"escha_kv": torch.int8}


class KVCache:
    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        layer_num: int,
        device: str,
        start_layer: Optional[int] = None,
    ):
        self.size = size
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        if dtype in (torch.float8_e5m2, torch.float8_e4m3fn):
            # Stored as bytes
            self.store_dtype = torch.uint8
        else:
            self.store_dtype = dtype
        self.layer_num = layer_num
        self.start_layer = start_layer or 0
        self.memory_saver_adapter = TorchMemorySaverAdapter.create(enable=False)
        self.mem_usage = 0
        self.cpu_offloading_chunk_size = 8192
        self.layer_transfer_counter = None
        self.enable_custom_mem_pool, self.custom_mem_pool = False, None


class MHATokenToKVPool(KVCache):
    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        head_num: int,
        head_dim: int,
        layer_num: int,
        device: str,
        v_head_dim: Optional[int] = None,
        start_layer: Optional[int] = None,
    ):
        super().__init__(size, page_size, dtype, layer_num, device, start_layer)
        self.head_num = head_num
        self.head_dim = head_dim
        self.v_head_dim = v_head_dim if v_head_dim is not None else head_dim

        # Buffers come last
        self._create_buffers()

    def _create_buffers(self):
        with self.memory_saver_adapter.region(GPU_MEMORY_TYPE_KV_CACHE), nullcontext():
            shape = (self.size + self.page_size, self.head_num, self.head_dim)
            self.k_buffer = [torch.zeros(shape, dtype=self.store_dtype) for _ in range(self.layer_num)]
            self.v_buffer = [torch.zeros(shape, dtype=self.store_dtype) for _ in range(self.layer_num)]
        self.data_strides = [np.prod(x.shape[1:]) for x in self.k_buffer]

    def get_kv_size_bytes(self) -> Tuple[int, int]:
        return sum(x.nbytes for x in self.k_buffer), sum(x.nbytes for x in self.v_buffer)

    def escha_stats(self):
        return len(self.k_buffer)

    def _get_key_buffer(self, layer_id: int):
        return self.k_buffer[layer_id - self.start_layer]

    def get_key_buffer(self, layer_id: int):
        return self._get_key_buffer(layer_id)

    def _get_value_buffer(self, layer_id: int):
        return self.v_buffer[layer_id - self.start_layer]

    def get_value_buffer(self, layer_id: int):
        return self._get_value_buffer(layer_id)

    def set_kv_buffer(
        self,
        layer,
        loc: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        k_scale: Optional[float] = None,
        v_scale: Optional[float] = None,
        layer_id_override: Optional[int] = None,
    ):
        if layer_id_override is not None:
            layer_id = layer_id_override
        else:
            layer_id = layer.layer_id
        self.k_buffer[layer_id - self.start_layer][loc] = cache_k.to(self.dtype)
        self.v_buffer[layer_id - self.start_layer][loc] = cache_v.to(self.dtype)

    def move_kv_cache(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor):
        for buffer in self.k_buffer + self.v_buffer:
            buffer[tgt_loc] = buffer[src_loc]


class HybridLinearKVPool(KVCache):
    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        page_size: int,
        head_num: int,
        head_dim: int,
        full_attention_layer_ids: List[int],
        device: str,
        use_mla: bool = False,
    ):
        self.size = size
        self.dtype = dtype
        self.device = device
        self.start_layer = 0
        self.layer_transfer_counter = None
        self.use_mla = use_mla
        assert not use_mla
        TokenToKVPoolClass = MHATokenToKVPool
        self.full_kv_pool = TokenToKVPoolClass(
            size=size,
            page_size=page_size,
            dtype=dtype,
            head_num=head_num,
            head_dim=head_dim,
            layer_num=len(full_attention_layer_ids),
            device=device,
        )
        self.full_attention_layer_id_mapping = {
            layer: index for index, layer in enumerate(full_attention_layer_ids)
        }

    def _transfer_full_attention_id(self, layer_id: int):
        return self.full_attention_layer_id_mapping[layer_id]

    def get_value_buffer(self, layer_id: int):
        return self.full_kv_pool.get_value_buffer(self._transfer_full_attention_id(layer_id))

    def set_kv_buffer(self, layer, loc, cache_k, cache_v, k_scale: float = 1.0, v_scale: float = 1.0):
        layer_id = self._transfer_full_attention_id(layer.layer_id)
        if not self.use_mla:
            self.full_kv_pool.set_kv_buffer(
                None, loc, cache_k, cache_v, k_scale, v_scale, layer_id_override=layer_id
            )

    def get_v_head_dim(self):
        return self.full_kv_pool.get_value_buffer(0).shape[-1]
'''

_BACKEND_HEAD = """\
import torch

from sglang.srt.environ import envs
from sglang.srt.layers.radix_attention import AttentionType


def logit_capping_mod(logit_capping_method, logit_cap):
    return logit_cap if logit_capping_method else 0.0


class TritonAttnBackend:
    def __init__(self, model_runner, skip_prefill: bool = False):
        # フォーク: 遅延読み込み
        from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd
        from sglang.srt.layers.attention.triton_ops.extend_attention import extend_attention_fwd

        self.decode_attention_fwd = decode_attention_fwd
        self.extend_attention_fwd = extend_attention_fwd
        self.forward_metadata = None
        self.max_kv_splits = 8
        self.allow_bidirectional_attention_in_extend = False
"""

_BACKEND_TAIL = """
    def escha_plan(self):
        return self.max_kv_splits

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None):
        # Output of another width
        if layer.qk_head_dim != layer.v_head_dim:
            o = q.new_empty((q.shape[0], layer.tp_q_head_num * layer.v_head_dim))
        else:
            o = torch.empty_like(q)
        if layer.attn_type == AttentionType.ENCODER_ONLY:
            save_kv_cache = False
        if save_kv_cache:
            forward_batch.token_to_kv_pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        return o

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None):
        q = q.reshape(-1, layer.tp_q_head_num * layer.qk_head_dim)
        return torch.empty_like(q)
"""

BACKEND_OLD = f"""\
{_BACKEND_HEAD}\
        # Hybrid models answer for their full-attention layers
        if model_runner.mambaish_config is not None:
            self.v_head_dim = model_runner.token_to_kv_pool.get_v_head_dim()
        else:
            self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[
                -1
            ]
        self.device = "cuda"
{_BACKEND_TAIL}"""

BACKEND_NEW = f"""\
{_BACKEND_HEAD}\
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.sliding_window_size = model_runner.sliding_window_size
        if self.sliding_window_size is not None:
            self.v_head_dim = 256
            self.swa_v_head_dim = 128
        elif model_runner.mambaish_config is not None:
            self.v_head_dim = model_runner.token_to_kv_pool.get_v_head_dim()
            self.swa_v_head_dim = None
        else:
            self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[-1]
            self.swa_v_head_dim = None
        self.device = "cuda"
{_BACKEND_TAIL}"""

DECODE_TEXT = '''\
"""Decode attention."""

import triton
import triton.language as tl


# 二段目
@triton.jit
def _fwd_kernel_stage2(Mid_O, O, BLOCK_DV: tl.constexpr):
    offs = tl.arange(0, BLOCK_DV)
    tl.store(O + offs, tl.load(Mid_O + offs))


def _decode_softmax_reducev_fwd(logits, lse, q, o, v_buffer, kv_indptr, num_kv_splits, max_kv_splits, sinks=None):
    _fwd_kernel_stage2[(q.shape[0],)](logits, o, BLOCK_DV=16)


def _decode_grouped_att_m_fwd(q, k_buffer, att_out, kv_group_num):
    BLOCK = 32
    BLOCK_H = 16
    # フォーク: 共有メモリの都合
    head_num = q.shape[1]
    grid = (q.shape[0], triton.cdiv(head_num, min(BLOCK_H, kv_group_num)))
    return grid, BLOCK


def decode_attention_fwd(q, k_buffer, v_buffer, o):
    _decode_grouped_att_m_fwd(q, k_buffer, o, 8)


def escha_decode(q):
    return q
'''

EXTEND_OLD = """\
def extend_attention_fwd(
    q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, custom_mask,
    is_causal, mask_indptr, max_len_extend, sm_scale=None, logit_cap=0.0, skip_prefix_custom_mask=True, sinks=None,
    xai_temperature_len=-1,
):
    return o_extend
"""

EXTEND_NEW = EXTEND_OLD.replace("max_len_extend, sm_scale", "max_len_extend, k_scale, v_scale, sm_scale")

SCHEDULER_TEXT = """\
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder


class Scheduler:
    def __init__(self, page_size, rem_chunk_tokens):
        self.page_size = page_size
        self.rem_chunk_tokens = rem_chunk_tokens
        self.chunked_req = None
        self.waiting_queue = []

    def escha_drain(self):
        return len(self.waiting_queue)

    def get_new_batch_prefill(self):
        # フォーク: 優先度
        adder = PrefillAdder(
            self.page_size,
            None,
            self.rem_chunk_tokens,
        )
        if self.chunked_req is not None:
            self.chunked_req = adder.add_chunked_req(self.chunked_req)
        for req in self.waiting_queue:
            res = adder.add_one_req(req, has_chunked_req=(self.chunked_req is not None))
            if res != AddReqResult.CONTINUE:
                break
        return adder


def build(page_size, rem_chunk_tokens):
    return Scheduler(page_size, rem_chunk_tokens)
"""

POLICY_TEXT = """\
from __future__ import annotations

from enum import Enum
from typing import List, Optional


class AddReqResult(Enum):
    CONTINUE = 1
    NO_TOKEN = 2
    OTHER = 3


class Req:
    extend_input_len = 0


class PrefillAdder:
    def __init__(self, page_size: int, running_batch, rem_chunk_tokens: Optional[int], mixed_decode_tokens: int = 0):
        self.page_size = page_size
        self.running_batch = running_batch
        self.rem_chunk_tokens = rem_chunk_tokens
        if self.rem_chunk_tokens is not None:
            self.rem_chunk_tokens -= mixed_decode_tokens
        self.rem_total_tokens = 1 << 20
        self.can_run_list: List[Req] = []
        self.new_chunked_req = None  # フォーク: 残す

    def escha_budget(self):
        return self.rem_chunk_tokens

    def add_chunked_req(self, req):
        _rem_tokens = min(self.rem_chunk_tokens, int(self.rem_total_tokens))
        if _rem_tokens <= 0:
            _rem_tokens = self.rem_chunk_tokens
        return req if req.extend_input_len > _rem_tokens else None

    def add_one_req_ignore_eos(self, req):
        if self.rem_chunk_tokens is None or req.extend_input_len <= self.rem_chunk_tokens:
            self.can_run_list.append(req)
        else:
            self.new_chunked_req = req
        return AddReqResult.CONTINUE

    def add_one_req(self, req, has_chunked_req: bool):
        if self.rem_chunk_tokens is None or req.extend_input_len <= self.rem_chunk_tokens:
            self.can_run_list.append(req)
        else:
            self.new_chunked_req = req
        return AddReqResult.CONTINUE
"""

_COMMON: Files = {
    "sglang/__init__.py": "",
    f"{SRT}/__init__.py": "",
    f"{SRT}/constants.py": 'GPU_MEMORY_TYPE_KV_CACHE = "kv_cache"\n',
    f"{SRT}/utils/__init__.py": (
        "class TorchMemorySaverAdapter:\n    @staticmethod\n    def create(enable):\n"
        "        return TorchMemorySaverAdapter()\n"
    ),
    f"{SRT}/layers/__init__.py": "",
    f"{SRT}/layers/attention/__init__.py": "",
    f"{SRT}/layers/attention/triton_ops/__init__.py": "",
    f"{SRT}/layers/dp_attention.py": (
        "def get_attention_tp_size():\n    return 1\n\n\ndef get_attention_tp_rank():\n    return 0\n"
    ),
    f"{SRT}/layers/radix_attention.py": (
        'class AttentionType:\n    ENCODER_ONLY = "encoder_only"\n    DECODER_BIDIRECTIONAL = "decoder_bidirectional"\n'
    ),
    QUANTIZATION: (
        "class EschaConfig:\n    pass\n\n\n"
        'BASE_QUANTIZATION_METHODS = {"escha": EschaConfig, "eschamoe": EschaConfig}\n'
    ),
    f"{SRT}/mem_cache/__init__.py": "",
    f"{SRT}/managers/__init__.py": "",
    f"{SRT}/model_executor/__init__.py": "",
    ENVIRON: ENVIRON_TEXT,
    RUNNER: RUNNER_TEXT,
    POOL: POOL_TEXT,
    DECODE: DECODE_TEXT,
    SCHEDULER: SCHEDULER_TEXT,
    POLICY: POLICY_TEXT,
}

#: Laid out like the MoE wheel's tree: argparse options, cell size in the mixin, no scales in the extend kernel.
OLD: Files = {
    **_COMMON,
    SERVER_ARGS: SERVER_ARGS_LIST,
    MIXIN: MIXIN_OLD,
    BACKEND: BACKEND_OLD,
    EXTEND: EXTEND_OLD,
}

#: Laid out like the dense wheel's tree: annotated fields, a pool configurator, scales in the extend kernel.
NEW: Files = {
    **_COMMON,
    SERVER_ARGS: SERVER_ARGS_ANNOTATED,
    MIXIN: MIXIN_NEW,
    CONFIGURATOR: CONFIGURATOR_TEXT,
    BACKEND: BACKEND_NEW,
    EXTEND: EXTEND_NEW,
}

LAYOUTS = {"older layout": OLD, "newer layout": NEW}

#: What only the fork has, by file; each must stand in the merged file as it stood before.
MARKS: Mapping[str, tuple[str, ...]] = {
    ENVIRON: ("    # フォーク独自の変数\n    ESCHA_TWO_BIT = EnvBool(True)\n",),
    SERVER_ARGS: ("escha_pack", '"fp8_e4m3", "escha_kv", "fp4_e2m1"', "# フォークのオプション"),
    RUNNER: ("# フォークの分岐\n            self.kv_cache_dtype = torch.int8\n", "    def escha_warmup(self):\n"),
    MIXIN: ("    # フォーク: 予約するトークン数\n    ESCHA_RESERVE = 64\n", "- self.ESCHA_RESERVE\n"),
    POOL: ('# フォークの登録表\nESCHA_POOLS = {"escha_kv": torch.int8}\n', "    def escha_stats(self):\n"),
    BACKEND: ("# フォーク: 遅延読み込み\n", "    def escha_plan(self):\n"),
    DECODE: ("# 二段目\n@triton.jit\n", "# フォーク: 共有メモリの都合\n", "def escha_decode(q):\n    return q\n"),
    SCHEDULER: ("# フォーク: 優先度\n", "    def escha_drain(self):\n"),
    POLICY: ("# フォーク: 残す\n", "    def escha_budget(self):\n"),
}


def encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    """Return ``files`` as a tree in memory holds them."""
    return {path: text.encode() for path, text in files.items()}
