"""The two known checkpoints as config.json texts, and a writer for variants of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MOE: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "head_dim": 256,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "full_attention_interval": 4,
        "max_position_embeddings": 262144,
        "num_experts": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
    "vision_config": {"num_hidden_layers": 27, "head_dim": 72, "num_attention_heads": 16},
}

DENSE: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "head_dim": 256,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "full_attention_interval": 4,
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
    },
}

#: The smallest plain transformer.
PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}

#: Two head sizes: sliding layers of 256, full layers of 512 with one KV head.
TWO_SIZES: dict[str, Any] = {
    "model_type": "gemma4",
    "text_config": {
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 8,
    },
}


def write_config(folder: Path, config: dict[str, Any], **changes: Any) -> Path:
    """Write a config.json; ``changes`` go into the text section, None deletes a key."""
    copy = json.loads(json.dumps(config))
    section = copy.get("text_config", copy)
    for key, value in changes.items():
        section.pop(key, None)
        if value is not None:
            section[key] = value
    path = folder / "config.json"
    path.write_text(json.dumps(copy, indent=2), encoding="utf-8")
    return path
