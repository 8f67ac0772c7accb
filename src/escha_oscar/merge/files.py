"""The files that a merge reads: those of its sources, and the wheel's own that receive from them."""

from __future__ import annotations

import ast
import sys
import tokenize
from dataclasses import dataclass
from functools import cached_property

from escha_oscar.errors import AnchorError
from escha_oscar.merge.python_file import decoded
from escha_oscar.model import Row
from escha_oscar.source import Source
from escha_oscar.symbols.index import bound_names, exports_of
from escha_oscar.symbols.resolve import Resolver, in_tree

#: Packages that every wheel of the family depends on.
_ALWAYS_THERE = frozenset({"torch", "triton", "numpy", *sys.stdlib_module_names})


@dataclass(frozen=True)
class SourceFile:
    """One parsed file of a source; ``taken_from`` is ``pr`` or ``bundled``."""

    path: str
    taken_from: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Return the parsed module; raises AnchorError where it does not parse."""
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            raise AnchorError(f"a source file does not parse: {error}", path=self.path, line=line) from None

    @cached_property
    def names(self) -> dict[str, ast.stmt]:
        """Return what the module binds at its top level."""
        return exports_of(self.tree).names

    def find(self, name: str) -> ast.stmt | None:
        """Return the definition of a dotted name, or None."""
        owner, _, leaf = name.rpartition(".")
        if not owner:
            return self.names.get(leaf)
        holder = self.names.get(owner)
        body = holder.body if isinstance(holder, ast.ClassDef) else []
        return next((node for node in body if leaf in set(bound_names(node))), None)

    def segment(self, node: ast.stmt) -> str:
        """Return the dedented text of a statement with its decorators."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(d.lineno for d in decorators)])
        lines = [line.decode() for line in self.text.encode().splitlines(keepends=True)[first - 1 : node.end_lineno]]
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        inside = _lines_inside_strings(lines)
        clean = [line if i in inside else line.removeprefix(indent) for i, line in enumerate(lines, start=1)]
        return "".join(clean).rstrip() + "\n"


@dataclass(frozen=True)
class Base:
    """The wheel's own file that receives grafts, and the tree around it."""

    path: str
    text: str
    resolver: Resolver
    dependencies: frozenset[str] = frozenset()

    @cached_property
    def file(self) -> SourceFile:
        """Return the base parsed as a source file."""
        return SourceFile(self.path, "wheel", self.text)

    def has_import(self, line: ast.Import | ast.ImportFrom, name: str) -> bool:
        """Return whether ``name`` of an import statement would be found in the target's environment."""
        if isinstance(line, ast.Import):
            return all(self._has_module(alias.name) for alias in line.names)
        module = line.module or ""
        if line.level:
            return False
        return self.resolver.has_name(module, name) if in_tree(module) else self._external(module)

    def _has_module(self, module: str) -> bool:
        return self.resolver.module_file(module) is not None if in_tree(module) else self._external(module)

    def _external(self, module: str) -> bool:
        return module.split(".")[0] in _ALWAYS_THERE | self.dependencies


@dataclass(frozen=True)
class Sources:
    """The trees to take from: ``pr`` is None with ``--source bundled``."""

    pr: Source | None
    bundled: Source

    @property
    def label(self) -> str:
        """Return what the marker comment names."""
        return f"commit {self.pr.id.commit}" if self.pr is not None else "its bundled implementation"

    def pr_file(self, row: Row) -> SourceFile | None:
        """Return a row's file in the pull request, or None where it has none or is not the source."""
        return _file(self.pr, row.pr_paths, "pr") if self.pr is not None else None

    def bundled_file(self, row: Row) -> SourceFile | None:
        """Return a row's file in the bundled tree, or None where it has none."""
        return _file(self.bundled, row.wheel_paths, "bundled")


def _file(source: Source, paths: tuple[str, ...], taken_from: str) -> SourceFile | None:
    found = ((path, source.read(path)) for path in paths)
    return next((SourceFile(path, taken_from, decoded(data, path)) for path, data in found if data is not None), None)


def _lines_inside_strings(lines: list[str]) -> set[int]:
    """Return the numbers of the lines that begin inside a string, whose white space is content."""
    tokens = tokenize.generate_tokens(iter(lines).__next__)
    return {number for token in tokens for number in range(token.start[0] + 1, token.end[0] + 1)}
