"""Decode through CUDA graphs, captured and replayed by way of the backend's own graph hooks."""

from __future__ import annotations

from typing import Any

import torch
from inside import serving
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

LARGEST = 16


class DecodeGraph:
    """All layers of a model at one batch size, captured over padding: slot 0, one token a request."""

    def __init__(self, model: Any, size: int) -> None:
        self.model, self.size = model, size
        place = model.device
        self.inputs = [
            tuple(torch.zeros(size, x * model.shape.head_dim, dtype=model.shape.dtype, device=place) for x in heads)
            for heads in [(model.shape.q_heads, model.shape.kv_heads, model.shape.kv_heads)] * len(model.layers)
        ]
        self.batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            batch_size=size,
            input_ids=torch.zeros(size, dtype=torch.int64, device=place),
            req_pool_indices=torch.zeros(size, dtype=torch.int64, device=place),
            seq_lens=torch.ones(size, dtype=torch.int64, device=place),
            out_cache_loc=torch.zeros(size, dtype=torch.int64, device=place),
            seq_lens_sum=size,
        )
        self.batch.req_to_token_pool, self.batch.token_to_kv_pool = model.requests, model.pool
        self.batch.attn_backend = model.backend
        if not model.graphs:
            model.backend.init_cuda_graph_state(LARGEST, LARGEST)
        self._metadata(capture=True)
        self._run()  # compiles the kernels: a capture must not
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self._run()

    def _run(self) -> list[torch.Tensor]:
        with serving.forward_context(self.model.backend):
            return [x(*given, self.batch) for x, given in zip(self.model.layers, self.inputs, strict=True)]

    def _metadata(self, *, capture: bool) -> None:
        backend, batch = self.model.backend, self.batch
        if hasattr(backend, "init_forward_metadata_out_graph"):
            backend.init_forward_metadata_out_graph(batch, in_capture=capture)
        elif capture:
            backend.init_forward_metadata_capture_cuda_graph(
                self.size, self.size, batch.req_pool_indices, batch.seq_lens, None, batch.forward_mode, None
            )
        else:
            backend.init_forward_metadata_replay_cuda_graph(
                self.size,
                batch.req_pool_indices,
                batch.seq_lens,
                batch.seq_lens_sum,
                None,
                batch.forward_mode,
                None,
                batch.seq_lens.cpu(),
            )

    def replay(self, batch: ForwardBatch, inputs: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        """Copy a batch into the captured tensors, replay, and return what the layers gave."""
        for name in ("req_pool_indices", "seq_lens", "out_cache_loc"):
            getattr(self.batch, name).copy_(getattr(batch, name))
        self.batch.seq_lens_sum = batch.seq_lens_sum
        for held, given in zip(self.inputs, inputs, strict=True):
            for into, x in zip(held, given, strict=True):
                into.copy_(x)
        self._metadata(capture=False)
        self.graph.replay()
        torch.cuda.synchronize()
        return [x.clone() for x in self.outputs]


def replayed(model: Any, batch: ForwardBatch, inputs: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    """Run a decode batch through the graph of its size, capturing it at first use."""
    size = batch.batch_size
    if size not in model.graphs:
        model.graphs[size] = DecodeGraph(model, size)
    return model.graphs[size].replay(batch, inputs)
