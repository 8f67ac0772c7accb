"""Gives the int2 pool its true size per token, and its constructors the dtype, group size and KV-head range."""

from __future__ import annotations

import libcst as cst

from escha_oscar.model import Context
from escha_oscar.transforms._anchors import class_def, code, dotted, find_all, has_method, keyword, methods, one
from escha_oscar.transforms._edits import (
    add_arguments,
    add_methods,
    edit_class,
    edit_method,
    parse_body,
    prepend,
    replace_node,
)

TARGET = "sglang/srt/model_executor/model_runner_kv_cache_mixin.py"
OWNER = "ModelRunnerKVCacheMixin"
TOUCHES = (
    OWNER,
    f"{OWNER}.get_cell_size_per_token",
    f"{OWNER}.init_memory_pool",
    f"{OWNER}._init_pools",
    f"{OWNER}._int2_cell_size",
    f"{OWNER}._int2_pool_kwargs",
)

_CELL = """
if self.kv_cache_dtype == "int2":
    return self._int2_cell_size(num_layers)
"""


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Give the two pools that can be int2 their arguments, and the cell size its early branch where it is here."""
    if has_method(module, OWNER, "_int2_pool_kwargs"):
        return module
    builder = "_init_pools" if methods(class_def(module, OWNER, ctx.path), "_init_pools") else "init_memory_pool"

    def edit(owner: cst.ClassDef) -> cst.ClassDef:
        owner = edit_method(owner, builder, ctx.path, lambda f: _add_pool_arguments(f, ctx.path))
        if methods(owner, "get_cell_size_per_token"):
            owner = edit_method(
                owner, "get_cell_size_per_token", ctx.path, lambda f: prepend(f, parse_body(_CELL, module))
            )
        new = [parse_body(graft.text, module)[0] for graft in ctx.chosen.members(OWNER)]
        return add_methods(owner, new)

    return edit_class(module, OWNER, ctx.path, edit)


def _add_pool_arguments(function: cst.FunctionDef, path: str) -> cst.FunctionDef:
    for is_pool, sought in ((_is_hybrid_pool, "HybridLinearKVPool(...)"), (_is_plain_pool, "MHATokenToKVPool(...)")):
        calls = [n for n in find_all(function, is_pool) if isinstance(n, cst.Call)]
        call = one(calls, f"self.token_to_kv_pool = {sought}", path)
        function = replace_node(function, call, add_arguments(call, ["**self._int2_pool_kwargs()"]))
    return function


def _is_hybrid_pool(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == "HybridLinearKVPool"


def _is_plain_pool(node: cst.CSTNode) -> bool:
    """Return whether a call builds the plain MHA pool: by its class, or by a local name for one of its layouts."""
    if not isinstance(node, cst.Call) or dotted(node.func) not in ("MHATokenToKVPool", "pool_cls"):
        return False
    dtype = keyword(node, "dtype")
    return dtype is not None and code(dtype.value) == "self.kv_cache_dtype" and keyword(node, "head_num") is not None
