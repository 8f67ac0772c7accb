"""Git objects as bytes: ids recomputed here, commits and trees parsed here. Pure; git's own word is never taken."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from escha_oscar.errors import SourceError

_HEX40 = re.compile(r"[0-9a-f]{40}")
_TREE_MODE, _FILE_MODES = "40000", ("100644", "100755")
_KINDS = {"40000": "directory", "120000": "symbolic link", "160000": "gitlink (submodule)"}


@dataclass(frozen=True)
class TreeEntry:
    """One name of a tree: its octal mode and the id of what it names."""

    mode: str
    id: str

    @property
    def is_tree(self) -> bool:
        """Return whether the entry is a directory."""
        return self.mode == _TREE_MODE

    @property
    def is_file(self) -> bool:
        """Return whether the entry is a regular file, executable or not; links and gitlinks are not."""
        return self.mode in _FILE_MODES

    @property
    def kind(self) -> str:
        """Return the entry's kind in words."""
        return "regular file" if self.is_file else _KINDS.get(self.mode, f"mode {self.mode}")


def is_object_id(text: str) -> bool:
    """Return whether ``text`` is a full, lower-case SHA-1 id."""
    return _HEX40.fullmatch(text) is not None


def object_id(kind: str, data: bytes) -> str:
    """Return the id of an object of ``kind`` (blob, tree, commit) with content ``data``."""
    header = f"{kind} {len(data)}\0".encode("ascii")
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()


def checked_object(kind: str, expected: str, data: bytes) -> bytes:
    """Return ``data`` when its id is ``expected``; raise SourceError otherwise."""
    found = object_id(kind, data)
    if found != expected:
        raise SourceError(
            f"the content of a git {kind} differs from its id", sought=expected, found=found,
            hint="escha-oscar fetch",
        )  # fmt: skip
    return data


def tree_of_commit(data: bytes) -> str:
    """Return the id of the root tree that a commit names."""
    first = data.split(b"\n", 1)[0].decode("ascii", "replace")
    word, _, tree = first.partition(" ")
    if word != "tree" or not is_object_id(tree):
        raise SourceError("malformed git commit", sought="tree <id>", found=repr(first[:60]))
    return tree


def parse_tree(data: bytes) -> dict[str, TreeEntry]:
    """Return the entries of a tree by name; raise SourceError for anything that is not a sound tree."""
    entries: dict[str, TreeEntry] = {}
    at = 0
    while at < len(data):
        space, nul = data.find(b" ", at), data.find(b"\0", at)
        raw_id = data[nul + 1 : nul + 21]
        if not at < space < nul or len(raw_id) != 20:
            raise SourceError("malformed git tree", found=f"byte {at} of {len(data)}")
        name = data[space + 1 : nul].decode("utf-8", "surrogateescape")
        if not name or "/" in name or name in (".", "..") or name in entries:
            raise SourceError("malformed git tree", found=f"entry {name!r}")
        entries[name] = TreeEntry(data[at:space].decode("ascii", "replace"), raw_id.hex())
        at = nul + 21
    return entries
