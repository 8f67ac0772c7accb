"""Following imports through the files of a tree: re-exports, packages, conditional definitions, star imports."""

from __future__ import annotations

import ast
from collections.abc import Collection

from escha_oscar.symbols.index import Definition, Index

_DEPTH = 12


class Resolver:
    """Static name resolution below ``sglang.``; anything else is out of its sight."""

    def __init__(self, index: Index, exact: Collection[str] = ()) -> None:
        """Look into ``index``; modules outside ``exact`` are believed by their text where that settles a name."""
        self.index = index
        self.exact = frozenset(exact)
        self._known: dict[tuple[str, str], bool] = {}

    def module_file(self, dotted: str) -> str | None:
        """Return the file of a module, ``""`` for a namespace package, or None where there is none."""
        stem = dotted.replace(".", "/")
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if self.index.read(path) is not None:
                return path
        return "" if self.index.tree.exists(stem) else None

    def absolute(self, path: str, node: ast.ImportFrom) -> str | None:
        """Return the absolute dotted module of a ``from`` import in ``path``, or None where it leaves the tree."""
        if not node.level:
            return node.module
        parts = path.removesuffix(".py").split("/")
        package = parts[:-1]
        keep = len(package) - (node.level - 1)
        if keep < 1:
            return None
        return ".".join([*package[:keep], *([node.module] if node.module else [])])

    def has_name(self, dotted: str, name: str, depth: int = _DEPTH) -> bool:
        """Return whether ``from dotted import name`` would find something."""
        key = dotted, name
        if key not in self._known:
            self._known[key] = self._has_name(dotted, name, depth)
        return self._known[key]

    def _has_name(self, dotted: str, name: str, depth: int) -> bool:
        path = self.module_file(dotted)
        if path is None:
            return False
        if path != "" and self._exports_name(path, name, depth):
            return True
        return self.module_file(f"{dotted}.{name}") is not None

    def _exports_name(self, path: str, name: str, depth: int) -> bool:
        if path not in self.exact and self.index.defines(path, name):
            return True
        if self.index.failure(path) is not None:
            return True
        exports = self.index.exports(path)
        if name in exports.names or exports.dynamic or not depth:
            return True
        return any(self._star_has(path, star, name, depth) for star in exports.stars)

    def _star_has(self, path: str, star: ast.ImportFrom, name: str, depth: int) -> bool:
        dotted = self.absolute(path, star)
        if dotted is None or not in_tree(dotted):
            return True
        inner = self.module_file(dotted)
        return bool(inner) and self._exports_name(str(inner), name, depth - 1)

    def binding(self, path: str, name: str, depth: int = _DEPTH) -> tuple[str, ast.stmt] | None:
        """Return the file and statement that finally bind ``name`` as seen at the top level of ``path``.

        Follows imports below ``sglang.``; None where the trail ends outside the tree or cannot be followed.
        """
        if not depth:
            return None
        exports = self.index.exports(path)
        node = exports.names.get(name)
        if node is None:
            return self._star_binding(path, name, depth)
        if not isinstance(node, ast.ImportFrom):
            return None if isinstance(node, ast.Import) else (path, node)
        return self.imported(path, node, name, depth)

    def imported(self, path: str, node: ast.ImportFrom, name: str, depth: int = _DEPTH) -> tuple[str, ast.stmt] | None:
        """Return what the local ``name`` of one ``from`` import stands for, as file and statement."""
        alias = next((a for a in node.names if (a.asname or a.name) == name), None)
        dotted = self.absolute(path, node)
        if alias is None or dotted is None or not in_tree(dotted):
            return None
        inner = self.module_file(dotted)
        return self.binding(inner, alias.name, depth - 1) if inner else None

    def _star_binding(self, path: str, name: str, depth: int) -> tuple[str, ast.stmt] | None:
        for star in self.index.exports(path).stars:
            dotted = self.absolute(path, star)
            inner = self.module_file(dotted) if dotted is not None and in_tree(dotted) else None
            found = self.binding(inner, name, depth - 1) if inner else None
            if found is not None:
                return found
        return None

    def definition(self, path: str, name: str) -> Definition | None:
        """Return the function or class that ``name`` stands for at the top level of ``path``, or None."""
        place = self.binding(path, name)
        return place[1] if place is not None and isinstance(place[1], Definition) else None


def in_tree(dotted: str) -> bool:
    """Return whether a module belongs to the tree that is verified."""
    return dotted == "sglang" or dotted.startswith("sglang.")
