"""The undo journal: what one transaction will change, on disk before the first change.

One line per record, each with its own checksum, and a closing record that counts them. It is written whole (temporary
file, fsync, rename), so it either says everything or is not there. The last step is the commit: it replaces or
removes ``state.json``. A journal whose last step is on disk belongs to a finished transaction, any other is undone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from escha_oscar.disk.image import Image, image_of, image_record
from escha_oscar.disk.layout import JOURNAL_FILE, STATE_FILE, allowed, allowed_folder
from escha_oscar.errors import RecoveryError, TargetError
from escha_oscar.model import sha256

SCHEMA_VERSION = 1
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
