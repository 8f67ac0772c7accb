"""Choosing where each symbol of a merged file comes from: the pull request where it fits, else the bundled tree.

A symbol of the pull request fits when the calls that our glue makes suit its signature, everything that it names exists
in the wheel (or can come along), and every attribute of ``self`` that it reads is set there. All of it is read from
text; nothing is imported and nothing is written.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from escha_oscar.errors import SymbolError
from escha_oscar.merge import repairs
from escha_oscar.merge.files import Base, SourceFile
from escha_oscar.model import Chosen, Graft, Origin, Repair, Row, Symbol, SymbolKind, SymbolUse
from escha_oscar.symbols.index import Definition, Function, dotted
from escha_oscar.symbols.signatures import misfit, signature_of

_CODE = (SymbolKind.FUNCTION, SymbolKind.TRITON_KERNEL, SymbolKind.CLASS, SymbolKind.METHOD)
_BUILTINS = frozenset(dir(builtins))


@dataclass
class Chooser:
    """Decides one row; ``calls`` are the calls that glue makes anywhere, by the called name."""

    row: Row
    pr: SourceFile | None
    donor: SourceFile
    base: Base
    calls: Mapping[str, list[ast.Call]]
    glue: tuple[str, ...] = ()
    strict: bool = False
    _helpers: dict[str, Graft] = field(default_factory=dict)
    _imports: dict[str, str] = field(default_factory=dict)
    _uses: list[SymbolUse] = field(default_factory=list)
    _repairs: list[Repair] = field(default_factory=list)

    def choose(self) -> Chosen:
        """Return what the file receives; raises SymbolError where a public symbol is nowhere, or with ``strict``."""
        grafts = {s.name: self._pick(s) for s in self.row.symbols if s.kind in _CODE and s.public}
        grafts |= {name: self._pick(Symbol(name, SymbolKind.FUNCTION, Origin.GLUE)) for name in self.glue}
        grafts |= self._private_glue(grafts)
        for graft in grafts.values():
            self._bring(graft, grafts)
        self._report_internals()
        helpers, imports = tuple(self._helpers.values()), tuple(self._imports.values())
        return Chosen(grafts, helpers, imports, tuple(self._uses), tuple(self._repairs))

    def _pick(self, symbol: Symbol) -> Graft:
        own = self.donor.find(symbol.name)
        if symbol.origin is Origin.GLUE:
            assert own is not None, symbol.name
            self._uses.append(SymbolUse(self.base.path, symbol.name, "glue"))
            return Graft(symbol.name, self.donor.segment(own), "glue")
        why = self._unfit(symbol)
        if why is None and self.pr is not None:
            node = self.pr.find(symbol.name)
            assert node is not None
            self._uses.append(SymbolUse(self.base.path, symbol.name, "pr"))
            return self._repaired(Graft(symbol.name, self.pr.segment(node), "pr"))
        if own is None or (self.strict and self.pr is not None):
            raise SymbolError(
                f"{symbol.name} cannot be taken from the source",
                path=self.pr.path if self.pr else self.donor.path,
                sought=symbol.name,
                found=why,
                hint="escha-oscar integrate --source bundled",
            )
        self._uses.append(SymbolUse(self.base.path, symbol.name, "bundled", why or ""))
        return Graft(symbol.name, self.donor.segment(own), "bundled")

    def _unfit(self, symbol: Symbol) -> str | None:
        """Return why the pull request's definition does not serve, or None where it does."""
        if self.pr is None:
            return ""
        node = self.pr.find(symbol.name)
        if node is None:
            return "not in the pull request's file"
        return self._misfit(symbol, node) or self._unresolved(node) or self._foreign_attributes(symbol, node)

    def _misfit(self, symbol: Symbol, node: ast.stmt) -> str | None:
        leaf = symbol.name.rpartition(".")[2]
        if not isinstance(node, Function):
            return None
        signature = signature_of(node, bound="." in symbol.name)
        reasons = (misfit(call, signature) for call in self.calls.get(leaf, [])) if signature else ()
        return next((f"a call does not fit: {reason}" for reason in reasons if reason), None)

    def _unresolved(self, node: ast.stmt) -> str | None:
        missing = self._missing(node, set())
        return f"needs {missing}, which the wheel's tree lacks" if missing else None

    def _missing(self, node: ast.stmt, seen: set[str]) -> str | None:
        """Return the first name that ``node`` needs and that neither tree can give."""
        assert self.pr is not None
        for line, name in _inner_imports(node):
            if not self.base.has_import(line, name):
                return f"{line.module}.{name}" if isinstance(line, ast.ImportFrom) else name
        for name in free_names(self.pr.segment(node)):
            if name in seen or name in self.base.file.names or name in _BUILTINS:
                continue
            seen.add(name)
            needed = self.pr.names.get(name)
            if needed is None:
                return name
            if isinstance(needed, ast.Import | ast.ImportFrom):
                if not self.base.has_import(needed, _origin_name(needed, name)):
                    return ast.unparse(needed)
            else:
                missing = self._missing(needed, seen)
                if missing:
                    return missing
        return None

    def _foreign_attributes(self, symbol: Symbol, node: ast.stmt) -> str | None:
        if "." not in symbol.name:
            return None
        known = self._attributes()
        read = sorted({n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and dotted(n.value) == "self"})
        unknown = [name for name in read if name not in known]
        return f"reads self.{unknown[0]}, which nothing sets" if unknown else None

    def _attributes(self) -> set[str]:
        """Return what ``self`` may have: methods and attributes of any class of the base file and of our own."""
        known: set[str] = set()
        for source in (self.base.file, self.donor):
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
                    known.add(node.attr)
            known |= {
                d.name
                for c in source.tree.body
                if isinstance(c, ast.ClassDef)
                for d in c.body
                if isinstance(d, Function)
            }
        return known

    def _private_glue(self, grafts: Mapping[str, Graft]) -> dict[str, Graft]:
        """Return our own definitions that the chosen ones need: methods of grafted classes and module helpers."""
        found: dict[str, Graft] = {}
        queue = [g for g in grafts.values() if g.taken_from != "pr"]
        while queue:
            graft = queue.pop()
            owner = graft.name.rpartition(".")[0]
            names = [f"{owner}.{name}" for name in _self_names(graft.text)] if owner else []
            for name in [*names, *free_names(graft.text)]:
                node = self.donor.find(name)
                if node is None or name in grafts or name in found or not isinstance(node, Definition):
                    continue
                if name not in self.base.file.names and self.base.file.find(name) is None:
                    found[name] = Graft(name, self.donor.segment(node), "glue")
                    queue.append(found[name])
        return {name: found[name] for name in sorted(found, key=self._place)}

    def _place(self, name: str) -> int:
        node = self.donor.find(name)
        return node.lineno if node is not None else 0

    def _bring(self, graft: Graft, chosen: Mapping[str, Graft]) -> None:
        """Bring the imports and helpers that a graft names and the base does not have."""
        source = self.pr if graft.taken_from == "pr" else self.donor
        assert source is not None
        for name in free_names(graft.text):
            if name in chosen or name in self._helpers or name in self._imports or name in self.base.file.names:
                continue
            node = source.names.get(name)
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._imports[name] = _import_line(node, name)
            elif node is not None:
                helper = self._repaired(Graft(name, source.segment(node), graft.taken_from))
                self._helpers[name] = helper
                self._bring(helper, chosen)
                # After what it needs: a constant, a decorator or a base class is evaluated when the module loads.
                self._helpers[name] = self._helpers.pop(name)

    def _repaired(self, graft: Graft) -> Graft:
        text, done = repairs.mended(graft.text, self._defects(), f"{self.base.path}:{graft.name}")
        self._repairs += done
        return Graft(graft.name, text, graft.taken_from)

    def _defects(self) -> tuple[repairs.Defect, ...]:
        softmax = self.base.file.names.get("_decode_softmax_reducev_fwd")
        signature = signature_of(softmax) if isinstance(softmax, Function) else None
        fitting = (repairs.unknown_softmax_keywords(signature),) if signature is not None else ()
        return (*repairs.DECODE_DEFECTS, *fitting)

    def _report_internals(self) -> None:
        for symbol in self.row.symbols:
            if not symbol.public and symbol.name in self._helpers:
                self._uses.append(SymbolUse(self.base.path, symbol.name, self._helpers[symbol.name].taken_from))


