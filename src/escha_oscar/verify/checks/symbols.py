"""Whether every mapped symbol stands as the right kind of definition in the right scope."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from escha_oscar.mapping import copies, merges
from escha_oscar.model import Finding, Origin, Row, Symbol, SymbolKind
from escha_oscar.symbols.index import Definition, class_named, function_named, is_triton_jit, method_named
from escha_oscar.symbols.resolve import Resolver
from escha_oscar.verify.checks.scope import Scope
from escha_oscar.verify.codes import finding

_KIND_WORDS = {
    SymbolKind.FUNCTION: "a function at module level",
    SymbolKind.TRITON_KERNEL: "a function at module level decorated with @triton.jit",
    SymbolKind.CLASS: "a class at module level",
    SymbolKind.METHOD: "a method of its class",
    SymbolKind.ENV_FIELD: "an attribute of class Envs built from an Env* class",
    SymbolKind.DATACLASS_FIELD: "an annotated field of its class",
    SymbolKind.CHOICE: "one of the choices of --kv-cache-dtype",
    SymbolKind.FLAG: "a command line option",
}
#: Symbols of classes: a namesake in another class may be a symbol of its own.
_DOTTED = {symbol.name for row in merges() for symbol in row.symbols if "." in symbol.name}
_NEXT = "escha-oscar integrate --dry-run"


@dataclass(frozen=True)
class Presence:
    """Where one mapped symbol stands: ``present``, or not, with what was ``found`` in its place."""

    row: Row
    path: str
    symbol: Symbol
    present: bool
    required: bool
    line: int | None = None
    found: str | None = None


def presences(scope: Scope, resolver: Resolver) -> list[Presence]:
    """Return the state of every symbol of every copied and merged file that exists and can be parsed."""
    found: list[Presence] = []
    for row in (*copies(), *merges()):
        path = scope.path_of(row)
        module = scope.index.module(path) if path else None
        if path is not None and module is not None:
            found.extend(_presence(scope, resolver, row, path, symbol) for symbol in row.symbols)
    return found


def check_symbols(found: list[Presence]) -> Iterator[Finding]:
    """Report each required symbol that is absent or is something else."""
    for state in found:
        if state.present or not state.required:
            continue
        name, kind = state.symbol.name, _KIND_WORDS[state.symbol.kind]
        code, what = ("symbol-kind", "is not") if state.found else ("symbol-missing", "is missing:")
        yield finding(
            code,
            f"{name} {what} {kind}",
            path=state.path,
            line=state.line,
            expected=f"{name} as {kind}",
            found=state.found or "no such definition",
            hint=_NEXT,
        )


def check_files(scope: Scope) -> Iterator[Finding]:
    """Report mapped files that do not exist."""
    for row in (*copies(), *merges()):
        if scope.path_of(row) is None:
            yield finding(
                "file-missing",
                "a file of the mapping is not in the tree",
                path=row.wheel_paths[0],
                expected=" or ".join(row.wheel_paths),
                found="no such file",
                hint=_NEXT,
            )


def _presence(scope: Scope, resolver: Resolver, row: Row, path: str, symbol: Symbol) -> Presence:
    module = scope.index.module(path)
    assert module is not None
    required = _required(scope, path, symbol)
    if _present(resolver, path, module, symbol):
        return Presence(row, path, symbol, True, required)
    line, other = _elsewhere(scope, path, symbol)
    return Presence(row, path, symbol, False, required, line, other)


def _required(scope: Scope, path: str, symbol: Symbol) -> bool:
    if symbol.origin is Origin.GLUE:
        return scope.marked(path)
    return symbol.public or scope.internals_required


def _present(resolver: Resolver, path: str, module: ast.Module, symbol: Symbol) -> bool:
    owner_name, _, name = symbol.name.rpartition(".")
    kind = symbol.kind
    if kind is SymbolKind.CHOICE:
        return name in kv_dtype_choices(resolver, path, module)
    if kind is SymbolKind.FLAG:
        return has_flag(module, symbol.name)
    if kind is SymbolKind.ENV_FIELD:
        return _env_value(module, name) is not None
    if kind in (SymbolKind.METHOD, SymbolKind.DATACLASS_FIELD):
        owner = class_named(module, owner_name)
        if owner is None:
            return False
        return method_named(owner, name) is not None if kind is SymbolKind.METHOD else _field(owner, name) is not None
    return _top_level(resolver, path, module, symbol)


def _top_level(resolver: Resolver, path: str, module: ast.Module, symbol: Symbol) -> bool:
    local = function_named(module, symbol.name)
    if symbol.kind is SymbolKind.TRITON_KERNEL:
        return local is not None and is_triton_jit(local)
    if symbol.kind is SymbolKind.CLASS:
        return class_named(module, symbol.name) is not None
    return local is not None or isinstance(resolver.definition(path, symbol.name), ast.FunctionDef)


def _elsewhere(scope: Scope, path: str, symbol: Symbol) -> tuple[int | None, str | None]:
    """Return a binding of the same name that is not the right one, in words."""
    name = symbol.name.rpartition(".")[2]
    for node, owner in scope.index.named(path).get(name, []):
        if f"{owner}.{name}" in _DOTTED:
            continue
        if not isinstance(node, Definition):
            return node.lineno, f"an assignment: {ast.unparse(node)[:60]}"
        place = f"inside {owner}" if owner else "at module level"
        what = "class" if isinstance(node, ast.ClassDef) else "function"
        jit = "" if isinstance(node, ast.ClassDef) or not is_triton_jit(node) else " with @triton.jit"
        return node.lineno, f"a {what} {place}{jit}"
    return None, None


def _assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _env_value(module: ast.Module, name: str) -> ast.Call | None:
    owner = class_named(module, "Envs")
    for node in owner.body if owner is not None else []:
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _assigned(node):
            value = node.value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id.startswith("Env"):
                return value
    return None


def _field(owner: ast.ClassDef, name: str) -> ast.AnnAssign | None:
    found = (n for n in owner.body if isinstance(n, ast.AnnAssign) and name in _assigned(n))
    return next(found, None)


def kv_dtype_choices(resolver: Resolver, path: str, module: ast.Module) -> list[str]:
    """Return the choices of ``--kv-cache-dtype``: of an argparse call, or of an annotated field of ServerArgs."""
    owner = class_named(module, "ServerArgs")
    field = _field(owner, "kv_cache_dtype") if owner is not None else None
    calls = [c for c in ast.walk(module) if isinstance(c, ast.Call) and _flag_of(c) == "--kv-cache-dtype"]
    if field is not None:
        calls += [c for c in ast.walk(field.annotation) if isinstance(c, ast.Call)]
    found: list[str] = []
    for call in calls:
        for word in call.keywords:
            if word.arg == "choices":
                found.extend(_strings(resolver, path, word.value))
    return found


def has_flag(module: ast.Module, flag: str) -> bool:
    """Return whether ``flag`` is an argparse option or an annotated field that the tree turns into one."""
    if any(isinstance(node, ast.Call) and _flag_of(node) == flag for node in ast.walk(module)):
        return True
    owner = class_named(module, "ServerArgs")
    field = _field(owner, flag.removeprefix("--").replace("-", "_")) if owner is not None else None
    if field is None or not isinstance(field.annotation, ast.Subscript):
        return False
    head = field.annotation.value
    return isinstance(head, ast.Name) and head.id in {"A", "Annotated"}


def _flag_of(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" and call.args:
        first = call.args[0]
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    return None


def _strings(resolver: Resolver, path: str, node: ast.expr, depth: int = 3) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value
        elif isinstance(inner, ast.Name) and depth:
            place = resolver.binding(path, inner.id)
            value = getattr(place[1], "value", None) if place is not None else None
            if place is not None and isinstance(value, ast.expr):
                yield from _strings(resolver, place[0], value, depth - 1)
