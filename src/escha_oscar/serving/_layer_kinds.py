"""Which layers of a model hold a KV cache: the ways config.json files say it, and none assumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from escha_oscar.serving._config_section import Section

MAX_LAYERS = 4096
_FULL, _SLIDING, _RECURRENT, _NO_STATE = "full", "sliding", "recurrent", "none"
_WORDS = {
    "full_attention": _FULL,
    "attention": _FULL,
    "sliding_attention": _SLIDING,
    "linear_attention": _RECURRENT,
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
    "conv": _RECURRENT,
    "recurrent": _RECURRENT,
    "mlp": _NO_STATE,
    "moe": _NO_STATE,
}
_PATTERN = {"*": _FULL, "M": _RECURRENT, "-": _NO_STATE, "E": _NO_STATE}
#: Keys that only a model with recurrent layers carries.
_RECURRENT_SIGNS = (
    "linear_num_value_heads",
    "linear_attn_config",
    "mamba_num_heads",
    "mamba_d_state",
    "ssm_state_size",
    "ssm_cfg",
)


@dataclass(frozen=True)
class LayerKinds:
    """Global ids by kind; ``source`` is the key that said so, ``recurrent`` counts linear-attention layers."""

    num_layers: int
    full: tuple[int, ...]
    sliding: tuple[int, ...]
    recurrent: int
    source: str


def layer_kinds(config: Section) -> LayerKinds:
    """Find the layers that hold KV.

    Raises UsageError for an unknown word, for two descriptions that disagree, for a length that does not fit,
    and for a model with recurrent layers whose layout is described in no known way.
    """
    found = [(key, kinds) for key, read in _READERS for kinds in [read(config, key)] if kinds is not None]
    if not found:
        return _all_full(config)
    source, kinds = found[0]
    for other, others in found[1:]:
        if others != kinds:
            layer = next((i for i, (a, b) in enumerate(zip(kinds, others, strict=False)) if a != b), len(kinds))
            raise config.error(other, f"disagrees with {source} on layer {layer}")
    ids = {kind: tuple(i for i, k in enumerate(kinds) if k == kind) for kind in (_FULL, _SLIDING)}
    if not ids[_FULL]:
        raise config.error(source, "no full-attention layer", sought="at least one layer that holds the whole KV")
    return LayerKinds(len(kinds), ids[_FULL], ids[_SLIDING], kinds.count(_RECURRENT), source)


def _all_full(config: Section) -> LayerKinds:
    sign = next((key for key in _RECURRENT_SIGNS if config.has(key)), None)
    if sign is not None:
        known = ", ".join(key for key, _ in _READERS)
        raise config.error(sign, "recurrent layers without a layer layout", sought=f"one of {known}")
    count = _count(config)
    return LayerKinds(count, tuple(range(count)), (), 0, "num_hidden_layers")


def _count(config: Section) -> int:
    return config.integer("num_hidden_layers", 1, MAX_LAYERS)


_Reader = Callable[[Section, str], tuple[str, ...] | None]


def _by_word(config: Section, key: str) -> tuple[str, ...] | None:
    words = config.array(key)
    return None if words is None else _translate(config, key, words, _WORDS)


def _by_pattern(config: Section, key: str) -> tuple[str, ...] | None:
    pattern = config.text(key)
    return None if pattern is None else _translate(config, key, list(pattern), _PATTERN)


def _by_flag(one: str, zero: str) -> _Reader:
    def read(config: Section, key: str) -> tuple[str, ...] | None:
        flags = config.array(key)
        if flags is None:
            return None
        at = (*config.at, key)
        numbers = [config.bounded((*at, i), flag, 0, 1) for i, flag in enumerate(flags)]
        return _fitting(config, key, [one if number else zero for number in numbers])

    return read


def _by_interval(other: str) -> _Reader:
    def read(config: Section, key: str) -> tuple[str, ...] | None:
        interval = config.optional(key, 1, MAX_LAYERS)
        if interval is None:
            return None
        return tuple(_FULL if (i + 1) % interval == 0 else other for i in range(_count(config)))

    return read


def _by_period(config: Section, key: str) -> tuple[str, ...] | None:
    period = config.optional(key, 1, MAX_LAYERS)
    if period is None:
        return None
    offset = config.integer("attn_layer_offset", 0, MAX_LAYERS)
    return tuple(_FULL if i % period == offset else _RECURRENT for i in range(_count(config)))


def _by_index(config: Section, key: str) -> tuple[str, ...] | None:
    ids = config.array(key)
    if ids is None:
        return None
    count, at = _count(config), (*config.at, key)
    full = {config.bounded((*at, i), value, 0, count - 1) for i, value in enumerate(ids)}
    return tuple(_FULL if i in full else _RECURRENT for i in range(count))


def _translate(config: Section, key: str, words: list[Any], table: dict[str, str]) -> tuple[str, ...]:
    kinds = []
    for index, word in enumerate(words):
        kind = table.get(word) if isinstance(word, str) else None
        if kind is None:
            at = (*config.at, key, index)
            raise config.document.error(at, f"unknown layer type {word!r}"[:120], sought=f"one of {', '.join(table)}")
        kinds.append(kind)
    return _fitting(config, key, kinds)


def _fitting(config: Section, key: str, kinds: Sequence[str]) -> tuple[str, ...]:
    """Hold a layout against num_hidden_layers; entries for MTP layers may follow the model's own."""
    count = config.optional("num_hidden_layers", 1, MAX_LAYERS) or len(kinds)
    extra = config.optional("num_nextn_predict_layers", 0, MAX_LAYERS) or 0
    if not kinds or len(kinds) > MAX_LAYERS or len(kinds) not in (count, count + extra):
        raise config.error(key, f"describes {len(kinds)} layers", sought=f"num_hidden_layers = {count}")
    return tuple(kinds[:count])


_READERS: tuple[tuple[str, _Reader], ...] = (
    ("layer_types", _by_word),
    ("layers_block_type", _by_word),
    ("hybrid_override_pattern", _by_pattern),
    ("full_attention_interval", _by_interval(_RECURRENT)),
    ("hybrid_layer_pattern", _by_flag(_SLIDING, _FULL)),
    ("attn_type_list", _by_flag(_FULL, _RECURRENT)),
    ("attn_layer_period", _by_period),
    ("full_attn_idxs", _by_index),
    ("sliding_window_pattern", _by_interval(_SLIDING)),
)
