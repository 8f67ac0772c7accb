"""Imports of merged files that lead nowhere in the tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from escha_oscar.model import Finding
from escha_oscar.symbols.index import mentions
from escha_oscar.symbols.resolve import Resolver, in_tree
from escha_oscar.verify.checks.scope import Scope
from escha_oscar.verify.codes import finding

#: Stock 0.5.11 to 0.5.13 import this name, which no file of theirs defines; only fp4 pools reach it.
_STOCK_FAULTS = {"from sglang.srt.layers.quantization.kvfp4_tensor import KVFP4QuantizeUtil"}
_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def check_imports(scope: Scope, resolver: Resolver) -> Iterator[Finding]:
    """Report each import below ``sglang.`` that no file of the tree can satisfy, guarded ones excepted."""
    for path in scope.files:
        found = list(_unresolved(resolver, path))
        if not found:
            continue
        before = set(_unresolved(Resolver(scope.base), path)) if scope.base is not None else set()
        known = _STOCK_FAULTS | {what for _, what in before}
        for line, what in found:
            if what not in known:
                yield finding(
                    "unresolved-import",
                    f"{what} resolves nowhere in the tree",
                    path=path,
                    line=line,
                    expected="a module or name of the tree",
                    found=what,
                    hint="escha-oscar mapping --site-packages <DIR>  # is each row meant for this base?",
                )


def _unresolved(resolver: Resolver, path: str) -> Iterator[tuple[int, str]]:
    nodes = resolver.index.nodes(path)
    guarded = _guarded(nodes)
    for node in nodes:
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                if in_tree(alias.name) and resolver.module_file(alias.name) is None:
                    yield node.lineno, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            yield from _unresolved_from(resolver, path, node)


def _unresolved_from(resolver: Resolver, path: str, node: ast.ImportFrom) -> Iterator[tuple[int, str]]:
    dotted = resolver.absolute(path, node)
    if dotted is None or not in_tree(dotted):
        return
    for alias in node.names:
        if alias.name == "*":
            if resolver.module_file(dotted) is None:
                yield node.lineno, f"from {dotted} import *"
        elif not resolver.has_name(dotted, alias.name):
            yield node.lineno, f"from {dotted} import {alias.name}"


def _guarded(nodes: Iterable[ast.AST]) -> set[int]:
    """Return the ids of nodes whose ImportError is caught, or that only a type checker sees."""
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Try | ast.If) and _shields(node):
            found.update(id(inner) for statement in node.body for inner in ast.walk(statement))
    return found


def _shields(node: ast.Try | ast.If) -> bool:
    if isinstance(node, ast.If):
        return mentions(node.test, "TYPE_CHECKING")
    return any(_catches_import(handler) for handler in node.handlers)


def _catches_import(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)}
    return bool(names & _CAUGHT)
