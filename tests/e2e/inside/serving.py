"""What both releases need before their classes can be made: global arguments, an allocator, a request."""

from __future__ import annotations

import array
import contextlib
import inspect
import os
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler


def server_args(**options: Any) -> ServerArgs:
    """Return arguments for no model at all, published as the process's own."""
    args = ServerArgs(model_path="dummy", device="cpu", **options)
    args.pp_max_micro_batch_size = 64
    set_global_server_args_for_scheduler(args)
    return args


def initialise() -> None:
    """Make results repeatable and tensors land on the CPU."""
    torch.manual_seed(0)
    torch.set_num_threads(2)


def allocator(page_size: int, slots: int) -> Any:
    """Return the release's token allocator over ``slots`` slots without a pool behind it."""
    from sglang.srt.mem_cache import allocator as module

    if page_size == 1:
        return module.TokenToKVPoolAllocator(slots, torch.float16, "cpu", None, False)
    return module.PagedTokenToKVPoolAllocator(slots, page_size, torch.float16, "cpu", None, False)


def request(name: str, ids: list[int], params: Any, vocabulary: int) -> Req:
    """Return a request of ``ids``; newer releases hold them in an array."""
    annotation = str(inspect.signature(Req).parameters["origin_input_ids"].annotation)
    held = array.array("q", ids) if "array" in annotation else ids
    return Req(name, "", held, params, vocab_size=vocabulary)


def update_finished(req: Req) -> None:
    """Let a request see whether it has produced all its tokens; newer releases renamed the method."""
    check = getattr(req, "update_finish_state", None) or req.check_finished
    check()


def device() -> str:
    """Return where tensors live: ``cpu``, or ``cuda`` where the rig was told so."""
    return os.environ.get("ESCHA_OSCAR_E2E_DEVICE", "cpu")


def model_runner(shape: Any, pool: Any, requests: Any, place: str) -> Any:
    """Return the little of a model runner that the Triton backend reads, on a single rank."""
    args = server_args(attention_backend="triton")
    _single_rank()
    config = SimpleNamespace(
        num_attention_heads=shape.q_heads,
        get_num_kv_heads=lambda _tp: shape.kv_heads,
        v_head_dim=shape.head_dim,
        swa_v_head_dim=shape.head_dim,
        context_len=shape.slots,
        is_encoder_decoder=False,
        attention_arch=None,
    )
    return SimpleNamespace(
        server_args=args,
        model_config=config,
        req_to_token_pool=requests,
        token_to_kv_pool=pool,
        token_to_kv_pool_allocator=SimpleNamespace(),
        sliding_window_size=None,
        hybrid_gdn_config=SimpleNamespace() if shape.hybrid else None,
        kimi_linear_config=None,
        linear_attn_model_spec=None,
        device=place,
        gpu_id=0,
        page_size=1,
    )


def _single_rank() -> None:
    """Say that attention runs on one rank; no process group is made for that."""
    from sglang.srt.distributed import parallel_state

    parallel_state._ATTN_TP = SimpleNamespace(world_size=1, rank_in_group=0)


def forward_context(backend: Any) -> Any:
    """Return the context in which newer releases find the backend; older ones read it from the batch."""
    try:
        from sglang.srt.model_executor import forward_context as module
    except ImportError:
        return contextlib.nullcontext()
    return module.forward_context(module.ForwardContext(attn_backend=backend))
