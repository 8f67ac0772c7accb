"""Ask the merged tree for what an int2 cache cannot do, and report how each request ends.

``main`` takes ``{"options": {field: value}, "facts": {field: value}}`` and returns, per entry, the error message or
None where it was accepted: ``options`` through the real parser and start-up check, ``facts`` through the model
runner's choice of dtype, ``layers`` through the attention backend, ``pool`` through the pool's other users.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from inside import attention, pools, serving
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.server_args import ServerArgs, prepare_server_args

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 128,
    "max_position_embeddings": 1024,
    "torch_dtype": "float16",
}
LAUNCH = ["--device", "cpu", "--attention-backend", "triton", "--kv-cache-dtype", "int2"]
CASE = {
    "q_heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "group_size": 32,
    "layers": [4, 5],
    "hybrid": False,
    "dtype": "float16",
    "slots": 64,
}


def main(spec: dict[str, Any]) -> dict[str, Any]:
    """Try everything in ``spec``."""
    serving.initialise()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        args = prepare_server_args(["--model-path", folder, *LAUNCH, "--kv-cache-quant-group-size", "32"])
        return {
            "launch": _outcome(args.check_server_args),
            "options": {name: _option(args, *entry) for name, entry in spec["options"].items()},
            "unknown": [field for field, _ in spec["options"].values() if not hasattr(args, field)],
            "facts": {name: _fact(args, {field: value}) for name, (field, value) in spec["facts"].items()},
            "dtype": _fact(args, {}),
            **_layers_and_pool(Path(folder)),
        }


def _outcome(ask: Callable[[], object]) -> str | None:
    try:
        ask()
    except (ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _option(args: ServerArgs, field: str, value: Any) -> str | None:
    changed = copy.copy(args)
    setattr(changed, field, value)
    return _outcome(changed.check_server_args)


def _fact(args: ServerArgs, facts: dict[str, Any]) -> str | None:
    """Return how the real ``configure_kv_cache_dtype`` ends for a model runner of which ``facts`` hold."""
    text = SimpleNamespace(num_kv_shared_layers=facts.pop("num_kv_shared_layers", 0))
    head_dim = facts.pop("head_dim", 64)
    runner = SimpleNamespace(
        server_args=args,
        model_config=SimpleNamespace(head_dim=head_dim, v_head_dim=head_dim, hf_text_config=text),
        **{"is_draft_worker": False, "use_mla_backend": False, "is_hybrid_swa": False, **facts},
        **{name: None for name in ("sliding_window_size", "attention_chunk_size") if name not in facts},
    )
    runner._configure_int2_kv_cache = lambda: ModelRunner._configure_int2_kv_cache(runner)
    ended = _outcome(lambda: ModelRunner.configure_kv_cache_dtype(runner))
    return ended or (None if runner.kv_cache_dtype == "int2" else f"became {runner.kv_cache_dtype}")


def _layers_and_pool(folder: Path) -> dict[str, Any]:
    model = attention.Model(pools.Shape.of(CASE), folder, "cpu")
    batch = model.batch("extend", [["a", 3]])
    model.backend.init_forward_metadata(batch)
    rows = [model.random(heads, 3) for heads in (4, 2, 2)]

    def run(k: Any, v: Any, **layer: Any) -> str | None:
        made = RadixAttention(4, 64, 0.125, num_kv_heads=2, layer_id=4, **layer)
        with serving.forward_context(model.backend):
            return _outcome(lambda: made(rows[0], k, v, batch))

    layers = {
        "plain": run(*rows[1:]),
        "shared KV": run(None, None),
        "sliding window": run(*rows[1:], sliding_window_size=8),
        "cross attention": run(*rows[1:], is_cross_attention=True),
    }
    return {"layers": layers, "pool": _pool_users(model, batch.out_cache_loc)}


def _pool_users(model: attention.Model, slots: torch.Tensor) -> dict[str, Any]:
    """Exercise the pool's other users: reads of unpacked rows, copies to the CPU and back, moves, buffer lists."""
    pool, buffers = model.pool, model.pool._int2_buffers()
    kept = [[x[slots].clone() for x in group] for group in buffers]
    saved = pool.get_cpu_copy(slots)
    for group in buffers:
        for x in group:
            x[slots] = 0
    pool.load_cpu_copy(saved, slots)
    restored = [[x[slots].clone() for x in group] for group in buffers]
    elsewhere = torch.tensor(model.free[-3:])
    pool.move_kv_cache(elsewhere, slots)
    moved = [[x[elsewhere] for x in group] for group in buffers]
    pointers, lengths, items = pool.get_contiguous_buf_infos()
    every = [x for group in buffers for x in group]
    return {
        "get_key_buffer": _outcome(lambda: pool.get_key_buffer(4)),
        "get_value_buffer": _outcome(lambda: pool.get_value_buffer(4)),
        "get_kv_buffer": _outcome(lambda: pool.get_kv_buffer(4)),
        "restored": _same(kept, restored),
        "moved": _same(kept, moved),
        "buffers": pointers == [x.data_ptr() for x in every]
        and lengths == [x.nbytes for x in every]
        and items == [x[0].nbytes for x in every],
    }


def _same(one: list[list[torch.Tensor]], other: list[list[torch.Tensor]]) -> bool:
    pairs = [(x, y) for a, b in zip(one, other, strict=True) for x, y in zip(a, b, strict=True)]
    # Layer 5 was never written: its scales are NaN on both sides.
    return all(torch.equal(x.nan_to_num(7), y.nan_to_num(7)) for x, y in pairs)
