"""The state directory's files: originals and, while a transaction runs, what it may have to put back.

Whoever may read site-packages may read what is recorded of it: state, journal, and the originals that were readable
by everybody. All else is for the owner alone. Blobs are content-addressed. A blob is written to a temporary name,
fsynced, renamed, read back and hashed; it is hashed again before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from escha_oscar.disk.fsops import Root
from escha_oscar.disk.image import Image, Kind, digest_of
from escha_oscar.disk.layout import LOCK_FILE, ORIGINALS, SAVED, STATE_DIR, UNDO
from escha_oscar.errors import TargetError
from escha_oscar.model import sha256


def put(root: Root, folder: str, blobs: Mapping[bytes, bool]) -> None:
    """Store blobs in a folder of the state directory; those that are there and whole are left.

    Each comes with whether everybody may read it.
    """
    _ensure(root, folder)
    for data, public in blobs.items():
        path = f"{folder}/{sha256(data)}"
        if root.read_private(path) == data:
            continue
        write(root, path, data, readable(root) if public else private(root))
        if root.read_private(path) != data:
            raise OSError(5, "a backup read back differs from what was written", str(root.full(path)))
    root.sync(folder)


def load(root: Root, digest: str) -> bytes:
    """Return the blob with this digest from either folder.

    Raises TargetError where it is missing or was altered.
    """
    digest_of(digest)
    found = "nothing"
    for folder in (ORIGINALS, UNDO):
        data = root.read_private(f"{folder}/{digest}")
        if data is not None and sha256(data) == digest:
            return data
        found = found if data is None else f"bytes with another SHA-256 in {folder}"
    raise TargetError(
        "a backup is missing or was altered; nothing was overwritten with it",
        path=str(root.full(f"{ORIGINALS}/{digest}")),
        sought=f"bytes with SHA-256 {digest}",
        found=found,
        hint="pip install --force-reinstall --no-deps WHEEL",
    )


def holds(root: Root, digest: str | None) -> bool:
    """Return whether a blob with this digest is there, whole or not."""
    return digest is not None and root.full(where(root, digest)).is_file()


def where(root: Root, digest: str) -> str:
    """Return the path of the blob with this digest, relative to the root."""
    inside = f"{ORIGINALS}/{digest_of(digest)}"
    return inside if root.full(inside).is_file() else f"{UNDO}/{digest}"


def write(root: Root, path: str, data: bytes, like: Image) -> None:
    """Write one file of the state directory: temporary file, fsync, rename."""
    temporary = f"{path}.tmp"
    root.remove(temporary)
    root.create(temporary, data, like)
    root.move(temporary, path)


def private(root: Root) -> Image:
    """Return how to dress a file for the owner of site-packages alone, whom root must not lock out."""
    found = root.path.stat()
    return Image(Kind.FILE, mode=0o600, uid=found.st_uid, gid=found.st_gid)


def readable(root: Root) -> Image:
    """Return how to dress a file that whoever may read site-packages may read, and only its owner write."""
    return replace(private(root), mode=0o600 | root.readers() & 0o044)


def keep_aside(root: Root, path: str, data: bytes) -> str:
    """Store a user's edited bytes under ``saved/`` in a name made of path and digest; return that path."""
    _ensure(root, SAVED)
    copy = f"{SAVED}/{path.replace('/', '__')}.{sha256(data)[:12]}"
    write(root, copy, data, private(root))
    root.sync(SAVED)
    return copy


def tidy(root: Root, referenced: frozenset[str], *, integrated: bool) -> None:
    """Remove what no state needs; without an integration remove the whole directory, saved edits excepted."""
    _empty(root, UNDO, frozenset())
    _empty(root, ORIGINALS, referenced if integrated else frozenset())
    for name in root.names(STATE_DIR):
        if name.endswith(".tmp"):
            root.remove(f"{STATE_DIR}/{name}")
    if not integrated and not root.names(SAVED):
        root.remove(LOCK_FILE)
        root.remove_folder(STATE_DIR)


def _empty(root: Root, folder: str, keep: frozenset[str]) -> None:
    for name in root.names(folder):
        if name not in keep:
            root.remove(f"{folder}/{name}")
    root.remove_folder(folder)


def _ensure(root: Root, folder: str) -> None:
    if not root.full(folder).is_dir():
        root.make_folder(folder, 0o700 | root.readers() if folder == ORIGINALS else 0o700)
        root.sync(STATE_DIR)
