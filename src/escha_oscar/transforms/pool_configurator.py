"""Gives the int2 pool its true size per token, in bases that keep the cell size apart from the mixin."""

from __future__ import annotations

import libcst as cst

from escha_oscar.errors import AnchorError
from escha_oscar.model import Context
from escha_oscar.transforms._edits import edit_class, edit_method, parse_body, prepend

TARGET = "sglang/srt/model_executor/pool_configurator.py"
OWNER = "DefaultPoolConfigurator"
TOUCHES = (f"{OWNER}._compute_cell_size",)
#: Bases up to 0.5.10 have no such file: the mixin holds the cell size there.
OPTIONAL = True


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Return the runner's own int2 size first thing in ``_compute_cell_size``."""
    if "_int2_cell_size" in module.code:
        return module
    return edit_class(
        module,
        OWNER,
        ctx.path,
        lambda c: edit_method(c, "_compute_cell_size", ctx.path, lambda f: _early(f, module, ctx)),
    )


def _early(function: cst.FunctionDef, module: cst.Module, ctx: Context) -> cst.FunctionDef:
    names = [p.name.value for p in function.params.params]
    if len(names) != 3:
        raise AnchorError(
            "_compute_cell_size takes other parameters",
            path=ctx.path,
            sought="(self, runner, num_layers)",
            found=str(names),
        )
    _, runner, layers = names
    text = f'if {runner}.kv_cache_dtype == "int2":\n    return {runner}._int2_cell_size({layers})'
    return prepend(function, parse_body(text, module))
