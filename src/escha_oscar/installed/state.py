"""What an integration remembers: source, files, originals. Read as untrusted input, with its own hash."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from escha_oscar.disk.fsops import Root
from escha_oscar.disk.image import Image, Kind, digest_of, image_of, image_record
from escha_oscar.disk.layout import STATE_DIR, STATE_FILE, allowed, allowed_folder
from escha_oscar.errors import TargetError
from escha_oscar.model import Change, SourceId, sha256

SCHEMA_VERSION = 1
_REINSTALL = "pip install --force-reinstall --no-deps WHEEL, then escha-oscar integrate"


@dataclass(frozen=True)
class FileEntry:
    """One file of the integration: what stood there first (``original``) and the digest of what was written."""

    path: str
    change: Change
    original: Image
    after_sha256: str


@dataclass(frozen=True)
class CacheEntry:
    """One compiled file that was removed, so that revert can put it back."""

    path: str
    original: Image


@dataclass(frozen=True)
class State:
    """Everything that ``revert``, ``status`` and a second ``integrate`` need to know."""

    transaction: str
    tool_version: str
    source: SourceId
    kernels: str
    distribution: str
    version: str
    files: tuple[FileEntry, ...]
    caches: tuple[CacheEntry, ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def record(self) -> FileEntry:
        """Return the entry of the distribution's RECORD."""
        return next(entry for entry in self.files if entry.change is Change.RECORD)

    @property
    def originals(self) -> frozenset[str]:
        """Return the digests of every backup that the state needs."""
        images = [*(entry.original for entry in self.files), *(entry.original for entry in self.caches)]
        return frozenset(image.sha256 for image in images if image.sha256 is not None)


def encode(state: State) -> bytes:
    """Return the state as JSON with a hash over itself."""
    body: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "transaction": state.transaction,
        "tool_version": state.tool_version,
        "source": asdict(state.source),
        "kernels": state.kernels,
        "distribution": state.distribution,
        "version": state.version,
        "files": [_file_record(entry) for entry in state.files],
        "caches": [{"path": entry.path, "original": image_record(entry.original)} for entry in state.caches],
        "folders": list(state.folders),
    }
    return json.dumps({**body, "self_sha256": _self_hash(body)}, indent=1, sort_keys=True).encode("ascii") + b"\n"


def decode(data: bytes) -> State:
    """Return the state in ``data``.

    Raises TargetError where it is not JSON, fails its own hash, is of another schema or names a forbidden path.
    """
    try:
        return _decode(data)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise TargetError(
            "the state file is damaged; nothing was done with it",
            path=STATE_FILE,
            found=str(error) or type(error).__name__,
            hint=_REINSTALL,
        ) from error


def load(root: Root) -> State | None:
    """Return the state of an environment, or None where there is none; needs no write permission.

    Raises TargetError for a damaged state and for a state directory that others may write, UnreadableError where this
    user may not read it.
    """
    folder = root.full(STATE_DIR)
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(found.st_mode):
        raise TargetError("is not a directory of this tool", path=str(folder), hint=f"remove it: rm {folder}")
    if found.st_mode & 0o022 or found.st_uid not in (0, os.geteuid(), root.path.stat().st_uid):
        raise TargetError("others may write the state directory", path=str(folder), hint=f"chmod go-w {folder}")
    data = root.read_private(STATE_FILE)
    return None if data is None else decode(data)


def _decode(data: bytes) -> State:
    body = json.loads(data)
    schema = body.get("schema_version")
    if type(schema) is int and schema > SCHEMA_VERSION:
        raise TargetError(
            "the state was written by a newer escha-oscar",
            path=STATE_FILE,
            sought=f"schema {SCHEMA_VERSION}",
            found=f"schema {schema}",
            hint="pip install --upgrade escha-oscar",
        )
    if body.pop("self_sha256") != _self_hash(body):
        raise ValueError("its content does not match its own hash")
    if schema != SCHEMA_VERSION:
        raise ValueError(f"schema {schema!r}")
    state = State(
        transaction=_text(body["transaction"]),
        tool_version=_text(body["tool_version"]),
        source=SourceId(**body["source"]),
        kernels=_text(body["kernels"]),
        distribution=_text(body["distribution"]),
        version=_text(body["version"]),
        files=tuple(_file(record) for record in body["files"]),
        caches=tuple(_cache(record) for record in body["caches"]),
        folders=tuple(allowed_folder(path) for path in body["folders"]),
    )
    _ = state.record
    return state


def _self_hash(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode("ascii"))


def _file_record(entry: FileEntry) -> dict[str, Any]:
    original = image_record(entry.original)
    record = {"path": entry.path, "change": entry.change.value, "original": original}
    return {**record, "backup": entry.original.sha256, "after_sha256": entry.after_sha256}


def _file(record: Mapping[str, Any]) -> FileEntry:
    original = image_of(record["original"])
    if record["backup"] != original.sha256:
        raise ValueError("a backup's name is not its digest")
    after = digest_of(record["after_sha256"])
    change = Change(record["change"])
    if (change is Change.RECORD) != record["path"].endswith(".dist-info/RECORD"):
        raise ValueError("only RECORD is a record")
    return FileEntry(allowed(record["path"]), change, original, after)


def _cache(record: Mapping[str, Any]) -> CacheEntry:
    path = allowed(record["path"])
    image = image_of(record["original"])
    if not path.endswith(".pyc") or image.kind is not Kind.FILE:
        raise ValueError("a cache entry is a compiled file")
    return CacheEntry(path, image)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value
