"""How each file of an integration stands now, and what of the integration still holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from escha_oscar.disk.fsops import Root
from escha_oscar.disk.image import Image, Kind
from escha_oscar.installed.state import FileEntry, State


class FileCondition(str, Enum):
    """How one file stands, compared with what was written there and with its original."""

    MERGED = "merged"
    ORIGINAL = "original"
    EDITED = "edited"
    MISSING = "missing"


Conditions = Mapping[str, FileCondition]


def conditions(root: Root, known: State) -> dict[str, FileCondition]:
    """Return how every file of an integration stands on disk."""
    return {entry.path: condition_of(entry, root.image(entry.path)) for entry in known.files}


def condition_of(entry: FileEntry, now: Image) -> FileCondition:
    """Return how ``now`` compares with the integration's file."""
    if now.kind is Kind.FILE and now.sha256 == entry.after_sha256:
        return FileCondition.MERGED
    if now.kind is Kind.ABSENT:
        return FileCondition.MISSING
    return FileCondition.ORIGINAL if now.same_content(entry.original) else FileCondition.EDITED


def is_replaced(known: State, found: Conditions) -> bool:
    """Return whether the wheel was installed anew: no file that it owns still has merged content, RECORD included."""
    owned = [entry.path for entry in known.files if entry.original.kind is not Kind.ABSENT]
    return all(found[path] is not FileCondition.MERGED for path in owned)


def remaining(known: State, found: Conditions) -> frozenset[str]:
    """Return what is still ours once the wheel was installed anew: the added files that stand as they were written."""
    added = (entry.path for entry in known.files if entry.original.kind is Kind.ABSENT)
    return frozenset(path for path in added if found[path] is FileCondition.MERGED)


def valid_state(root: Root, known: State | None) -> State | None:
    """Return ``known`` as far as it still holds: only what remains where the wheel was installed anew."""
    if known is None:
        return None
    found = conditions(root, known)
    if not is_replaced(known, found):
        return known
    ours = remaining(known, found)
    return replace(known, files=tuple(entry for entry in known.files if entry.path in ours), caches=())
