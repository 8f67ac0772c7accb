"""Whether the model runner, the cell size, the backend and the kernels carry int2 and are free of known defects."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from escha_oscar.model import Finding
from escha_oscar.symbols.index import (
    Function,
    class_named,
    dotted,
    function_named,
    is_triton_jit,
    mentions,
    method_named,
    statements,
)
from escha_oscar.verify.checks.guards import callee, calls_to, decides_on, decides_on_int2, int2_branches
from escha_oscar.verify.checks.scope import MOVED_ANCHORS, Scope
from escha_oscar.verify.codes import finding

_NEXT = "escha-oscar integrate --dry-run"
#: What a count of bytes per token may call without counting scales there.
_PLAIN_CALLS = {"int", "len", "max", "min", "sum", "getattr", "get_num_kv_heads", "get_attention_tp_size"}


def check_dtype_branch(scope: Scope) -> Iterator[Finding]:
    """Report a model runner in which nothing decides on the string int2."""
    path = scope.file_for("model_executor/model_runner.py")
    module = scope.index.module(path) if path is not None else None
    if module is not None and not decides_on_int2(module):
        yield _report(
            "dtype-branch-missing",
            "nothing in the model runner chooses int2",
            path,
            None,
            'a branch on server_args.kv_cache_dtype == "int2"',
        )


def check_backend(scope: Scope) -> Iterator[Finding]:
    """Report extend and decode paths of the triton backend that never reach the int2 code."""
    path = scope.file_for("attention/triton_backend.py")
    module = scope.index.module(path) if path is not None else None
    backend = class_named(module, "TritonAttnBackend") if module is not None else None
    if backend is None:
        return
    for name in ("forward_extend", "forward_decode"):
        method = method_named(backend, name)
        if method is not None and not decides_on_int2(method) and not _dispatches(method):
            message = f"{name} does not dispatch on int2"
            yield _report("backend-int2-missing", message, path, method.lineno, 'a branch on dtype == "int2"')
    if not mentions(backend, "decode_attention_fwd_quantized", "quant_int2"):
        message = "the backend never reaches decode_attention_fwd_quantized"
        yield _report("backend-int2-missing", message, path, backend.lineno, "a call of decode_attention_fwd_quantized")


def _dispatches(method: Function) -> bool:
    return any(True for _ in calls_to(method, "int2"))


def check_cell_size(scope: Scope) -> Iterator[Finding]:
    """Report bytes-per-token functions that take the element size of the string int2 or leave out the scales."""
    for path in (scope.file_for("model_runner_kv_cache_mixin.py"), *MOVED_ANCHORS):
        module = scope.index.module(path) if path is not None else None
        for function in (n for n in ast.walk(module) if isinstance(n, Function)) if module is not None else ():
            if module is not None and "cell_size" in function.name and _takes_element_size(function):
                yield from _cell_size(path, module, function)


def _takes_element_size(function: Function) -> bool:
    return any(True for _ in calls_to(function, "_element_size"))


def _cell_size(path: str | None, module: ast.Module, function: Function) -> Iterator[Finding]:
    branches = list(int2_branches(function))
    if not branches and not decides_on(function, "isinstance"):
        message = f"{function.name} takes the element size of the KV dtype, which is a string for int2"
        yield _report("cell-size", message, path, function.lineno, "an int2 branch before _element_size")
    for branch in branches:
        if not _counts_scales(module, branch):
            message = f"{function.name} counts packed codes only"
            yield _report("cell-size-without-scales", message, path, branch.lineno, "codes + scales + zeros per group")


def _counts_scales(module: ast.Module, branch: ast.If | ast.IfExp) -> bool:
    """Return whether the branch, or what it calls, speaks of scales or zeros; True where that is out of sight."""
    body: list[ast.AST] = list(branch.body) if isinstance(branch, ast.If) else [branch.body]
    called = {callee(call) for node in body for call in ast.walk(node) if isinstance(call, ast.Call)}
    helpers = [n for n in ast.walk(module) if isinstance(n, Function) and n.name in called]
    out_of_sight = called - {helper.name for helper in helpers} - _PLAIN_CALLS
    return bool(out_of_sight) or any(mentions(node, "scale", "zero") for node in (*body, *helpers))


def check_head_tile(scope: Scope) -> Iterator[Finding]:
    """Report grouped decode launchers that can choose a head tile across two KV heads."""
    path = scope.file_for("decode_attention.py")
    module = scope.index.module(path) if path is not None else None
    if module is None or path is None:
        return
    names = ["_decode_grouped_att_m_fwd_quant_int2"]
    if scope.marked(path):
        names.append("_decode_grouped_att_m_fwd")
    for name in names:
        launcher = function_named(module, name)
        if launcher is not None and not _clamped(launcher):
            message = f"{name} does not clamp its head tile to the KV group"
            yield _report(
                "head-tile-clamp-missing", message, path, launcher.lineno, "BLOCK_H from _safe_block_h(...)", "no clamp"
            )


def _clamped(launcher: Function) -> bool:
    if not mentions(launcher, "BLOCK_H"):
        return True
    if any(True for _ in calls_to(launcher, "block_h")):
        return True
    return any(mentions(call, "kv_group_num") for call in calls_to(launcher, "next_power_of_2"))


def check_constexprs(scope: Scope) -> Iterator[Finding]:
    """Report constexpr names that one Triton kernel binds twice: it compiles on no Triton from 3.5 on."""
    for path in scope.files:
        module = scope.index.module(path)
        for kernel in (n for n in module.body if isinstance(n, Function)) if module is not None else ():
            if is_triton_jit(kernel):
                yield from _bound_twice(path, kernel)


def _bound_twice(path: str, kernel: Function) -> Iterator[Finding]:
    seen: Counter[str] = Counter()
    sides: dict[str, list[tuple[tuple[int, str], ...]]] = {}
    for node, branch in statements(kernel.body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if dotted(node.annotation).rpartition(".")[2] != "constexpr":
            continue
        name = node.target.id
        if any(not _exclusive(branch, other) for other in sides.get(name, [])):
            seen[name] += 1
            if seen[name] == 1:
                message = f"{kernel.name} binds the constexpr {name} twice"
                yield _report("constexpr-bound-twice", message, path, node.lineno, "one binding, or two names", "two")
        sides.setdefault(name, []).append(branch)


def _exclusive(one: tuple[tuple[int, str], ...], other: tuple[tuple[int, str], ...]) -> bool:
    """Return whether two places lie on different sides of one conditional."""
    sides = dict(one)
    return any(node in sides and sides[node] != side for node, side in other)


def check_fp16(scope: Scope) -> Iterator[Finding]:
    """Report a clip launcher whose dtype assertion leaves out float16."""
    path = scope.file_for("oscar_rotation_clip_int2_kv.py")
    module = scope.index.module(path) if path is not None else None
    function = function_named(module, "_vectorized_elems_per_thread") if module is not None else None
    if function is not None and not _accepts_float16(function):
        message = "the clip launcher does not accept float16"
        yield _report(
            "fp16-not-accepted", message, path, function.lineno, "float16 beside bfloat16", "a dtype set without it"
        )


def _accepts_float16(function: Function) -> bool:
    """Return whether the function names float16, or refuses no dtype at all."""
    if not any(isinstance(node, ast.Raise | ast.Assert) for node in ast.walk(function)):
        return True
    words = {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute)}
    words |= {n.value for n in ast.walk(function) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return bool(words & {"float16", "half"})


def check_registrations(scope: Scope) -> Iterator[Finding]:
    """Report an escha runtime whose quantization registry has no escha entry."""
    if not scope.escha:
        return
    path = "sglang/srt/layers/quantization/__init__.py"
    module = scope.index.module(path)
    if module is None:
        return
    if not any(word.startswith("escha") for word in _registered(module)):
        yield finding(
            "escha-registration",
            "the quantization registry has no escha entry",
            path=path,
            expected='"escha" among the quantization methods',
            found=", ".join(sorted(set(_registered(module)))[:6]) or "no entries",
            hint="pip install --force-reinstall <the escha wheel>, then escha-oscar integrate",
        )


def _registered(module: ast.Module) -> Iterator[str]:
    """Yield the words that the module registers: dict keys, subscript stores, arguments of register calls."""
    for node in ast.walk(module):
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            keys = list(node.keys)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = [node.slice]
        elif isinstance(node, ast.Call) and "register" in callee(node):
            keys = list(node.args)
        yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def _report(code: str, message: str, path: str | None, line: int | None, expected: str, found: str = "none") -> Finding:
    return finding(code, message, path=path, line=line, expected=expected, found=found, hint=_NEXT)
