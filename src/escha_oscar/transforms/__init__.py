"""One module per merged file, each ``transform(module, ctx) -> module``; this is the explicit registry of them."""

from __future__ import annotations

from types import ModuleType

from escha_oscar.transforms import (
    decode_attention,
    environ,
    kv_cache_mixin,
    memory_pool,
    model_runner,
    pool_configurator,
    schedule_policy,
    scheduler,
    server_args,
    triton_backend,
)

#: In the order of the mapping; ``environ`` comes last because it registers what the others' code reads.
TRANSFORMS: tuple[ModuleType, ...] = (
    server_args,
    model_runner,
    kv_cache_mixin,
    pool_configurator,
    memory_pool,
    triton_backend,
    decode_attention,
    schedule_policy,
    scheduler,
    environ,
)

__all__ = ["TRANSFORMS"]
