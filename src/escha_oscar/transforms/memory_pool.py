"""Teaches the KV pools INT2: configuration, rotations, packed buffers with scales, the store path, forwarding."""

from __future__ import annotations

import libcst as cst

from escha_oscar.model import Context
from escha_oscar.transforms._anchors import (
    class_def,
    code,
    find_all,
    has_method,
    is_call_to,
    keyword,
    methods,
    one,
)
from escha_oscar.transforms._edits import (
    INDENT,
    add_arguments,
    add_element,
    add_functions,
    add_methods,
    add_parameters,
    body_of,
    edit_class,
    edit_method,
    ensure_imports,
    insert_after,
    insert_before,
    parse_body,
    prepend,
    replace_node,
)

TARGET = "sglang/srt/mem_cache/memory_pool.py"
MHA, HYBRID = "MHATokenToKVPool", "HybridLinearKVPool"
#: What the inserted lines call, beside the symbols of the mapping.
GLUE = (
    "_int2_pool_kwargs",
    *(
        f"{MHA}.{name}"
        for name in (
            "_int2_size_bytes",
            "_int2_contiguous_buf_infos",
            "_int2_cpu_copy",
            "_int2_load_cpu_copy",
            "_int2_move",
            "_int2_unpacked_read",
            "get_v_head_dim",
        )
    ),
)
TOUCHES = (
    "<imports>",
    "<added>",
    "KVCache.__init__",
    *(
        f"{MHA}.{name}"
        for name in (
            "__init__",
            "_create_buffers",
            "get_kv_size_bytes",
            "get_contiguous_buf_infos",
            "get_cpu_copy",
            "load_cpu_copy",
            "_get_key_buffer",
            "_get_value_buffer",
            "set_kv_buffer",
            "set_kv_buffer_prefix_valid",
            "move_kv_cache",
        )
    ),
    *(f"{HYBRID}.{name}" for name in ("__init__", "set_kv_buffer", "get_v_head_dim")),
)

_POOL_PARAMETERS = (
    "model_dtype: Optional[torch.dtype] = None",
    "kv_cache_quant_group_size: Optional[int] = None",
    "scale_dtype: Optional[torch.dtype] = None",
    "rotation_layer_ids: Optional[List[int]] = None",
    "kv_head_range: Optional[Tuple[int, int, int]] = None",
)
_HYBRID_PARAMETERS = (_POOL_PARAMETERS[0], _POOL_PARAMETERS[1], _POOL_PARAMETERS[4])
_STORED = "already_hadamard_transformed: bool = False"

_INIT = """
self._init_int2(
    model_dtype,
    kv_cache_quant_group_size,
    scale_dtype,
    rotation_layer_ids,
    kv_head_range,
)
"""
# Indented for a place inside an argument list that is itself indented once.
_INNER_ARGUMENTS = """**_int2_pool_kwargs(
        dtype,
        model_dtype=model_dtype,
        kv_cache_quant_group_size=kv_cache_quant_group_size,
        rotation_layer_ids=full_attention_layer_ids,
        kv_head_range=kv_head_range,
    )"""
