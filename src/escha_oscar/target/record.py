"""RECORD of an installed distribution: read its rows, set or drop some, keep every other byte.

A RECORD is CSV of path, hash and size. Rows that are not ours are never re-rendered: their raw bytes, quoting and
line ends travel through. Paths that are absolute or leave site-packages are listed as they are and never followed.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from escha_oscar.errors import TargetError
from escha_oscar.tree import checked

_REINSTALL = "reinstall the wheel: pip install --force-reinstall --no-deps WHEEL"


def is_record(path: str) -> bool:
    """Return whether ``path`` is a RECORD: changed with every integration, but no file of it."""
    return path.endswith(".dist-info/RECORD")


@dataclass(frozen=True)
class Entry:
    """One row: its raw bytes with the line end, and its three fields as text (hash and size may be empty)."""

    raw: bytes
    path: str
    digest: str
    size: str

    @property
    def line_end(self) -> bytes:
        """Return the bytes that end the row: CRLF, LF, CR or nothing."""
        return self.raw[len(self.raw.rstrip(b"\r\n")) :]

    @property
    def key(self) -> str | None:
        """Return the normal form of a path below site-packages, or None where it leads elsewhere."""
        return normal(self.path)

    @property
    def is_own(self) -> bool:
        """Return whether this is RECORD's row for itself."""
        return self.path.endswith(".dist-info/RECORD")


class _Lines(Iterator[str]):
    """Feeds csv line by line and remembers the bytes that the current row took."""

    def __init__(self, data: bytes) -> None:
        self._lines = iter(data.splitlines(keepends=True))
        self._taken: list[bytes] = []
        self.count = 0

    def __next__(self) -> str:
        line = next(self._lines)
        self.count += 1
        self._taken.append(line)
        text = line.decode("utf-8")
        if "\0" in text:
            raise csv.Error("NUL byte")
        return text

    def take(self) -> bytes:
        """Return the bytes read since the last call."""
        raw, self._taken = b"".join(self._taken), []
        return raw


def parse(record: bytes, *, name: str = "RECORD") -> tuple[Entry, ...]:
    """Return the rows of ``record`` in order, blank lines included.

    Raises TargetError with the line for text that is not UTF-8, bad quoting, NUL or a row without three fields.
    """
    lines = _Lines(record)
    entries: list[Entry] = []
    try:
        for fields in csv.reader(lines, strict=True):
            entries.append(_entry(lines.take(), fields))
    except (csv.Error, UnicodeDecodeError, ValueError) as error:
        raise TargetError(
            "malformed RECORD", path=name, line=lines.count, sought="CSV rows of path,hash,size in UTF-8",
            found=str(error), hint=_REINSTALL,
        ) from error  # fmt: skip
    return tuple(entries)


def with_rows(record: bytes, rows: Mapping[str, bytes | None]) -> bytes:
    """Return ``record`` with a hash and size row for each path of ``rows``.

    ``rows`` maps a path below site-packages to the file's content, or to None for a row without hash and size.
    A row that already says so keeps its bytes; new rows go before RECORD's own row, which is never changed.
    Raises TargetError for a malformed RECORD and for a path that leaves site-packages.
    """
    wanted = {_inside(path): _fields(content) for path, content in rows.items()}
    entries = parse(record)
    kept = [_updated(entry, wanted) for entry in entries]
    present = {entry.key for entry in entries}
    end = next((entry.line_end for entry in entries if entry.line_end), b"\n")
    new = [_render(path, *wanted[path], end) for path in sorted(wanted) if path not in present]
    at = _insertion(entries)
    return b"".join([*kept[:at], *new, *kept[at:]])


def without(record: bytes, paths: Collection[str]) -> bytes:
    """Return ``record`` less the rows of ``paths``; RECORD's own row always stays.

    Raises TargetError for a malformed RECORD and for a path that leaves site-packages.
    """
    gone = {_inside(path) for path in paths}
    return b"".join(entry.raw for entry in parse(record) if entry.is_own or entry.key not in gone)


def owned(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the normal paths of the rows that lie below site-packages."""
    return frozenset(key for entry in entries if (key := entry.key))


def digest(content: bytes) -> str:
    """Return the hash field of ``content``: ``sha256=`` and unpadded URL-safe base64."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode("ascii")


def normal(path: str) -> str | None:
    """Return ``path`` in its normal form when it lies below site-packages, else None."""
    try:
        checked(path)
    except TargetError:
        return None
    return posixpath.normpath(path)


def _inside(path: str) -> str:
    return posixpath.normpath(str(checked(path)))


def _entry(raw: bytes, fields: Sequence[str]) -> Entry:
    if not fields:
        return Entry(raw, "", "", "")
    if len(fields) != 3 or not fields[0]:
        raise ValueError(f"{len(fields)} fields" if fields[0] else "an empty path")
    path, digest_field, size = fields
    return Entry(raw, path.removeprefix("\ufeff"), digest_field, size)


def _fields(content: bytes | None) -> tuple[str, str]:
    return ("", "") if content is None else (digest(content), str(len(content)))


def _updated(entry: Entry, wanted: Mapping[str, tuple[str, str]]) -> bytes:
    if entry.key is None or entry.key not in wanted or entry.is_own:
        return entry.raw
    fields = wanted[entry.key]
    same = (entry.digest, entry.size) == fields
    return entry.raw if same else _render(entry.path, *fields, entry.line_end)


def _render(path: str, digest_field: str, size: str, end: bytes) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow((path, digest_field, size))
    return text.getvalue().encode("utf-8") + end


def _insertion(entries: Sequence[Entry]) -> int:
    """Return where new rows go: before RECORD's own row, or before a last row that has no line end, or last."""
    own = next((at for at, entry in enumerate(entries) if entry.is_own), None)
    if own is not None:
        return own
    unended = bool(entries) and not entries[-1].line_end
    return len(entries) - 1 if unended else len(entries)