def free_names(text: str) -> list[str]:
    """Return the global names that a dedented definition reads, decorators and defaults included, in order."""
    table = symtable.symtable(text, "graft", "exec")
    own = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_namespace()}
    found: dict[str, None] = {}
    stack = [table]
    while stack:
        scope = stack.pop(0)
        for symbol in scope.get_symbols():
            is_global = symbol.is_global() or (scope is table and symbol.is_referenced())
            if is_global and symbol.get_name() not in _BUILTINS and symbol.get_name() not in own:
                found.setdefault(symbol.get_name())
        stack.extend(scope.get_children())
    return sorted(found)


def glue_calls(donors: Iterable[SourceFile], rows: Iterable[Row]) -> dict[str, list[ast.Call]]:
    """Return the calls that our own glue makes to symbols of the pull request, by the last part of the called name."""
    symbols = [s for row in rows for s in row.symbols if s.origin is Origin.PR]
    wanted = {s.name.rpartition(".")[2] for s in symbols}
    from_pr = {s.name for s in symbols}
    calls: dict[str, list[ast.Call]] = {}
    for donor in donors:
        for name, node in _definitions(donor.tree):
            if name in from_pr:
                continue
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
                leaf = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
                if leaf in wanted and not dotted(call.func).startswith("oscar_int2."):
                    calls.setdefault(leaf, []).append(call)
    return calls


def _definitions(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{d.name}", d) for d in node.body if isinstance(d, Function))
        elif isinstance(node, Function):
            yield node.name, node


def _self_names(text: str) -> list[str]:
    nodes = ast.walk(ast.parse(text))
    return sorted({n.attr for n in nodes if isinstance(n, ast.Attribute) and dotted(n.value) == "self"})


def _inner_imports(node: ast.stmt) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import | ast.ImportFrom) and inner is not node:
            yield from ((inner, alias.name) for alias in inner.names)


def _origin_name(node: ast.Import | ast.ImportFrom, local: str) -> str:
    return next((a.name for a in node.names if (a.asname or a.name.split(".")[0]) == local), local)


def _import_line(node: ast.Import | ast.ImportFrom, local: str) -> str:
    alias = next(a for a in node.names if (a.asname or a.name.split(".")[0]) == local)
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import([alias]))
    return ast.unparse(ast.ImportFrom(node.module, [alias], node.level))
