"""Reading the text for tests on int2: what a branch is taken on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from escha_oscar.symbols.index import mentions


def tests_int2(node: ast.expr) -> bool:
    """Return whether an expression decides on int2: a comparison with the word, or a name that carries it."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Compare) and any(_is_word(part) for part in (inner.left, *inner.comparators)):
            return True
        if isinstance(inner, ast.Name) and "int2" in inner.id:
            return True
        if isinstance(inner, ast.Attribute) and "int2" in inner.attr:
            return True
    return False


def _is_word(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(_is_word(element) for element in node.elts)
    return isinstance(node, ast.Constant) and node.value == "int2"


def int2_branches(node: ast.AST) -> Iterator[ast.If | ast.IfExp]:
    """Yield the conditionals below ``node`` that decide on int2."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.If | ast.IfExp) and tests_int2(inner.test):
            yield inner


def decides_on_int2(node: ast.AST) -> bool:
    """Return whether any conditional, or any value kept for one, below ``node`` decides on int2."""
    if any(True for _ in int2_branches(node)):
        return True
    compares = (n for n in ast.walk(node) if isinstance(n, ast.Compare))
    return any(tests_int2(compare) for compare in compares)


def decides_on(node: ast.AST, *words: str) -> bool:
    """Return whether a conditional below ``node`` decides on int2 or mentions one of ``words`` in its test."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.If | ast.IfExp) and (tests_int2(inner.test) or mentions(inner.test, *words)):
            return True
    return False


def calls_to(node: ast.AST, *words: str) -> Iterator[ast.Call]:
    """Yield the calls below ``node`` whose callee's last name contains one of ``words``."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and any(word in callee(inner) for word in words):
            yield inner


def callee(call: ast.Call) -> str:
    """Return the last name of what is called: ``f`` for ``f()``, ``a.f()`` and ``f[grid]()``."""
    func = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""
