"""Build the pools through the model runner's own code and compare what they hold with what it budgeted.

``main`` takes ``{name: case}`` with ``hybrid``, ``layers``, ``total_kv_heads``, ``tp``, ``rank``, ``head_dim``,
``group_size``, ``tokens`` and ``per_head``, and returns per case the budgeted bytes a token, the bytes that were
allocated, the slots, the log line, and which heads' rotations the rank keeps.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from inside import pools, serving
from sglang.srt.distributed import parallel_state
from sglang.srt.model_executor import model_runner_kv_cache_mixin as mixin
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

PAGE_SIZE = 1


class Runner(mixin.ModelRunnerKVCacheMixin):
    """A model runner that has resolved its options and is about to make its pools."""

    mambaish_config: Any = None

    def __init__(self, case: dict[str, Any]) -> None:
        layers = case["layers"]
        self.server_args = serving.server_args(
            attention_backend="triton",
            kv_cache_dtype="int2",
            kv_cache_quant_group_size=case["group_size"],
            max_running_requests=8,
            max_mamba_cache_size=64,
            page_size=PAGE_SIZE,
        )
        self.kv_cache_dtype, self.dtype = "int2", torch.float16
        self.model_config = _model_config(case)
        self.mambaish_config = _hybrid_config(layers) if case["hybrid"] else None
        self.start_layer, self.end_layer = (0, layers[-1] + 1) if case["hybrid"] else (layers[0], layers[-1] + 1)
        self.num_effective_layers = len(layers)
        self.tokens = case["tokens"]
        self.device, self.gpu_id, self.page_size = "cpu", 0, PAGE_SIZE
        self.pp_size = self.dp_size = self.dcp_size = 1
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.req_to_token_pool = self.token_to_kv_pool_allocator = None
        for name in ("is_draft_worker", "is_hybrid_swa", "use_mla_backend", "enable_hisparse"):
            setattr(self, name, False)

    def profile_max_num_token(self, _memory: int) -> int:
        """Give the pool the case's tokens instead of what a GPU has free."""
        return self.tokens

    def cell_size(self) -> int:
        """Return the bytes a token that this release budgets with."""
        layers = self.num_effective_layers
        if hasattr(mixin.ModelRunnerKVCacheMixin, "get_cell_size_per_token"):
            return self.get_cell_size_per_token(layers)
        from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator

        return DefaultPoolConfigurator(self)._cell_size

    def make_pools(self) -> Any:
        """Make the pools and return the one for the KV cache."""
        # The linear-attention states beside a hybrid pool are no concern of the KV cache.
        states = mock.patch.object(mixin, "HybridReqToTokenPool", lambda **_: SimpleNamespace(mamba_pool=None))
        with states:
            if hasattr(mixin.ModelRunnerKVCacheMixin, "_apply_memory_pool_config"):
                fields = "c4_max_total_num_tokens c128_max_total_num_tokens c4_state_pool_size c128_state_pool_size"
                newer = dict.fromkeys(fields.split(), 0)
                self._apply_memory_pool_config(
                    SimpleNamespace(max_total_num_tokens=self.tokens, max_running_requests=8, **newer)
                )
            else:
                self.init_memory_pool(0)
        return self.token_to_kv_pool


def _model_config(case: dict[str, Any]) -> SimpleNamespace:
    total = case["total_kv_heads"]
    return SimpleNamespace(
        head_dim=case["head_dim"],
        v_head_dim=case["head_dim"],
        context_len=1024,
        get_num_kv_heads=lambda tp: max(1, total // tp),
        get_total_num_kv_heads=lambda: total,
        hf_config=SimpleNamespace(architectures=["Qwen3ForCausalLM"]),
        is_hybrid_swa=False,
    )


def _hybrid_config(layers: list[int]) -> SimpleNamespace:
    return SimpleNamespace(full_attention_layer_ids=layers, mamba2_cache_params=SimpleNamespace(layers=[0, 1, 2]))


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(cases: dict[str, Any]) -> dict[str, Any]:
    """Build the pools of every case."""
    serving.initialise()
    return {name: _built(case) for name, case in cases.items()}


def _built(case: dict[str, Any]) -> dict[str, Any]:
    parallel_state._ATTN_TP = SimpleNamespace(world_size=case["tp"], rank_in_group=case["rank"])
    log = logging.getLogger("sglang.srt.mem_cache.memory_pool")
    lines = _Lines()
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        # Rotation files hold every head of the checkpoint; a rank keeps its own.
        shape = pools.Shape(
            q_heads=1,
            kv_heads=case["total_kv_heads"],
            head_dim=case["head_dim"],
            group_size=case["group_size"],
            layers=tuple(case["layers"]),
            hybrid=case["hybrid"],
            dtype=torch.float32,
            per_head=case["per_head"],
        )
        rotations = pools.write_rotations(shape, Path(folder))
        runner = Runner(case)
        cell, pool = runner.cell_size(), runner.make_pools()
    log.removeHandler(lines)
    held = pools.inner(pool)
    buffers = [x for group in (held.k_buffer, held.v_buffer, held.k_scales_zeros, held.v_scales_zeros) for x in group]
    return {
        "pool": type(pool).__name__,
        "cell": cell,
        "bytes": sum(x.nbytes for x in buffers),
        "k_bytes": sum(x.nbytes for x in (*held.k_buffer, *held.k_scales_zeros)),
        "slots": held.k_buffer[0].shape[0],
        "log": [line for line in lines.lines if "allocated" in line],
        "heads": [_heads_of(pool.get_oscar_rotation(layer)[0], rotations["K"][layer]) for layer in case["layers"]],
    }


def _heads_of(kept: torch.Tensor, whole: torch.Tensor) -> list[int]:
    """Return which heads of the file the kept rotations are; [-1] for one that is shared."""
    if kept.dim() == 2:
        return [-1] if torch.equal(kept, whole.to(kept.dtype)) else []
    return [i for one in kept for i, R in enumerate(whole.to(kept.dtype)) if torch.equal(one, R)]
