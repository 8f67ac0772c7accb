"""Adds the int2 extend and decode paths of the Triton backend and their dispatch as an early branch."""

from __future__ import annotations

import libcst as cst

from escha_oscar.model import Context
from escha_oscar.transforms._anchors import (
    code,
    find_all,
    has_method,
    is_call_to,
    one,
)
from escha_oscar.transforms._edits import (
    add_functions,
    add_methods,
    edit_class,
    edit_method,
    ensure_imports,
    parse_body,
    prepend,
    replace_node,
)

TARGET = "sglang/srt/layers/attention/triton_backend.py"
OWNER = "TritonAttnBackend"
GLUE = ("_is_int2_pool",)
TOUCHES = (
    "<imports>",
    "<added>",
    f"{OWNER}.__init__",
    f"{OWNER}.forward_extend",
    f"{OWNER}.forward_decode",
)

_DISPATCH = """
if _is_int2_pool(self, forward_batch):
    return self._forward_{name}_int2(
        q, k, v, layer, forward_batch, save_kv_cache, sinks
    )
"""


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Dispatch int2 batches first thing, read v_head_dim from the pool and not from a packed row, add the methods."""
    if has_method(module, OWNER, "_forward_extend_int2"):
        return module

    def edit(owner: cst.ClassDef) -> cst.ClassDef:
        for name in ("extend", "decode"):
            owner = _dispatched(owner, name, module, ctx)
        owner = edit_method(owner, "__init__", ctx.path, lambda f: _v_head_dim(f, module, ctx))
        return add_methods(owner, _methods(module, ctx))

    grafts = (*ctx.chosen.helpers, *ctx.chosen.grafts.values())
    module = add_functions(edit_class(module, OWNER, ctx.path, edit), OWNER, grafts, ctx.path)
    return ensure_imports(module, ctx.chosen.imports)


def _dispatched(owner: cst.ClassDef, name: str, module: cst.Module, ctx: Context) -> cst.ClassDef:
    branch = parse_body(_DISPATCH.format(name=name), module)
    return edit_method(owner, f"forward_{name}", ctx.path, lambda f: prepend(f, branch))


def _v_head_dim(function: cst.FunctionDef, module: cst.Module, ctx: Context) -> cst.FunctionDef:
    """Put an int2 arm before the choice whose last arm reads the width of a packed row."""
    chains = [s for s in find_all(function, lambda n: isinstance(n, cst.If)) if isinstance(s, cst.If)]
    reads = [c for c in chains if _reads_row_width(c) and not any(_is_orelse_of(c, other) for other in chains)]
    old = one(reads, "if ...: self.v_head_dim = pool.get_value_buffer(0).shape[-1]", ctx.path)
    also = "\n    self.swa_v_head_dim = None" if "self.swa_v_head_dim" in code(old) else ""
    (arm,) = parse_body(
        'if getattr(model_runner.token_to_kv_pool, "dtype", None) == "int2":\n'
        f"    self.v_head_dim = model_runner.token_to_kv_pool.get_v_head_dim(){also}",
        module,
    )
    assert isinstance(arm, cst.If)
    # The comments above the chain stay where they are; only `if` becomes `elif`.
    new = arm.with_changes(leading_lines=old.leading_lines, orelse=old.with_changes(leading_lines=[]))
    return replace_node(function, old, new)


def _reads_row_width(node: cst.If) -> bool:
    return "self.v_head_dim" in code(node) and bool(find_all(node, lambda n: is_call_to(n, "get_value_buffer")))


def _is_orelse_of(node: cst.If, other: cst.If) -> bool:
    return other.orelse is node


def _methods(module: cst.Module, ctx: Context) -> list[cst.BaseStatement]:
    texts = [g.text for g in ctx.chosen.members(OWNER)]
    if not ctx.extend_takes_scales:
        texts = [text.replace("k_scale=1.0, v_scale=1.0, ", "") for text in texts]
    return [parse_body(text, module)[0] for text in texts]
