"""Reading one commit's tree from a bare object store: no checkout, every object's id recomputed on the way."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from escha_oscar.errors import SourceError
from escha_oscar.source import _git
from escha_oscar.source._objects import TreeEntry, checked_object, parse_tree, tree_of_commit

MAX_OBJECT = 16 * 2**20
_READ_SECONDS = 60.0
_HINT = "escha-oscar fetch"


@dataclass(frozen=True)
class Blob:
    """One regular file of the commit: path below the prefix, object id, size in bytes."""

    path: str
    id: str
    size: int


class MissingObjectError(SourceError):
    """An object that the commit names is not in the store (a filtered fetch left it out, or it was lost)."""


class ObjectReader:
    """One ``git cat-file --batch`` process; use as a context manager. It can reach no network."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self._context = _git.start(repository, ["cat-file", "--batch"])

    def __enter__(self) -> ObjectReader:
        self._process: subprocess.Popen[bytes] = self._context.__enter__()
        self._timer = threading.Timer(_READ_SECONDS, self._process.kill)
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        self._context.__exit__(None, None, None)

    def read(self, kind: str, object_id: str) -> bytes:
        """Return the verified content of an object.

        Raises MissingObjectError where it is absent, SourceError where it is damaged, too large or of another kind.
        """
        header = self._ask(object_id)
        if header[1:] == ["missing"]:
            raise MissingObjectError(f"git {kind} is not in the cache", path=object_id, hint=_HINT)
        if len(header) != 3 or header[0] != object_id or header[1] != kind or not header[2].isdigit():
            found = self._damage() if not header else " ".join(header)[:200]
            raise SourceError(f"cannot read a git {kind}", path=object_id, sought=kind, found=found, hint=_HINT)
        size = int(header[2])
        if size > MAX_OBJECT:
            raise SourceError(f"git {kind} is too large", path=object_id, sought=f"<= {MAX_OBJECT}", found=str(size))
        data = self._stdout.read(size + 1)[:size]
        return checked_object(kind, object_id, data)

    def _ask(self, object_id: str) -> list[str]:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(f"{object_id}\n".encode("ascii"))
            stdin.flush()
        except OSError:
            return []
        return self._stdout.readline(4096).decode("utf-8", "replace").split()

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _damage(self) -> str:
        """Return what git said when it gave up on an object."""
        self._process.wait()
        assert self._process.stderr is not None
        words = self._process.stderr.read(4096).decode("utf-8", "replace").split("\n")
        return next((line for line in words if line.strip()), "git ended without an answer")[:300]


class CommitTree:
    """The files of one commit below ``prefix``, resolved tree by tree; trees are kept once read."""

    def __init__(self, reader: ObjectReader, commit: str, prefix: str) -> None:
        self._reader = reader
        self._prefix = PurePosixPath(prefix).parts
        self._trees: dict[str, dict[str, TreeEntry]] = {}
        self._root = tree_of_commit(reader.read("commit", commit))

    def find(self, path: str) -> str | None:
        """Return the blob id of ``path`` below the prefix, or None where there is no such file.

        Raises SourceError where the path leads over a symbolic link, a gitlink or anything but plain files.
        """
        tree = self._root
        *parents, last = (*self._prefix, *PurePosixPath(path).parts)
        for name in parents:
            entry = self._entries(tree).get(name)
            if entry is None:
                return None
            self._require(entry.is_tree, entry, path, "directory")
            tree = entry.id
        entry = self._entries(tree).get(last)
        if entry is None or entry.is_tree:
            return None
        self._require(entry.is_file, entry, path, "regular file")
        return entry.id

    def _entries(self, tree: str) -> dict[str, TreeEntry]:
        if tree not in self._trees:
            self._trees[tree] = parse_tree(self._reader.read("tree", tree))
        return self._trees[tree]

    def _require(self, holds: bool, entry: TreeEntry, path: str, sought: str) -> None:
        if not holds:
            full = "/".join((*self._prefix, path))
            raise SourceError("refusing an entry of the source tree", path=full, sought=sought, found=entry.kind)


def read_files(
    repository: Path, commit: str, prefix: str, paths: Iterable[str]
) -> tuple[dict[str, bytes], tuple[Blob, ...], tuple[str, ...]]:
    """Return the contents by path, their blobs, and the ids of blobs that the store lacks.

    Raises SourceError where the commit or a tree is absent or damaged.
    """
    contents: dict[str, bytes] = {}
    blobs: list[Blob] = []
    missing: list[str] = []
    with ObjectReader(repository) as reader:
        tree = CommitTree(reader, commit, prefix)
        for path in sorted(set(paths)):
            blob = tree.find(path)
            if blob is None:
                continue
            try:
                contents[path] = reader.read("blob", blob)
                blobs.append(Blob(path, blob, len(contents[path])))
            except MissingObjectError:
                missing.append(blob)
    return contents, tuple(blobs), tuple(missing)


def hold_all(repository: Path, objects: Sequence[str]) -> bool:
    """Return whether the store holds every blob of ``objects``, sound."""
    with ObjectReader(repository) as reader:
        try:
            for blob in objects:
                reader.read("blob", blob)
        except MissingObjectError:
            return False
    return True
