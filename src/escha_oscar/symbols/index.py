"""Parsed modules of a tree and what they define, by scope; nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from escha_oscar.tree import Tree

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Branch = tuple[tuple[int, str], ...]
#: name -> definitions and assignments anywhere in a module, each with the name of the scope around it
Named = dict[str, list[tuple["Definition | ast.Assign | ast.AnnAssign", str]]]


@dataclass(frozen=True)
class Failure:
    """Why a file could not be parsed."""

    line: int | None
    reason: str


@dataclass
class Exports:
    """The names a module binds at its top level, the modules it star-imports, and whether ``__getattr__`` is there."""

    names: dict[str, ast.stmt] = field(default_factory=dict)
    stars: list[ast.ImportFrom] = field(default_factory=list)

    @property
    def dynamic(self) -> bool:
        """Return whether the module can answer for any name."""
        return "__getattr__" in self.names


class Index:
    """Modules of one tree, parsed at most once each."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._bytes: dict[str, bytes | None] = {}
        self._modules: dict[str, ast.Module | None] = {}
        self._failures: dict[str, Failure] = {}
        self._exports: dict[str, Exports] = {}
        self._named: dict[str, Named] = {}
        self._nodes: dict[str, tuple[ast.AST, ...]] = {}

    def read(self, path: str) -> bytes | None:
        """Return the bytes of ``path``, or None."""
        if path not in self._bytes:
            self._bytes[path] = self.tree.read(path)
        return self._bytes[path]

    def module(self, path: str) -> ast.Module | None:
        """Return the parsed module, or None where it is absent or cannot be parsed (see ``failure``)."""
        if path not in self._modules:
            self._modules[path] = self._parse(path)
        return self._modules[path]

    def failure(self, path: str) -> Failure | None:
        """Return why ``path`` does not parse, or None."""
        self.module(path)
        return self._failures.get(path)

    def exports(self, path: str) -> Exports:
        """Return what ``path`` binds at its top level; empty for an absent file."""
        if path not in self._exports:
            module = self.module(path)
            self._exports[path] = Exports() if module is None else exports_of(module)
        return self._exports[path]

    def nodes(self, path: str) -> tuple[ast.AST, ...]:
        """Return every node of ``path``, walked once."""
        if path not in self._nodes:
            module = self.module(path)
            self._nodes[path] = () if module is None else tuple(ast.walk(module))
        return self._nodes[path]

    def defines(self, path: str, name: str) -> bool:
        """Return whether a line at the left margin of ``path`` defines or assigns ``name``; parses nothing.

        False only says that the text alone does not show it: a definition may be conditional, imported or starred.
        """
        data = self.read(path) or b""
        word = re.escape(name.encode())
        return re.search(rb"^(?:(?:async )?def |class )?" + word + rb"\b\s*[(:=\[]", data, re.M) is not None

    def named(self, path: str) -> Named:
        """Return every definition and assignment of ``path`` at any depth, by name."""
        if path not in self._named:
            found: Named = {}
            module = self.module(path)
            if module is not None:
                _collect(module.body, "", found)
            self._named[path] = found
        return self._named[path]

    def _parse(self, path: str) -> ast.Module | None:
        data = self.read(path)
        if data is None:
            return None
        try:
            return ast.parse(data, filename=path)
        except SyntaxError as error:
            self._failures[path] = Failure(error.lineno, error.msg)
        except (ValueError, RecursionError, MemoryError) as error:
            self._failures[path] = Failure(None, str(error) or type(error).__name__)
        return None


def statements(body: list[ast.stmt], branch: Branch = ()) -> Iterator[tuple[ast.stmt, Branch]]:
    """Yield every statement of a scope, with the conditional blocks around it; does not enter functions or classes."""
    for node in body:
        yield node, branch
        for name, inner in _blocks(node):
            yield from statements(inner, (*branch, (id(node), name)))


def _blocks(node: ast.stmt) -> Iterator[tuple[str, list[ast.stmt]]]:
    if isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While):
        yield "body", node.body
        yield "else", node.orelse
    elif isinstance(node, ast.With | ast.AsyncWith):
        yield "body", node.body
    elif isinstance(node, ast.Try):
        yield "body", node.body
        for number, handler in enumerate(node.handlers):
            yield f"except{number}", handler.body
        yield "else", node.orelse
        yield "finally", node.finalbody
    elif isinstance(node, ast.Match):
        for number, case in enumerate(node.cases):
            yield f"case{number}", case.body


def _collect(body: list[ast.stmt], owner: str, found: Named) -> None:
    for node, _ in statements(body):
        if isinstance(node, Definition):
            found.setdefault(node.name, []).append((node, owner))
            _collect(node.body, node.name, found)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for name in bound_names(node):
                found.setdefault(name, []).append((node, owner))


def exports_of(module: ast.Module) -> Exports:
    """Return the names that ``module`` binds at its top level, conditional ones included."""
    found = Exports()
    for node, _ in statements(module.body):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            found.stars.append(node)
            continue
        for name in bound_names(node):
            found.names[name] = node
    return found


def bound_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that one statement binds in its own scope."""
    if isinstance(node, Definition):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.split(".")[0]
    else:
        for target in _targets(node):
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
        return [node.target]
    if isinstance(node, ast.With | ast.AsyncWith):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return []


def definitions(body: list[ast.stmt]) -> dict[str, list[Definition]]:
    """Return functions and classes of one scope by name, in order, conditional ones included."""
    found: dict[str, list[Definition]] = {}
    for node, _ in statements(body):
        if isinstance(node, Definition):
            found.setdefault(node.name, []).append(node)
    return found


def class_named(module: ast.Module, name: str) -> ast.ClassDef | None:
    """Return the last top-level class ``name``, or None."""
    return next((d for d in reversed(definitions(module.body).get(name, [])) if isinstance(d, ast.ClassDef)), None)


def method_named(owner: ast.ClassDef, name: str) -> Function | None:
    """Return the last method ``name`` of a class body, or None."""
    return next((d for d in reversed(definitions(owner.body).get(name, [])) if isinstance(d, Function)), None)


def function_named(module: ast.Module, name: str) -> Function | None:
    """Return the last top-level function ``name``, or None."""
    return next((d for d in reversed(definitions(module.body).get(name, [])) if isinstance(d, Function)), None)


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for a chain of names, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def is_triton_jit(function: Function) -> bool:
    """Return whether ``triton.jit`` (or ``jit``) is among the decorators, called or not."""
    for decorator in function.decorator_list:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        if dotted(node) in {"triton.jit", "jit"}:
            return True
    return False


def mentions(node: ast.AST, *words: str) -> bool:
    """Return whether a string constant, name, attribute or keyword below ``node`` contains one of ``words``."""
    for inner in ast.walk(node):
        text = _text_of(inner)
        if text and any(word in text for word in words):
            return True
    return False


def _text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.keyword):
        return node.arg or ""
    return ""
