"""Deciding an integration in memory: the bytes of every file of the target, and where each symbol came from."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from types import ModuleType

from escha_oscar.errors import SymbolError, TargetError
from escha_oscar.mapping import ROWS, copies, merges, row_for
from escha_oscar.mapping.wheels import KERNELS_DIR
from escha_oscar.merge.blast import check_blast_radius
from escha_oscar.merge.copied import Copier
from escha_oscar.merge.files import Base, SourceFile, Sources
from escha_oscar.merge.graft import Chooser, glue_calls
from escha_oscar.merge.marker import is_marked, with_marker
from escha_oscar.merge.python_file import decoded, parse
from escha_oscar.model import (
    Action,
    Change,
    Chosen,
    Context,
    Origin,
    Plan,
    PlannedFile,
    Repair,
    Row,
    Symbol,
    SymbolKind,
    SymbolUse,
    Target,
)
from escha_oscar.progress import NoProgress, Progress
from escha_oscar.symbols.index import Function, Index
from escha_oscar.symbols.resolve import Resolver
from escha_oscar.symbols.signatures import signature_of
from escha_oscar.transforms import TRANSFORMS, environ
from escha_oscar.tree import Layered, MemoryTree, Tree, first_existing

QUANT_KERNEL_INIT = "sglang/QuantKernel/__init__.py"
EXTEND_KERNEL = "sglang/srt/layers/attention/triton_ops/extend_attention.py"


@dataclass(frozen=True)
class Options:
    """How to integrate: kernels that run by default, and whether a fallback to the bundled tree is an error."""

    kernels: str = "native"
    strict: bool = False


def build_plan(
    target: Target,
    tree: Tree,
    sources: Sources,
    options: Options | None = None,
    progress: Progress | None = None,
    dependencies: frozenset[str] = frozenset(),
) -> Plan:
    """Return the whole integration of ``sources`` into ``tree`` (the target's pristine files).

    Raises TargetError where the tree lacks a file or holds INT2 code already, AnchorError where a place does not match,
    SymbolError where a symbol is nowhere.
    """
    builder = _Builder(target, tree, sources, options or Options(), progress or NoProgress(), dependencies)
    return builder.build()


@dataclass
class _Builder:
    """What is asked for, and what has been decided so far; ``code`` is the text of every definition that moved."""

    target: Target
    tree: Tree
    sources: Sources
    options: Options
    progress: Progress
    dependencies: frozenset[str]
    files: list[PlannedFile] = field(default_factory=list)
    uses: list[SymbolUse] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    verbatim: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    def build(self) -> Plan:
        """Decide every file: placed, copied, then merged, the environment last."""
        self._place_kernels()
        self._copy_rows()
        self._merge_rows()
        first = self.sources.pr or self.sources.bundled
        return Plan(
            self.target,
            first.id,
            self.options.kernels,
            tuple(f for f in self.files if f.before != f.after),
            tuple(self.uses),
            tuple(self.repairs),
            tuple(self.verbatim),
            self.target.warnings,
        )

    # -- files that arrive whole

    def _place_kernels(self) -> None:
        """Place our kernels as they are, file by file."""
        self.progress.step("placing kernels")
        for name, data in kernel_files().items():
            self._add(f"{KERNELS_DIR}/{name}", Change.PLACE, data)

    def _copy_rows(self) -> None:
        self.progress.step("copying files")
        if self.tree.read(QUANT_KERNEL_INIT) is None:
            self._add(QUANT_KERNEL_INIT, Change.CREATE, b"")
            self.repairs.append(Repair("quant-kernel-init", QUANT_KERNEL_INIT, "an empty package file was made"))
        copier = Copier(self.sources, self._calls, self._resolver, self.dependencies, self.options.strict)
        for row in copies():
            path = row.wheel_paths[0]
            if self.tree.read(path) is not None:
                raise _foreign(path)
            file = copier.choose(row)
            self.uses += [SymbolUse(path, s.name, file.taken_from, file.why) for s in row.symbols if s.public]
            self.repairs += file.repairs
            if file.taken_from == "pr" and not file.repairs:
                self.verbatim.append(path)
            self._add(path, Change.COPY, file.text.encode())

    # -- files that are merged

    def _merge_rows(self) -> None:
        for transform in TRANSFORMS:
            path = self._path_of(transform)
            if path is None:
                continue
            self.progress.step(f"merging {path}")
            before = self._read(path)
            chosen = self._chosen(path, before, getattr(transform, "GLUE", ()))
            self.code += [g.text for g in (*chosen.grafts.values(), *chosen.helpers)]
            self._add(path, Change.MERGE, self._merged(transform, path, before, chosen))

    def _path_of(self, transform: ModuleType) -> str | None:
        row = row_for(transform.TARGET)
        candidates = row.wheel_paths if row is not None and row.action is Action.MERGE else (transform.TARGET,)
        path = first_existing(self.tree, candidates)
        if path is None and not getattr(transform, "OPTIONAL", False):
            raise TargetError(
                "the tree lacks a file that has to be merged",
                path=str(self.target.site_packages),
                sought=" or ".join(candidates),
                found="nothing",
                hint=f"escha-oscar mapping --site-packages {shlex.quote(str(self.target.site_packages))}",
            )
        return path

    def _read(self, path: str) -> bytes:
        data = self.tree.read(path)
        assert data is not None
        return data

    def _chosen(self, path: str, before: bytes, glue: tuple[str, ...]) -> Chosen:
        row = row_for(path) or Row(Action.MERGE, (path,), (path,))
        donor = self.sources.bundled_file(row)
        if donor is None:
            return Chosen({})
        base = Base(path, decoded(before, path), self._resolver(), self.dependencies)
        _refuse_foreign(row, base)
        pr = self.sources.pr_file(row)
        chooser = Chooser(row, pr, donor, base, self._calls, glue, self.options.strict)
        chosen = chooser.choose()
        self.uses += chosen.uses
        self.repairs += chosen.repairs
        return chosen

    def _merged(self, transform: ModuleType, path: str, before: bytes, chosen: Chosen) -> bytes:
        module = parse(before, path)
        if is_marked(module):
            raise _foreign(path)
        context = Context(path, chosen, self._env_fields() if transform is environ else {}, self._takes_scales)
        after = with_marker(transform.transform(module, context), self.sources.label).bytes
        check_blast_radius(path, before, after, transform.TOUCHES)
        return bytes(after)

    def _env_fields(self) -> dict[str, str]:
        """Return every field to register: ours, and what any transplanted or copied code reads besides."""
        row = row_for(environ.TARGET)
        assert row is not None
        donor = self.sources.bundled_file(row)
        pr = self.sources.pr_file(row)
        assert donor is not None
        fields = _env_defaults(donor)
        fields["SGLANG_OSCAR_KERNELS"] = f'EnvStr("{self.options.kernels}")'
        theirs = _env_defaults(pr) if pr is not None else {}
        copied = [f.after.decode() for f in self.files if f.change is Change.COPY]
        read = {name for text in (*self.code, *copied) for name in _envs_read(text)}
        self.uses += [self._env_use(symbol, fields[symbol.name], theirs.get(symbol.name)) for symbol in row.symbols]
        return {**fields, **{name: theirs[name] for name in sorted(read) if name in theirs and name not in fields}}

    def _env_use(self, symbol: Symbol, ours: str, theirs: str | None) -> SymbolUse:
        """Return where a field's default comes from; a field that must and cannot come from the source is an error."""
        if symbol.origin is Origin.GLUE:
            return SymbolUse(environ.TARGET, symbol.name, "glue")
        if self.sources.pr is None:
            return SymbolUse(environ.TARGET, symbol.name, "bundled")
        if theirs == ours:
            return SymbolUse(environ.TARGET, symbol.name, "pr")
        why = "not in the pull request's file" if theirs is None else "the pull request has another default"
        if self.options.strict:
            raise SymbolError(
                f"{symbol.name} cannot be taken from the source", path=environ.TARGET, sought=f"{symbol.name} = {ours}",
                found=why if theirs is None else f"{why}: {theirs}", hint=_BUNDLED_HINT,
            )  # fmt: skip
        return SymbolUse(environ.TARGET, symbol.name, "bundled", why)

    # -- what is asked more than once

    @cached_property
    def _takes_scales(self) -> bool:
        index = Index(self.tree)
        function = index.exports(EXTEND_KERNEL).names.get("extend_attention_fwd")
        signature = signature_of(function) if isinstance(function, Function) else None
        return signature is None or "k_scale" in signature.positional

    @cached_property
    def _calls(self) -> Mapping[str, list[ast.Call]]:
        files = [self.sources.bundled_file(row) for row in merges()]
        return glue_calls([f for f in files if f is not None], ROWS)

    def _resolver(self, more: Mapping[str, bytes] | None = None) -> Resolver:
        """Look names up in the tree as planned so far, with ``more`` laid over it."""
        planned = {f.path: f.after for f in self.files}
        return Resolver(Index(Layered(MemoryTree({**planned, **(more or {})}), self.tree)))

    def _add(self, path: str, change: Change, after: bytes) -> None:
        self.files.append(PlannedFile(path, change, self.tree.read(path), after))


_BUNDLED_HINT = "escha-oscar integrate --source bundled"


def kernel_files() -> dict[str, bytes]:
    """Return the kernel package's files by name, as they are shipped."""
    folder = resources.files("escha_oscar") / "kernels"
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir(), key=lambda f: f.name) if f.name.endswith(".py")}


