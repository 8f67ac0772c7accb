"""The tree before any integration, put together from the kept originals and what lies on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from escha_oscar.disk import store
from escha_oscar.disk.fsops import Root
from escha_oscar.disk.image import Image, Kind
from escha_oscar.installed import recovery, state
from escha_oscar.installed.standing import valid_state
from escha_oscar.tree import DiskTree


@dataclass(frozen=True)
class PristineTree:
    """The tree as the wheel left it; ``originals`` maps the paths of an integration, the rest is read from disk."""

    root: Root
    originals: dict[str, Image]

    def read(self, path: str) -> bytes | None:
        """Return the original bytes of ``path``, or None where there was no such file."""
        image = self.originals.get(path)
        if image is None:
            return DiskTree(self.root.path).read(path)
        return None if image.sha256 is None else store.load(self.root, image.sha256)

    def exists(self, path: str) -> bool:
        """Return whether ``path`` was a file or a directory."""
        image = self.originals.get(path)
        return DiskTree(self.root.path).exists(path) if image is None else image.kind is not Kind.ABSENT


def pristine_tree(site_packages: Path) -> PristineTree:
    """Return the environment as the wheel left it, to plan from; reads only.

    Raises RecoveryError where an interrupted run has to be resolved first, TargetError for a damaged state.
    """
    root = Root(site_packages)
    recovery.require_settled(root)
    known = valid_state(root, state.load(root))
    return PristineTree(root, {entry.path: entry.original for entry in known.files} if known else {})
