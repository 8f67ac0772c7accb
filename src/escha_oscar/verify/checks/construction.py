"""Classes that carry the merge but are constructed nowhere, so that none of it runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from escha_oscar.mapping import merges
from escha_oscar.model import Finding, SymbolKind
from escha_oscar.symbols.index import Definition, Function, Index, definitions
from escha_oscar.tree import DiskTree, Layered, MemoryTree, Tree
from escha_oscar.verify.checks.scope import Scope
from escha_oscar.verify.codes import finding

_TYPE_TESTS = {"isinstance", "issubclass", "cast", "TypeVar"}


def python_files(tree: Tree) -> tuple[str, ...] | None:
    """Return the ``.py`` paths below ``sglang/``, or None for a kind of tree that cannot be listed."""
    if isinstance(tree, MemoryTree):
        return tuple(sorted(name for name in tree.files if name.endswith(".py") and name.startswith("sglang/")))
    if isinstance(tree, Layered):
        below = python_files(tree.base)
        return None if below is None else tuple(sorted({*below, *(python_files(tree.top) or ())}))
    if isinstance(tree, DiskTree):
        return tuple(sorted(path.relative_to(tree.root).as_posix() for path in _walk(tree.root / "sglang")))
    return None


def _walk(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*.py") if path.is_file())


def check_constructed(scope: Scope) -> Iterator[Finding]:
    """Report patched classes without a construction site; a class outside the mapping only earns a warning."""
    files = python_files(scope.tree)
    if files is None:
        return
    mapped = _mapped_classes(scope)
    patched = list(dict.fromkeys((*mapped, *_changed_classes(scope))))
    idle = _unbuilt(scope.index, {name for _, name, _ in patched}, _likely_first(scope.files, files))
    for path, name, line in patched:
        if name not in idle:
            continue
        ours = (path, name, line) in mapped
        yield finding(
            "never-constructed" if ours else "sibling-never-constructed",
            f"{name} is patched but never constructed",
            path=path,
            line=line,
            expected=f"a call of {name}, a subclass, or the class handed on",
            found="none in the tree",
            hint=f"grep -rn '{name}' <site-packages>/sglang  # which sibling is built in its place?",
        )


def _mapped_classes(scope: Scope) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    for row in merges():
        path = scope.path_of(row)
        module = scope.index.module(path) if path is not None else None
        if module is None or path is None:
            continue
        here = definitions(module.body)
        names = {_class_of(s.name, s.kind) for s in row.symbols} - {""}
        for name in sorted(names & here.keys()):
            found.append((path, name, here[name][-1].lineno))
    return found


def _class_of(name: str, kind: SymbolKind) -> str:
    return name if kind is SymbolKind.CLASS else name.rpartition(".")[0]


def _changed_classes(scope: Scope) -> Iterator[tuple[str, str, int]]:
    """Yield classes of the base whose text the merge changed."""
    for path in scope.files if scope.base is not None else ():
        before = scope.base.module(path) if scope.base is not None else None
        after = scope.index.module(path)
        if before is None or after is None or scope.base is None or scope.base.read(path) == scope.index.read(path):
            continue
        old = {name: _text(scope.base, path, nodes[-1]) for name, nodes in definitions(before.body).items()}
        for name, nodes in definitions(after.body).items():
            changed = name in old and old[name] != _text(scope.index, path, nodes[-1])
            if changed and isinstance(nodes[-1], ast.ClassDef):
                yield path, name, nodes[-1].lineno


def _text(index: Index, path: str, node: Definition) -> list[bytes]:
    return (index.read(path) or b"").splitlines()[node.lineno - 1 : node.end_lineno]


def _likely_first(ours: tuple[str, ...], files: tuple[str, ...]) -> list[str]:
    """Return the files of the merge, then those beside them, then the rest: most classes are built near by."""
    folders = {path.rpartition("/")[0] for path in ours}
    rest = sorted(set(files) - set(ours), key=lambda path: (path.rpartition("/")[0] not in folders, path))
    return [*ours, *rest]


def _unbuilt(index: Index, names: set[str], files: list[str]) -> set[str]:
    """Return the names that no file constructs; stops reading when none is left."""
    pending = set(names)
    for path in files:
        if not pending:
            break
        words = re.compile(rb"\b(?:" + b"|".join(map(re.escape, (n.encode() for n in sorted(pending)))) + rb")\b")
        met = {match.decode() for match in words.findall(index.read(path) or b"")}
        if met:
            broken = index.failure(path) is not None
            pending -= {name for name in met if broken or _builds(index.nodes(path), name)}
    return pending


def _builds(nodes: tuple[ast.AST, ...], name: str) -> bool:
    """Return whether the class is called, subclassed, instantiated as ``cls``, or handed on as a value."""
    uses = [node for node in nodes if _names(node, name)]
    if uses:
        types = {id(inner) for node in nodes for part in _type_parts(node, name) for inner in ast.walk(part)}
        if any(id(node) not in types for node in uses):
            return True
    return any(isinstance(node, ast.ClassDef) and node.name == name and _calls_cls(node) for node in nodes)


def _names(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)


def _calls_cls(owner: ast.ClassDef) -> bool:
    calls = (n for n in ast.walk(owner) if isinstance(n, ast.Call))
    return any(isinstance(call.func, ast.Name) and call.func.id == "cls" for call in calls)


def _type_parts(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield the parts of ``node`` that only speak about types: annotations, isinstance tests, class attributes."""
    if isinstance(node, Function):
        yield from (a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg) and a.annotation is not None)
        if node.returns is not None:
            yield node.returns
    elif isinstance(node, ast.AnnAssign):
        yield node.annotation
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TYPE_TESTS:
        yield from node.args
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
        yield node.value
