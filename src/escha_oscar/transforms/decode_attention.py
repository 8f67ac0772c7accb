"""Brings the INT2 decode entry points and kernels, and clamps the head tile of the stock grouped launcher."""

from __future__ import annotations

import libcst as cst

from escha_oscar.mapping import DECODE_PATHS
from escha_oscar.model import Context
from escha_oscar.transforms._anchors import code, definitions, function_def, one
from escha_oscar.transforms._edits import (
    body_of,
    edit_function,
    ensure_imports,
    insert_after,
    parse_body,
    spaced,
)

TARGET = DECODE_PATHS[0]
TOUCHES = ("<imports>", "_decode_grouped_att_m_fwd", "<added>")

_CLAMP = "BLOCK_H = _safe_block_h(BLOCK_H, kv_group_num)"


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Append the grafts after the base's own kernels, in their own order, and clamp the stock launcher."""
    if definitions(module, "decode_attention_fwd_quantized"):
        return module
    module = edit_function(
        module,
        function_def(module, "_decode_grouped_att_m_fwd", ctx.path),
        lambda f: _clamped(f, module, ctx.path),
    )
    module = ensure_imports(module, ctx.chosen.imports)
    new = [spaced(parse_body(g.text, module)[0], 2) for g in (*ctx.chosen.helpers, *ctx.chosen.grafts.values())]
    return module.with_changes(body=[*module.body, *new])


def _clamped(function: cst.FunctionDef, module: cst.Module, path: str) -> cst.FunctionDef:
    tile = one([s for s in body_of(function) if code(s).startswith("BLOCK_H = ")], "BLOCK_H = ... in its body", path)
    return insert_after(function, tile, parse_body(_CLAMP, module))
