"""Whether the pools, the hybrid wrapper and their constructions carry the int2 path."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from escha_oscar.model import Finding
from escha_oscar.symbols.index import Function, class_named, definitions, mentions, method_named, statements
from escha_oscar.verify.checks.guards import callee, calls_to, decides_on, decides_on_int2, tests_int2
from escha_oscar.verify.checks.scope import Scope
from escha_oscar.verify.codes import finding

_POOL, _HYBRID = "MHATokenToKVPool", "HybridLinearKVPool"
_FORWARDED = (
    "get_raw_key_buffer",
    "get_raw_value_buffer",
    "get_key_scales_zeros",
    "get_value_scales_zeros",
    "get_oscar_rotation",
)
_ID_MAPS = ("_transfer_full_attention_id", "full_attention_layer_id_mapping", "_transfer_id_context")
_GROUP_WORDS = ("quant_group", "int2")
_NEXT = "escha-oscar integrate --dry-run"


def check_pool(scope: Scope) -> Iterator[Finding]:
    """Report what the KV pool lacks: allocation on int2, the quantising store, the rotations."""
    path = scope.file_for("mem_cache/memory_pool.py")
    pool = _class(scope, path, _POOL)
    if pool is None:
        return
    needs = (
        (decides_on_int2(pool), 'an allocation on dtype == "int2"'),
        (_calls_any(pool, "quantized_set_kv_int2", "_set_int2_kv_buffer"), "a store through quantized_set_kv_int2_*"),
        (_calls_any(pool, "load_oscar_rotations"), "a call of load_oscar_rotations"),
        (_has_rotation(pool), "get_oscar_rotation, or _R_k and _R_v"),
    )
    for present, what in needs:
        if not present:
            yield _lacks("pool-int2-missing", f"{_POOL} has no int2 path", path, pool.lineno, what)


def _has_rotation(pool: ast.ClassDef) -> bool:
    return method_named(pool, "get_oscar_rotation") is not None or mentions(pool, "_R_k")


def check_hybrid(scope: Scope) -> Iterator[Finding]:
    """Report what HybridLinearKVPool does not hand on, and layer ids that it hands on untranslated."""
    path = scope.file_for("mem_cache/memory_pool.py")
    pool, hybrid = _class(scope, path, _POOL), _class(scope, path, _HYBRID)
    if pool is None or hybrid is None or path is None:
        return
    for name in _FORWARDED:
        yield from _forwarding(scope, path, pool, hybrid, name)
    yield from _store_forwarding(path, pool, hybrid)


def _forwarding(scope: Scope, path: str, pool: ast.ClassDef, hybrid: ast.ClassDef, name: str) -> Iterator[Finding]:
    inner, outer = method_named(pool, name), method_named(hybrid, name)
    if outer is None:
        # in a merge of ours the symbol table reports it; a hand merge may reach rotations through _R_k
        other_way = name == "get_oscar_rotation" and (inner is None and mentions(hybrid, "_R_k"))
        if not scope.marked(path) and not other_way:
            yield _lacks("hybrid-forwarding", f"{_HYBRID} does not forward {name}", path, hybrid.lineno, name)
        return
    if not mentions(outer, "full_kv_pool"):
        yield _lacks("hybrid-forwarding", f"{name} does not reach the inner pool", path, outer.lineno, "full_kv_pool")
    elif not mentions(outer, *_ID_MAPS):
        yield _lacks(
            "hybrid-forwarding",
            f"{name} hands on the global layer id; the inner pool counts full-attention layers only",
            path,
            outer.lineno,
            "_transfer_full_attention_id(layer_id)",
        )


def _store_forwarding(path: str, pool: ast.ClassDef, hybrid: ast.ClassDef) -> Iterator[Finding]:
    inner, outer = method_named(pool, "set_kv_buffer"), method_named(hybrid, "set_kv_buffer")
    word = "already_hadamard_transformed"
    if inner is None or outer is None or word not in _parameters(inner):
        return
    taken = word in _parameters(outer) or outer.args.kwarg is not None
    passed = any(k.arg in (word, None) for call in calls_to(outer, "set_kv_buffer") for k in call.keywords)
    if not (taken and passed):
        yield _lacks("hybrid-forwarding", f"set_kv_buffer does not hand on {word}", path, outer.lineno, word)


def check_constructions(scope: Scope) -> Iterator[Finding]:
    """Report pool constructions that leave out the group size: int2 would run with another one, or not at all."""
    memory = scope.file_for("mem_cache/memory_pool.py")
    pool, hybrid = _class(scope, memory, _POOL), _class(scope, memory, _HYBRID)
    init = method_named(pool, "__init__") if pool is not None else None
    if init is None or not _takes_group(init):
        return
    if hybrid is not None and memory is not None:
        yield from _hybrid_branch(scope, memory, hybrid)
    mixin = scope.file_for("model_runner_kv_cache_mixin.py")
    for call, line in _constructions(scope, mixin, _POOL):
        if not _gives_group(call):
            message = f"a construction of {_POOL} is not given the group size"
            yield _lacks("pool-arguments", message, mixin, line, "kv_cache_quant_group_size=...")


def _hybrid_branch(scope: Scope, memory: str, hybrid: ast.ClassDef) -> Iterator[Finding]:
    init = method_named(hybrid, "__init__")
    inner = [] if init is None else [c for c in ast.walk(init) if isinstance(c, ast.Call) and _fills_pool(init, c)]
    message = "hybrid branch does not select the int2 pool"
    if inner and not any(_gives_group(call) for call in inner):
        expected = "the group size handed to the inner pool"
        yield _lacks("hybrid-branch", message, memory, inner[0].lineno, expected)
        return
    mixin = scope.file_for("model_runner_kv_cache_mixin.py")
    for call, line in _constructions(scope, mixin, _HYBRID):
        if not _gives_group(call) and not any(word.arg == "full_kv_pool" for word in call.keywords):
            expected = f"the group size among the arguments of {_HYBRID}"
            yield _lacks("hybrid-branch", message, mixin, line, expected)


def _fills_pool(init: Function, call: ast.Call) -> bool:
    """Return whether ``call`` builds the multi-head pool that becomes ``self.full_kv_pool``."""
    for node in ast.walk(init):
        if isinstance(node, ast.Assign) and node.value is call:
            targets = [t.attr for t in node.targets if isinstance(t, ast.Attribute)]
            return "full_kv_pool" in targets and not any(word.arg == "kv_lora_rank" for word in call.keywords)
    return False


def _constructions(scope: Scope, path: str | None, name: str) -> Iterator[tuple[ast.Call, int]]:
    module = scope.index.module(path) if path is not None else None
    for function in (n for n in ast.walk(module) if isinstance(n, Function)) if module is not None else ():
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and _is_class(function, callee(call), name, call.lineno):
                yield call, call.lineno


def _is_class(function: Function, held: str, name: str, line: int, depth: int = 4) -> bool:
    """Return whether ``held`` can be the class at ``line``, by its last assignment before: ``A if fast else B``."""
    if held == name:
        return True
    before = [
        node
        for node, _ in statements(function.body)
        if isinstance(node, ast.Assign)
        and node.lineno < line
        and any(isinstance(target, ast.Name) and target.id == held for target in node.targets)
    ]
    last = max(before, key=lambda node: node.lineno, default=None)
    if last is None or isinstance(last.value, ast.Call) or not depth:
        return False
    used = {inner.id for inner in ast.walk(last.value) if isinstance(inner, ast.Name)}
    return any(_is_class(function, inner, name, last.lineno, depth - 1) for inner in used)


def _takes_group(function: Function) -> bool:
    return function.args.kwarg is not None or any("quant_group" in name for name in _parameters(function))


def _gives_group(call: ast.Call) -> bool:
    for word in call.keywords:
        if word.arg is None and mentions(word.value, *_GROUP_WORDS, "quant"):
            return True
        if word.arg is not None and any(part in word.arg for part in _GROUP_WORDS):
            return True
    return False


def check_head_dim(scope: Scope) -> Iterator[Finding]:
    """Report where v_head_dim is taken from the last axis of a value buffer without a branch for packed codes."""
    backend_path = scope.file_for("attention/triton_backend.py")
    backend = _class(scope, backend_path, "TritonAttnBackend")
    for function in (d for ds in definitions(backend.body).values() for d in ds) if backend is not None else ():
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _reads_packed(node) and not _guarded(function):
                yield _packed(backend_path, node.lineno)
    memory = scope.file_for("mem_cache/memory_pool.py")
    hybrid = _class(scope, memory, _HYBRID)
    getter = method_named(hybrid, "get_v_head_dim") if hybrid is not None else None
    if getter is not None and mentions(getter, "get_value_buffer") and not decides_on(getter, "v_head_dim"):
        yield _packed(memory, getter.lineno)


def _guarded(function: ast.AST) -> bool:
    """Return whether a conditional on int2, or on the pool's own word for v_head_dim, stands over the choice."""
    choices = (node for node in ast.walk(function) if isinstance(node, ast.If | ast.IfExp))
    guards = (node for node in choices if tests_int2(node.test) or _asks_head_dim(node.test))
    return any(mentions(node, "v_head_dim") for node in guards)


