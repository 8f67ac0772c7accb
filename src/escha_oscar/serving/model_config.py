"""What a checkpoint's config.json says about its KV cache, read as the untrusted file it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from escha_oscar.serving import strict_json
from escha_oscar.serving._config_section import Section
from escha_oscar.serving._layer_kinds import MAX_LAYERS, LayerKinds, layer_kinds

MAX_HEADS = 65536
MAX_HEAD_DIM = 8192
_MAX_INT = 1 << 40
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
#: Where multimodal checkpoints keep the language model; the first that is present wins.
_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_MTP_KEYS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers")


@dataclass(frozen=True)
class LinearState:
    """Recurrent state of the linear-attention (mamba, gated delta net) layers, before tensor parallelism.

    ``intermediate`` is the convolved inner width; the temporal state has ``heads * head_dim * state_size`` elements.
    """

    layers: int
    intermediate: int
    groups: int
    heads: int
    head_dim: int
    state_size: int
    conv_kernel: int
    ssm_dtype: str


@dataclass(frozen=True)
class HeadShape:
    """Attention heads of one kind of layer: KV heads of the whole model, and the sizes of one K and one V head."""

    kv_heads: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class ModelConfig:
    """One checkpoint's facts for rotations, budgets, recipes and log checks.

    ``full`` is the shape of the full-attention layers and ``sliding`` that of the sliding-window layers (equal where
    the model has none). Layer ids are global. ``linear`` is None for models without recurrent state, and also where
    the config does not describe that state.
    """

    path: str
    model_type: str
    num_layers: int
    num_attention_heads: int
    full: HeadShape
    head_dim_derived: bool
    full_attention_ids: tuple[int, ...]
    sliding: HeadShape
    sliding_ids: tuple[int, ...]
    recurrent_layers: int
    layout_key: str
    mtp_layers: int
    kv_shared_layers: int
    num_experts: int
    max_context: int | None
    linear: LinearState | None

    @property
    def head_dim(self) -> int:
        """Size of one K head of the full-attention layers."""
        return self.full.head_dim

    @property
    def v_head_dim(self) -> int:
        """Size of one V head of the full-attention layers."""
        return self.full.v_head_dim

    @property
    def num_kv_heads(self) -> int:
        """KV heads of the whole model in the full-attention layers."""
        return self.full.kv_heads

    @property
    def is_moe(self) -> bool:
        """True for mixture-of-experts checkpoints."""
        return self.num_experts > 0

    @property
    def is_hybrid(self) -> bool:
        """True where some layers keep recurrent state in place of a KV cache."""
        return self.recurrent_layers > 0

    @property
    def kv_layer_ids(self) -> tuple[int, ...]:
        """Global ids of all layers that hold KV, full and sliding, ascending."""
        return tuple(sorted((*self.full_attention_ids, *self.sliding_ids)))

    @property
    def mtp_layer_ids(self) -> tuple[int, ...]:
        """Global ids of the multi-token-prediction (draft) layers, which follow the model's own."""
        return tuple(range(self.num_layers, self.num_layers + self.mtp_layers))

    @property
    def two_head_sizes(self) -> bool:
        """True where sliding-window layers have another head size than the full-attention layers."""
        full, sliding = self.full, self.sliding
        return bool(self.sliding_ids) and (full.head_dim, full.v_head_dim) != (sliding.head_dim, sliding.v_head_dim)


def read_model_config(path: Path) -> ModelConfig:
    """Read a config.json.

    Raises UsageError with the file, the line and the JSON path of what is missing, malformed, out of bounds
    or of a kind this tool does not know (an unknown layer word is never taken for an attention layer).
    """
    document = strict_json.load(path)
    config = _text_section(Section(document, document.root, ()))
    if config.has("kv_lora_rank"):
        raise config.error("kv_lora_rank", "multi-head latent attention: there are no K and V heads to quantise")
    kinds = layer_kinds(config)
    heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    full, sliding, derived = _head_shapes(config, heads, bool(kinds.sliding))
    return ModelConfig(
        path=document.path,
        model_type=_model_type(Section(document, document.root, ())) or _model_type(config) or "unknown",
        num_layers=kinds.num_layers,
        num_attention_heads=heads,
        full=full,
        head_dim_derived=derived,
        full_attention_ids=kinds.full,
        sliding=sliding,
        sliding_ids=kinds.sliding,
        recurrent_layers=kinds.recurrent,
        layout_key=kinds.source,
        mtp_layers=_first(config, _MTP_KEYS, MAX_LAYERS),
        kv_shared_layers=config.optional("num_kv_shared_layers", 0, MAX_LAYERS) or 0,
        num_experts=_first(config, _EXPERT_KEYS, _MAX_INT),
        max_context=config.optional("max_position_embeddings", 1, _MAX_INT),
        linear=_linear_state(config, kinds),
    )


