"""Choosing the text of a file that arrives whole: the pull request's, its defects mended, where it fits; else ours."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from escha_oscar.errors import SymbolError
from escha_oscar.mapping import copies
from escha_oscar.merge import repairs
from escha_oscar.merge.files import Base, SourceFile, Sources
from escha_oscar.model import Repair, Row
from escha_oscar.symbols.index import Function
from escha_oscar.symbols.resolve import Resolver
from escha_oscar.symbols.signatures import misfit, signature_of


@dataclass(frozen=True)
class Copied:
    """A file's text, its source (``pr`` or ``bundled``), why the first choice did not serve, and what was mended."""

    text: str
    taken_from: str
    why: str = ""
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True)
class Copier:
    """Decides one row at a time.

    ``calls`` are the calls that glue makes anywhere, by the called name; ``resolver`` looks names up in the tree as it
    is planned so far, with further files laid over it.
    """

    sources: Sources
    calls: Mapping[str, list[ast.Call]]
    resolver: Callable[[Mapping[str, bytes]], Resolver]
    dependencies: frozenset[str]
    strict: bool

    def choose(self, row: Row) -> Copied:
        """Return what arrives; raises SymbolError with ``strict`` where that is not the pull request's file."""
        own = self.sources.bundled_file(row)
        assert own is not None, row
        if self.sources.pr is None:
            return Copied(own.text, "bundled")
        path, theirs = row.wheel_paths[0], self.sources.pr_file(row)
        why: str | None = "not in the pull request"
        if theirs is not None:
            text, mended = repairs.mended(theirs.text, self._defects(), path)
            why = self._unfit(row, SourceFile(path, "pr", text))
            if why is None:
                return Copied(text, "pr", repairs=mended)
        if self.strict:
            hint = "escha-oscar integrate --source bundled"
            raise SymbolError("a file cannot be copied from the source", path=path, found=why, hint=hint)
        return Copied(own.text, "bundled", why or "")

    def _defects(self) -> tuple[repairs.Defect, ...]:
        resolver = self.resolver({})

        def resolves(node: ast.ImportFrom) -> bool:
            return all(resolver.has_name(node.module or "", alias.name) for alias in node.names)

        return (*repairs.COPY_DEFECTS, repairs.unresolved_import(resolves))

    def _unfit(self, row: Row, file: SourceFile) -> str | None:
        """Return why the pull request's file does not serve, or None."""
        for symbol in row.symbols:
            node = file.find(symbol.name)
            if node is None and symbol.public:
                return f"{symbol.name} is not in it"
            signature = signature_of(node) if isinstance(node, Function) else None
            calls = self.calls.get(symbol.name, []) if signature else []
            reason = next((r for r in (misfit(call, signature) for call in calls if signature) if r), None)
            if reason:
                return f"a call of {symbol.name} does not fit: {reason}"
        resolver = self.resolver({file.path: file.text.encode(), **self._theirs()})
        base = Base(file.path, file.text, resolver, self.dependencies)
        for node, guarded in _imports(file.tree):
            missing = [a.name for a in node.names if not guarded and not base.has_import(node, a.name)]
            if missing:
                return f"imports {ast.unparse(node)}, which the wheel's tree lacks"
        return None

    def _theirs(self) -> dict[str, bytes]:
        """Return every copied file as the pull request has it, for their imports of each other."""
        found = ((row.wheel_paths[0], self.sources.pr_file(row)) for row in copies())
        return {path: file.text.encode() for path, file in found if file is not None}


def _imports(module: ast.Module) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Return every import of a file, with whether a ``try`` that catches ImportError or TYPE_CHECKING guards it."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []
    stack: list[tuple[ast.AST, bool]] = [(module, False)]
    while stack:
        node, guarded = stack.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, guarded))
        if isinstance(node, ast.Try):
            stack += [(child, guarded or any(map(_catches_import, node.handlers))) for child in node.body]
            stack += [(child, guarded) for handler in node.handlers for child in handler.body]
            stack += [(child, guarded) for child in (*node.orelse, *node.finalbody)]
            continue
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        stack += [(child, guarded or typing_only) for child in ast.iter_child_nodes(node)]
    return found


def _catches_import(handler: ast.ExceptHandler) -> bool:
    kinds = ast.unparse(handler.type) if handler.type is not None else "Exception"
    return any(name in kinds for name in ("ImportError", "ModuleNotFoundError", "Exception"))