def _asks_head_dim(node: ast.AST) -> bool:
    """Return whether ``hasattr``/``getattr`` asks for the word v_head_dim below ``node``."""
    return any(isinstance(n, ast.Constant) and n.value == "v_head_dim" for n in ast.walk(node))


def _reads_packed(node: ast.Assign) -> bool:
    if not any(isinstance(t, ast.Attribute) and t.attr == "v_head_dim" for t in node.targets):
        return False
    reads = mentions(node.value, "get_value_buffer", "get_raw_value_buffer") and mentions(node.value, "shape")
    return reads and not _asks_head_dim(node.value)


def _packed(path: str | None, line: int) -> Finding:
    message = "v_head_dim is read from the width of a value buffer, which is head_dim / 4 for int2"
    return _lacks("packed-head-dim", message, path, line, "v_head_dim of the pool, without reading a buffer")


def _class(scope: Scope, path: str | None, name: str) -> ast.ClassDef | None:
    module = scope.index.module(path) if path is not None else None
    return class_named(module, name) if module is not None else None


def _calls_any(node: ast.AST, *words: str) -> bool:
    return any(True for _ in calls_to(node, *words))


def _parameters(function: Function) -> list[str]:
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _lacks(code: str, message: str, path: str | None, line: int | None, expected: str) -> Finding:
    return finding(code, message, path=path, line=line, expected=expected, found="none", hint=_NEXT)
