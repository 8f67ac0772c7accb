"""Reading a package tree by relative path: from disk, from memory, or a plan laid over either."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from escha_oscar.errors import TargetError
from escha_oscar.model import Plan


class Tree(Protocol):
    """A read-only tree; paths are posix, relative to site-packages (``sglang/srt/environ.py``)."""

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None where there is no such file."""

    def exists(self, path: str) -> bool:
        """Return whether ``path`` is a file or a directory of the tree."""


@dataclass(frozen=True)
class DiskTree:
    """A tree on disk below ``root``."""

    root: Path

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None where there is no such file; refuse paths that leave the root."""
        target = self.root / checked(path)
        if not target.is_file():
            return None
        try:
            return target.read_bytes()
        except OSError as error:
            raise TargetError(f"cannot read: {error.strerror}", path=str(target)) from error

    def exists(self, path: str) -> bool:
        """Return whether ``path`` is a file or a directory below the root."""
        return (self.root / checked(path)).exists()


@dataclass(frozen=True)
class MemoryTree:
    """A tree held in memory; directories exist where a file lies below them."""

    files: Mapping[str, bytes]

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None."""
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        """Return whether ``path`` is a file or a prefix of one."""
        return path in self.files or any(name.startswith(f"{path}/") for name in self.files)


@dataclass(frozen=True)
class Layered:
    """Files in memory laid over another tree."""

    top: MemoryTree
    base: Tree

    def read(self, path: str) -> bytes | None:
        """Return the top file's bytes, else the base's."""
        data = self.top.read(path)
        return self.base.read(path) if data is None else data

    def exists(self, path: str) -> bool:
        """Return whether either tree has ``path``."""
        return self.top.exists(path) or self.base.exists(path)


def planned(plan: Plan, base: Tree) -> Layered:
    """Return the tree as it will stand once ``plan`` is applied to ``base``."""
    return Layered(MemoryTree({f.path: f.after for f in plan.files}), base)


def first_existing(tree: Tree, paths: Iterable[str]) -> str | None:
    """Return the first of ``paths`` that is a file of ``tree``."""
    return next((path for path in paths if tree.read(path) is not None), None)


def checked(path: str) -> PurePosixPath:
    """Return ``path`` as a relative path, refusing every form that could leave the tree.

    Raises TargetError for absolute paths, ``..``, backslashes, drives and NUL.
    """
    pure = PurePosixPath(path)
    bad = pure.is_absolute() or ".." in pure.parts or any(c in path for c in ("\\", "\0", ":")) or not pure.parts
    if bad:
        raise TargetError("path leaves the tree", path=repr(path), sought="a relative path below site-packages")
    return pure
