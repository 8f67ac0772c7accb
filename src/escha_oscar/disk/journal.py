"""The undo journal: what one transaction will change, on disk before the first change.

One line per record, each with its own checksum, and a closing record that counts them. It is written whole (temporary
file, fsync, rename), so it either says everything or is not there. The last step is the commit: it replaces or
removes ``state.json``. A journal whose last step is on disk belongs to a finished transaction, any other is undone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from escha_oscar.disk.fsops import ABSENT, Image, Kind
from escha_oscar.disk.lock import STATE_DIR
from escha_oscar.errors import RecoveryError, TargetError
from escha_oscar.model import sha256
from escha_oscar.tree import checked

JOURNAL_FILE = f"{STATE_DIR}/journal"
STATE_FILE = f"{STATE_DIR}/state.json"
SCHEMA_VERSION = 1
#: A placed or merged file; nothing that Python runs at start-up or loads as a binary.
_SUFFIXES = (".py", ".pyi", ".json", ".typed")
_RECORD = re.compile(r"[A-Za-z0-9_.+!-]+\.dist-info/RECORD")
_CACHE = re.compile(r"sglang/(?:[^/]+/)*__pycache__/[^/]+\.pyc")
_HEX = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Step:
    """One path: what stood there before and what will stand there after."""

    path: str
    before: Image
    after: Image


@dataclass(frozen=True)
class Journal:
    """One transaction: its steps in order, the folders it makes (outermost first) and those it drops when done."""

    transaction: str
    operation: str
    steps: tuple[Step, ...]
    made: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def commit(self) -> Step:
        """Return the step that decides: once its ``after`` stands, the transaction happened."""
        return self.steps[-1]

    def temporary(self, index: int, *, undo: bool = False) -> str:
        """Return the temporary name for step ``index``, in the folder of its target."""
        folder, _, _ = self.steps[index].path.rpartition("/")
        name = f".{self.transaction}-{index}{'u' if undo else ''}.escha-oscar.tmp"
        return f"{folder}/{name}" if folder else name


def encode(journal: Journal) -> bytes:
    """Return the journal as checksummed lines."""
    head = {"record": "begin", "schema_version": SCHEMA_VERSION, "transaction": journal.transaction}
    head |= {"operation": journal.operation, "made": journal.made, "dropped": journal.dropped}
    steps = [{"record": "step", **_plain(step)} for step in journal.steps]
    return b"".join(_line(record) for record in (head, *steps, {"record": "end", "steps": len(steps)}))


def decode(data: bytes) -> Journal:
    """Return the journal in ``data``.

    Raises RecoveryError where it is torn, altered, of a newer schema, or names a path that this tool never writes.
    """
    try:
        return _decode(data)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, TargetError) as error:
        raise RecoveryError(
            "the journal of an interrupted run is damaged",
            path=JOURNAL_FILE,
            found=str(error) or type(error).__name__,
            hint="pip install --force-reinstall --no-deps WHEEL, then escha-oscar integrate",
        ) from error


def allowed(path: str) -> str:
    """Return ``path`` if this tool may write it: a source below ``sglang/``, its bytecode, or a RECORD.

    Raises TargetError for anything else, ``..`` and absolute paths included.
    """
    plain = str(checked(path)) == path and path.isprintable()
    source = path.startswith("sglang/") and path.endswith(_SUFFIXES)
    if not plain or not (source or _CACHE.fullmatch(path) or _RECORD.fullmatch(path)):
        raise TargetError("not a path that this tool writes", path=repr(path), sought="a source file below sglang/")
    return path


def allowed_folder(path: str) -> str:
    """Return ``path`` if it is a folder at or below ``sglang/``."""
    if str(checked(path)) != path or not path.startswith("sglang/"):
        raise TargetError("not a folder that this tool makes", path=repr(path), sought="a folder below sglang/")
    return path


def image_record(image: Image) -> dict[str, Any]:
    """Return an image as plain JSON data."""
    if image.kind is Kind.ABSENT:
        return {"kind": image.kind.value}
    return {**asdict(image), "kind": image.kind.value}


def image_of(record: Mapping[str, Any]) -> Image:
    """Return the image in ``record``; raises ValueError or TypeError for wrong types."""
    kind = Kind(record["kind"])
    if kind is Kind.ABSENT:
        return ABSENT
    values = {field.name: record[field.name] for field in fields(Image)}
    image = Image(**{**values, "kind": kind})
    numbers = (image.size, image.mode, image.uid, image.gid, image.mtime_ns, image.links)
    if any(type(number) is not int for number in numbers) or not 0 <= image.mode <= 0o7777:
        raise ValueError("an image needs whole numbers")
    if (kind is Kind.LINK) != isinstance(image.link, str):
        raise ValueError("a link needs its text")
    if image.sha256 is not None or kind is Kind.FILE:
        digest_of(image.sha256)
    return image


def digest_of(value: object) -> str:
    """Return ``value`` if it is a hex SHA-256; raises ValueError otherwise."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"not a SHA-256: {str(value)[:80]!r}")
    return value


def _plain(step: Step) -> dict[str, Any]:
    return {"path": step.path, "before": image_record(step.before), "after": image_record(step.after)}


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")
    return sha256(text)[:16].encode("ascii") + b" " + text + b"\n"


def _decode(data: bytes) -> Journal:
    records = [_record(line) for line in data.split(b"\n")[:-1]]
    head, steps, end = records[0], records[1:-1], records[-1]
    if head["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema {head['schema_version']} is not {SCHEMA_VERSION}: use the version that wrote it")
    if not steps or end.get("record") != "end" or end["steps"] != len(steps) or not data.endswith(b"\n"):
        raise ValueError("the closing record is missing")
    if not _ID.fullmatch(head["transaction"]):
        raise ValueError("bad transaction id")
    journal = Journal(
        head["transaction"],
        str(head["operation"]),
        tuple(Step(record["path"], image_of(record["before"]), image_of(record["after"])) for record in steps),
        tuple(allowed_folder(path) for path in head["made"]),
        tuple(allowed_folder(path) for path in head["dropped"]),
    )
    for step in journal.steps[:-1]:
        allowed(step.path)
    if journal.commit.path != STATE_FILE:
        raise ValueError("the last step is not the commit")
    return journal


def _record(line: bytes) -> dict[str, Any]:
    digest, _, text = line.partition(b" ")
    if digest != sha256(text)[:16].encode("ascii"):
        raise ValueError("a record fails its checksum")
    record: dict[str, Any] = json.loads(text)
    return record
