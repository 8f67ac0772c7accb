"""Which mapped files of an installed wheel are not as its RECORD states them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from escha_oscar.errors import TargetError
from escha_oscar.mapping import copies, merges
from escha_oscar.target import record
from escha_oscar.target.owner import find_owner
from escha_oscar.tree import DiskTree


@dataclass(frozen=True)
class Comparison:
    """A tree against its owner's RECORD: every path that is listed, and the mapped files that differ."""

    listed: frozenset[str]
    differing: tuple[str, ...]


def compare(site_packages: Path) -> Comparison:
    """Compare the mapped files that exist with RECORD.

    Raises TargetError where no one RECORD can say: no owner, several, an editable install, a malformed RECORD.
    """
    path = find_owner(site_packages).dist_info / "RECORD"
    try:
        entries = record.parse(path.read_bytes(), name=str(path))
    except OSError as error:
        raise TargetError(f"cannot read: {error.strerror}", path=str(path)) from error
    tree = DiskTree(site_packages)
    paths = [path for row in (*copies(), *merges()) for path in row.wheel_paths]
    found = {path: data for path in paths if (data := tree.read(path)) is not None}
    return Comparison(record.owned(entries), tuple(differing(entries, found)))


def differing(entries: Sequence[record.Entry], files: Mapping[str, bytes]) -> list[str]:
    """Return the paths of ``files`` that RECORD does not list, or lists with another SHA-256."""
    stated = {entry.key: entry.digest for entry in entries}

    def as_stated(path: str, data: bytes) -> bool:
        digest = stated.get(path)
        return digest is not None and (not digest.startswith("sha256=") or digest == record.digest(data))

    return [path for path, data in files.items() if not as_stated(path, data)]
