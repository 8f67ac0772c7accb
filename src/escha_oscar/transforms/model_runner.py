"""Adds the int2 arm to the choice of the KV dtype, with the guards that need model facts."""

from __future__ import annotations

import libcst as cst

from escha_oscar.model import Context
from escha_oscar.transforms._anchors import code, find_all, has_method, one
from escha_oscar.transforms._edits import add_methods, edit_class, edit_method, parse_body, replace_node

TARGET = "sglang/srt/model_executor/model_runner.py"
TOUCHES = ("ModelRunner", "ModelRunner.configure_kv_cache_dtype", "ModelRunner._configure_int2_kv_cache")

_ARM = """
if self.server_args.kv_cache_dtype == "int2":
    self.kv_cache_dtype = self._configure_int2_kv_cache()
"""


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Add the arm before the final ``else`` that refuses unknown dtypes, and the method that it calls."""
    if has_method(module, "ModelRunner", "_configure_int2_kv_cache"):
        return module

    def edit(owner: cst.ClassDef) -> cst.ClassDef:
        owner = edit_method(owner, "configure_kv_cache_dtype", ctx.path, lambda f: _add_arm(f, module, ctx.path))
        return add_methods(owner, parse_body(ctx.chosen.text("ModelRunner._configure_int2_kv_cache"), module))

    return edit_class(module, "ModelRunner", ctx.path, edit)


def _add_arm(function: cst.FunctionDef, module: cst.Module, path: str) -> cst.FunctionDef:
    arms = find_all(function, lambda n: isinstance(n, cst.If) and _is_last_dtype_arm(n))
    last = one([a for a in arms if isinstance(a, cst.If)], "the last elif on kv_cache_dtype, before else: raise", path)
    (arm,) = parse_body(_ARM, module)
    assert isinstance(arm, cst.If)
    return replace_node(function, last, last.with_changes(orelse=arm.with_changes(orelse=last.orelse)))


def _is_last_dtype_arm(node: cst.If) -> bool:
    closing = node.orelse
    if "kv_cache_dtype" not in code(node.test) or not isinstance(closing, cst.Else):
        return False
    return any(isinstance(n, cst.Raise) for n in find_all(closing, lambda n: isinstance(n, cst.Raise)))
