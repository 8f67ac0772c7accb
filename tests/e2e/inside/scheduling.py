"""Drive the real scheduler's choice of batches over real requests and pools, with the forward pass left out.

``main`` takes ``{name: scenario}``, each ``{"env", "page_size", "chunk", "mixed", "steps", "arrivals"}`` with
arrivals ``[[step, request, tokens, new_tokens], ...]``, and returns per scenario and step what ran:
``{"extend": {request: tokens}, "decode": [requests]}``.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from inside import serving
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

SLOTS = 65536
VOCABULARY = 32000

#: Switches of the scheduler, of both releases, that are off here; and collaborators that are not there.
OFF = (
    *("enable_overlap", "enable_lora", "enable_hierarchical_cache", "enable_hicache_storage", "enable_metrics"),
    *("try_preemption", "enable_priority_preemption", "enable_priority_scheduling", "enable_dynamic_chunking"),
    *("enable_hisparse", "enable_fpm", "require_mlp_sync", "is_hybrid_swa", "use_ngram_embedding"),
)
ABSENT = (
    *("dllm_config", "prefill_delayer", "min_free_slots_delayer", "truncation_align_size"),
    "_pending_chunked_abort_req",
)


class Engine(Scheduler):
    """The scheduler without its processes, sockets and model: only what choosing a batch reads."""

    def __init__(self, page_size: int, chunk: int, mixed: bool) -> None:
        args = serving.server_args(page_size=page_size, chunked_prefill_size=chunk, enable_mixed_chunk=mixed)
        self.server_args = args
        self.page_size = page_size
        self.chunked_prefill_size = chunk
        self.is_mixed_chunk = mixed
        self._set_pools()
        self._set_options()
        self.waiting_queue: list[Req] = []
        self.running_batch = ScheduleBatch(reqs=[], batch_is_full=False)
        self.last_batch: ScheduleBatch | None = None
        self.chunked_req: Req | None = None

    def _set_pools(self) -> None:
        self.req_to_token_pool = ReqToTokenPool(64, SLOTS, "cpu", enable_memory_saver=False)
        self.token_to_kv_pool_allocator = serving.allocator(self.page_size, SLOTS)
        self.tree_cache = RadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.req_to_token_pool,
                token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
                page_size=self.page_size,
            )
        )
        self.policy = SchedulePolicy("fcfs", self.tree_cache, False, False, False)
        self.model_config = SimpleNamespace(
            is_encoder_decoder=False,
            vocab_size=VOCABULARY,
            is_multimodal=False,
            is_generation=True,
            is_matryoshka=False,
        )

    def _set_options(self) -> None:
        for name in OFF:
            setattr(self, name, False)
        for name in ABSENT:
            setattr(self, name, None)
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.grammar_manager = SimpleNamespace(has_waiting_grammars=lambda: False)
        self.disaggregation_mode = None
        self.max_prefill_tokens = 1 << 20
        self.max_running_requests = 64
        self.max_prefill_bs = 0
        self.pp_size = 1
        self.priority_scheduling_preemption_threshold = 0
        self.new_token_ratio = self.min_new_token_ratio = 0.1
        self.new_token_ratio_decay = 0.0
        self._set_collaborators()

    def _set_collaborators(self) -> None:
        """Stand in for what newer releases moved out of the scheduler and a choice of batch only passes through."""
        self.new_token_ratio_tracker = SimpleNamespace(current=0.1, decay_step=lambda: None)
        self.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(prefill_aware_swa=False))
        self.load_inquirer = SimpleNamespace(_get_num_pending_tokens=lambda **_: 0)
        self.dp_attn_adapter = SimpleNamespace(maybe_prepare_mlp_sync_batch=lambda batch, **_: batch)

    def forward(self, batch: ScheduleBatch) -> None:
        """Do what the processing of a result does for scheduling: one token per finished row, prefixes cached."""
        for req in batch.reqs:
            if req is self.chunked_req:
                continue
            req.output_ids.append(7)
            serving.update_finished(req)
            if batch.forward_mode.is_extend() and req not in (batch.decoding_reqs or []):
                self.tree_cache.cache_unfinished_req(req)
        batch.output_ids = torch.full((len(batch.reqs),), 7, dtype=torch.int64)
        self.last_batch = batch


def main(scenarios: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Run each scenario on an engine of its own, under its own environment variables."""
    serving.initialise()
    return {name: _run(scenario) for name, scenario in scenarios.items()}


def _run(spec: dict[str, Any]) -> list[dict[str, Any]]:
    with mock.patch.dict(os.environ, spec["env"]):
        engine = Engine(spec["page_size"], spec["chunk"], spec["mixed"])
        return [_step(engine, [a for a in spec["arrivals"] if a[0] == step]) for step in range(spec["steps"])]


def _step(engine: Engine, arrivals: list[list[Any]]) -> dict[str, Any]:
    for _, name, tokens, new_tokens in arrivals:
        engine.waiting_queue.append(_request(name, tokens, new_tokens))
    batch = engine.get_next_batch_to_run()
    if batch is None:
        engine.last_batch = None
        return {"extend": {}, "decode": []}
    decoding = batch.decoding_reqs or [] if batch.forward_mode.is_extend() else batch.reqs
    decode = [req.rid for req in decoding]
    lengths = batch.extend_lens if batch.forward_mode.is_extend() else []
    extend = {r.rid: n for r, n in zip(batch.reqs, lengths, strict=False) if r.rid not in decode}
    engine.forward(batch)
    return {"extend": extend, "decode": decode}


def _request(name: str, tokens: int, new_tokens: int) -> Req:
    seed = sum(map(ord, name))
    ids = [(seed * 131 + i) % VOCABULARY for i in range(tokens)]
    params = SamplingParams(max_new_tokens=new_tokens, temperature=0)
    params.normalize(None)
    return serving.request(name, ids, params, VOCABULARY)