def _model_type(config: Section) -> str | None:
    """Return the name; it ends up in comments of shell scripts, so nothing but a plain word will do."""
    name = config.text("model_type")
    if name is not None and not _NAME.fullmatch(name):
        raise config.error("model_type", "is no plain name", sought="letters, digits, _ . -", found=repr(name)[:80])
    return name


def _text_section(config: Section) -> Section:
    """Descend to the object that describes the language model."""
    nested = next((key for key in _TEXT_KEYS if config.has(key)), None)
    return config if nested is None else _text_section(config.inner(nested))


def _head_shapes(config: Section, heads: int, has_sliding: bool) -> tuple[HeadShape, HeadShape, bool]:
    """Return the full-attention shape, the sliding-window shape, and whether head_dim had to be derived."""
    head_dim, derived = _head_dim(config, heads)
    kv_heads = config.optional("num_key_value_heads", 1, MAX_HEADS) or heads
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    v_head_dim = config.optional("v_head_dim", 1, MAX_HEAD_DIM) or head_dim
    plain = HeadShape(kv_heads, head_dim, v_head_dim)
    if not has_sliding:
        return plain, plain, derived
    swa_dim = config.optional("swa_head_dim", 1, MAX_HEAD_DIM) or head_dim
    swa_v = config.optional("swa_v_head_dim", 1, MAX_HEAD_DIM) or (v_head_dim if swa_dim == head_dim else swa_dim)
    swa_kv = config.optional("swa_num_key_value_heads", 1, MAX_HEADS) or kv_heads
    # The "global" names belong to the full-attention layers and leave the plain ones to the sliding layers.
    full_dim = config.optional("global_head_dim", 1, MAX_HEAD_DIM)
    full_kv = config.optional("num_global_key_value_heads", 1, MAX_HEADS) or kv_heads
    full = HeadShape(full_kv, full_dim or head_dim, full_dim or v_head_dim)
    return full, HeadShape(swa_kv, swa_dim, swa_v), derived


def _head_dim(config: Section, heads: int) -> tuple[int, bool]:
    stated = config.optional("head_dim", 1, MAX_HEAD_DIM)
    if stated is not None:
        return stated, False
    hidden = config.integer("hidden_size", 1, _MAX_INT)
    if hidden % heads or not 1 <= hidden // heads <= MAX_HEAD_DIM:
        raise config.error("hidden_size", f"head_dim is absent and {hidden} / {heads} heads is no usable head size")
    return hidden // heads, True


def _first(config: Section, keys: tuple[str, ...], high: int) -> int:
    found = (config.optional(key, 0, high) for key in keys)
    return next((value for value in found if value is not None), 0)


#: heads, head_dim, groups, state_size, conv_kernel under the names of the two families.
_DELTA_NET = (
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_conv_kernel_dim",
)
_MAMBA2 = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")


def _linear_state(config: Section, kinds: LayerKinds) -> LinearState | None:
    names = _DELTA_NET if config.has("linear_num_value_heads") else _MAMBA2
    heads, head_dim, groups, state, kernel = (config.optional(name, 1, MAX_HEADS) for name in names)
    if not (kinds.recurrent and heads and head_dim and groups and state and kernel):
        return None
    dtype = config.text("mamba_ssm_dtype") or "float32"
    return LinearState(kinds.recurrent, heads * head_dim, groups, heads, head_dim, state, kernel, dtype)