def _refuse_foreign(row: Row, base: Base) -> None:
    """Refuse a file that holds INT2 code from a hand merge or another tool."""
    for symbol in row.symbols:
        if symbol.kind in (SymbolKind.FUNCTION, SymbolKind.CLASS, SymbolKind.METHOD, SymbolKind.TRITON_KERNEL):
            node = base.file.find(symbol.name)
            if node is not None:
                raise _foreign(base.path, node.lineno, symbol.name)


def _foreign(path: str, line: int | None = None, name: str | None = None) -> TargetError:
    return TargetError(
        "the tree already holds INT2 code that this tool did not write",
        path=path,
        line=line,
        sought="a file as the wheel ships it",
        found=name or "the file itself",
        hint="pip install --force-reinstall --no-deps WHEEL, then escha-oscar integrate",
    )


def _env_defaults(source: SourceFile) -> dict[str, str]:
    envs = source.names.get("Envs")
    body = envs.body if isinstance(envs, ast.ClassDef) else []
    pairs = ((node.targets[0], node.value) for node in body if isinstance(node, ast.Assign))
    return {target.id: ast.unparse(value).replace("'", '"') for target, value in pairs if isinstance(target, ast.Name)}


def _envs_read(text: str) -> set[str]:
    nodes = ast.walk(ast.parse(text))
    return {
        n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "envs"
    }
