"""Undefined names inside functions and doubled definitions: faults that importing a module does not show."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from escha_oscar.model import Finding
from escha_oscar.symbols.index import Branch, Definition, Index, dotted, statements
from escha_oscar.verify.checks.scope import Scope
from escha_oscar.verify.codes import finding

_HEADS = (b"A", b"Annotated")


def check_undefined(scope: Scope) -> Iterator[Finding]:
    """Report names that pyflakes finds undefined and that the base does not already lack."""
    for path in scope.files:
        found = _undefined(scope.index, path) if scope.touched(path) else []
        before = _undefined(scope.base, path) if found and scope.base is not None else []
        known = Counter(name for name, _ in before)
        for name, line in found:
            if known[name]:
                known[name] -= 1
                continue
            yield finding(
                "undefined-name",
                f"{name} is used but defined nowhere",
                path=path,
                line=line,
                expected=f"an import or a definition of {name}",
                found=f"undefined name {name}",
                hint=f"grep -rn 'def {name}' <site-packages>/sglang",
            )


def _undefined(index: Index, path: str) -> list[tuple[str, int]]:
    if index.module(path) is None:
        return []
    from pyflakes import checker, messages

    data, module = index.read(path) or b"", index.module(path)
    if any(head + b"[" in data for head in _HEADS):
        # the next line rewrites annotations, so it works on a tree of its own
        module = ast.fix_missing_locations(_PlainAnnotations().visit(ast.parse(data)))
    found = checker.Checker(module, filename=path).messages
    kinds = (messages.UndefinedName, messages.UndefinedLocal)
    return sorted((str(m.message_args[0]), int(m.lineno)) for m in found if isinstance(m, kinds))


class _PlainAnnotations(ast.NodeTransformer):
    """Take metadata out of ``A[type, ...]`` annotations, whose strings are words and not forward references."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        body: list[ast.stmt] = []
        for statement in node.body:
            body.append(self.visit(statement))
            body.extend(self._metadata(statement))
        node.body = body
        return node

    @staticmethod
    def _metadata(node: ast.stmt) -> list[ast.stmt]:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.annotation, ast.Subscript):
            return []
        head, inner = node.annotation.value, node.annotation.slice
        if not (isinstance(head, ast.Name) and head.id.encode() in _HEADS and isinstance(inner, ast.Tuple)):
            return []
        node.annotation = inner.elts[0]
        return [ast.copy_location(ast.Expr(value), value) for value in inner.elts[1:]]


def check_duplicates(scope: Scope) -> Iterator[Finding]:
    """Report functions and classes defined twice in one block of a module or class."""
    for path in scope.files:
        found = _duplicates(scope.index, path)
        known = set(_duplicates(scope.base, path)) if found and scope.base is not None else set()
        for name, (first, second) in found.items():
            if name not in known:
                yield finding(
                    "duplicate-definition",
                    f"{name} is defined twice in the same block",
                    path=path,
                    line=second,
                    expected="one definition",
                    found=f"definitions at lines {first} and {second}; the later one wins",
                    hint="escha-oscar revert && escha-oscar integrate",
                )


def _duplicates(index: Index, path: str) -> dict[str, tuple[int, int]]:
    module = index.module(path)
    found: dict[str, tuple[int, int]] = {}
    for prefix, body in _scopes(module) if module is not None else ():
        seen: dict[tuple[str, Branch], Definition] = {}
        for node, branch in statements(body):
            if not isinstance(node, Definition) or _may_repeat(node):
                continue
            earlier = seen.get((node.name, branch))
            if earlier is not None:
                found[f"{prefix}{node.name}"] = (earlier.lineno, node.lineno)
            seen[node.name, branch] = node
    return found


def _scopes(module: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    yield "", module.body
    for node, _ in statements(module.body):
        if isinstance(node, ast.ClassDef):
            yield f"{node.name}.", node.body


def _may_repeat(node: Definition) -> bool:
    """Return whether a definition is meant to repeat a name: overloads, property parts, registrations, ``_``."""
    if node.name == "_":
        return True
    for decorator in node.decorator_list:
        name = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name.rpartition(".")[2] in {"overload", "setter", "getter", "deleter", "register"}:
            return True
    return False
