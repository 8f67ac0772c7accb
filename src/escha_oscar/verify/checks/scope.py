"""What one verification looks at: the tree, its base, which files belong to the merge and how it was made."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from escha_oscar.mapping import copies, merges
from escha_oscar.mapping.wheels import KERNELS_DIR
from escha_oscar.model import Row
from escha_oscar.symbols.index import Index
from escha_oscar.tree import Tree

#: Files that some bases moved an anchor to; checked where they exist.
MOVED_ANCHORS = ("sglang/srt/model_executor/pool_configurator.py",)
_MARKER_LINES = 80


@dataclass(frozen=True)
class Scope:
    """The tree under verification.

    ``source_kind`` is ``pr`` or ``bundled`` where it is known; ``base`` is the tree before the merge, so that what was
    already there does not count; ``changed`` are further paths that the merge wrote.
    """

    index: Index
    source_kind: str | None
    changed: frozenset[str]
    base: Index | None
    escha: bool = False

    @property
    def tree(self) -> Tree:
        """Return the tree itself."""
        return self.index.tree

    @cached_property
    def placed(self) -> tuple[str, ...]:
        """Return the files of the placed kernel package, followed from its ``__init__`` through relative imports."""
        return tuple(_package_files(self.index, KERNELS_DIR))

    @cached_property
    def internals_required(self) -> bool:
        """Return whether the pull request's own helpers must be there."""
        if self.source_kind is not None:
            return self.source_kind == "pr"
        return self.index.read(f"{KERNELS_DIR}/__init__.py") is None

    def path_of(self, row: Row) -> str | None:
        """Return where the file of ``row`` stands in this tree, or None."""
        return next((path for path in row.wheel_paths if self.index.read(path) is not None), None)

    @cached_property
    def mapped(self) -> tuple[str, ...]:
        """Return the copied and merged files that exist."""
        found = (self.path_of(row) for row in (*copies(), *merges()))
        return tuple(path for path in found if path is not None)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Return every Python file that belongs to the merge and exists, in a fixed order."""
        extra = [path for path in MOVED_ANCHORS if self.index.read(path) is not None]
        changed = [p for p in sorted(self.changed) if p.endswith(".py") and self.index.read(p) is not None]
        return tuple(dict.fromkeys((*self.mapped, *extra, *self.placed, *changed)))

    def touched(self, path: str) -> bool:
        """Return whether ``path`` differs from the base, or there is no base to say so."""
        return self.base is None or self.base.read(path) != self.index.read(path)

    def marked(self, path: str) -> bool:
        """Return whether ``path`` carries this tool's change notice near its top."""
        return has_marker(self.index.read(path) or b"")

    def file_for(self, suffix: str) -> str | None:
        """Return the existing mapped file whose path ends in ``suffix``."""
        return next((path for path in self.mapped if path.endswith(suffix)), None)


def make_scope(
    tree: Tree, *, source_kind: str | None, changed: Iterable[str] | None, base: Tree | None, escha: bool
) -> Scope:
    """Return the scope of one verification."""
    return Scope(Index(tree), source_kind, frozenset(changed or ()), Index(base) if base is not None else None, escha)


def has_marker(data: bytes) -> bool:
    """Return whether a comment near the top names this tool and the pull request."""
    comments = (line for line in data.splitlines()[:_MARKER_LINES] if line.lstrip().startswith(b"#"))
    return any(b"escha-oscar" in line and b"PR #32129" in line for line in comments)


def _package_files(index: Index, folder: str) -> list[str]:
    pending, seen = [f"{folder}/__init__.py"], []
    while pending:
        path = pending.pop()
        module = index.module(path)
        if path in seen or index.read(path) is None:
            continue
        seen.append(path)
        for node in ast.walk(module) if module is not None else ():
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
                pending.extend(f"{folder}/{name}.py" for name in names)
    return sorted(seen)
