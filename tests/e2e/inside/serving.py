"""What both releases need before their classes can be made: global arguments, an allocator, a request."""

from __future__ import annotations

import array
import inspect
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