#: method -> what an int2 pool does instead, first thing.
_EARLY = {
    "_create_buffers": "self._create_int2_buffers()\nreturn",
    "get_kv_size_bytes": "return self._int2_size_bytes()",
    "get_contiguous_buf_infos": "return self._int2_contiguous_buf_infos()",
    "get_cpu_copy": "return self._int2_cpu_copy(indices)",
    "load_cpu_copy": "return self._int2_load_cpu_copy(kv_cache_cpu, indices)",
    "_get_key_buffer": 'self._int2_unpacked_read("get_key_buffer")',
    "_get_value_buffer": 'self._int2_unpacked_read("get_value_buffer")',
    "set_kv_buffer_prefix_valid": 'self._int2_unpacked_read("set_kv_buffer_prefix_valid")',
    "move_kv_cache": "return self._int2_move(tgt_loc, src_loc)",
}
_MHA_STORE = """
if self.dtype == "int2":
    self._set_int2_kv_buffer(
        layer_id, loc, cache_k, cache_v, already_hadamard_transformed
    )
    return
"""
_HYBRID_STORE = """
if self.dtype == "int2":
    self.full_kv_pool.set_kv_buffer(
        None,
        loc,
        cache_k,
        cache_v,
        layer_id_override=layer_id,
        already_hadamard_transformed=already_hadamard_transformed,
    )
    return
"""
_HYBRID_V_HEAD_DIM = 'if self.dtype == "int2":\n    return self.full_kv_pool.v_head_dim'


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Apply the edits class by class, top to bottom."""
    if has_method(module, MHA, "_init_int2"):
        return module
    path = ctx.path
    edits = (
        ("KVCache", lambda c: edit_method(c, "__init__", path, lambda f: _store_as_bytes(f, path))),
        (MHA, lambda c: _edit_pool(c, module, path)),
        (HYBRID, lambda c: _edit_hybrid(c, module, path)),
        (MHA, lambda c: add_methods(c, _bodies(ctx, MHA, module))),
        (HYBRID, lambda c: add_methods(c, _bodies(ctx, HYBRID, module))),
    )
    for name, edit in edits:
        module = edit_class(module, name, path, edit)
    grafts = (*ctx.chosen.helpers, *ctx.chosen.grafts.values())
    return ensure_imports(add_functions(module, "KVCache", grafts, path), ctx.chosen.imports)


def _bodies(ctx: Context, owner: str, module: cst.Module) -> list[cst.BaseStatement]:
    known = {m.name.value for m in class_def(module, owner, ctx.path).body.body if isinstance(m, cst.FunctionDef)}
    grafts = [g for g in ctx.chosen.members(owner) if g.name.rpartition(".")[2] not in known]
    return [parse_body(graft.text, module)[0] for graft in grafts]


def _store_as_bytes(function: cst.FunctionDef, path: str) -> cst.FunctionDef:
    """Let packed rows be stored as uint8, as float8 rows are."""
    tests = find_all(function, lambda n: isinstance(n, cst.Tuple) and "float8_e4m3fn" in code(n))
    old = one([t for t in tests if isinstance(t, cst.Tuple)], "if dtype in (torch.float8_e5m2, ...)", path)
    new = add_element(cst.List(elements=old.elements), '"int2"')
    return replace_node(function, old, old.with_changes(elements=new.elements))


def _edit_pool(owner: cst.ClassDef, module: cst.Module, path: str) -> cst.ClassDef:
    owner = edit_method(owner, "__init__", path, lambda f: _init_before_buffers(f, module, path))
    for name, text in _EARLY.items():
        if methods(owner, name):
            branch = parse_body(f'if self.dtype == "int2":\n    {text}'.replace("\nreturn", "\n    return"), module)
            owner = edit_method(owner, name, path, lambda f, branch=branch: prepend(f, branch))  # type: ignore[misc]
    return edit_method(owner, "set_kv_buffer", path, lambda f: _store_early(f, module, path))


def _init_before_buffers(function: cst.FunctionDef, module: cst.Module, path: str) -> cst.FunctionDef:
    function = add_parameters(function, _POOL_PARAMETERS)
    calls = [s for s in body_of(function) if code(s) == "self._create_buffers()"]
    return insert_before(function, one(calls, "self._create_buffers()", path), parse_body(_INIT, module))


def _store_early(function: cst.FunctionDef, module: cst.Module, path: str) -> cst.FunctionDef:
    """Leave for the packed store once the layer id is known and before rows are cast."""
    function = add_parameters(function, [_STORED])
    known = [s for s in body_of(function) if isinstance(s, cst.If) and "layer_id_override" in code(s.test)]
    return insert_after(function, one(known, "if layer_id_override is not None", path), parse_body(_MHA_STORE, module))


def _edit_hybrid(owner: cst.ClassDef, module: cst.Module, path: str) -> cst.ClassDef:
    owner = edit_method(
        owner, "__init__", path, lambda f: _inner_pool(add_parameters(f, _HYBRID_PARAMETERS), module, path)
    )
    owner = edit_method(owner, "set_kv_buffer", path, lambda f: _hybrid_store(f, module, path))
    return edit_method(owner, "get_v_head_dim", path, lambda f: prepend(f, parse_body(_HYBRID_V_HEAD_DIM, module)))


def _inner_pool(function: cst.FunctionDef, module: cst.Module, path: str) -> cst.FunctionDef:
    calls = [n for n in find_all(function, _builds_mha_pool) if isinstance(n, cst.Call)]
    call = one(calls, "TokenToKVPoolClass(head_dim=..., ...)", path)
    arguments = _INNER_ARGUMENTS.replace(INDENT, module.default_indent)
    return replace_node(function, call, add_arguments(call, [arguments]))


def _builds_mha_pool(node: cst.CSTNode) -> bool:
    return (
        is_call_to(node, "TokenToKVPoolClass") and isinstance(node, cst.Call) and keyword(node, "head_dim") is not None
    )


def _hybrid_store(function: cst.FunctionDef, module: cst.Module, path: str) -> cst.FunctionDef:
    function = add_parameters(function, [_STORED])
    choice = [s for s in body_of(function) if isinstance(s, cst.If) and code(s.test) == "not self.use_mla"]
    return insert_before(function, one(choice, "if not self.use_mla", path), parse_body(_HYBRID_STORE, module))
