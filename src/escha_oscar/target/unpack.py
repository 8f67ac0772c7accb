"""Unpack a wheel file into a folder as an installer would, with its RECORD, and nothing outside that folder."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from escha_oscar.errors import TargetError
from escha_oscar.target import record
from escha_oscar.tree import checked

MAX_BYTES = 16 * 2**30
MAX_FILES = 200_000
_CHUNK = 2**20
_HINT = "name another file with --wheel, or leave it out to download one"
_ROOTS = ("purelib", "platlib")
#: Files that no RECORD can hold the hash of.
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")


def unpack_wheel(wheel: Path, dest: Path) -> Path:
    """Unpack ``wheel`` below ``dest`` (made when absent) and return its ``*.dist-info`` directory.

    Every member is checked against the wheel's RECORD. ``*.data/purelib`` and ``platlib`` land at the root; scripts,
    headers and data files have no place in a bare folder and lose their RECORD rows.
    Raises TargetError for a file that is no wheel, members that leave ``dest``, links, duplicates and hash mismatches.
    """
    with _explained(wheel), zipfile.ZipFile(wheel) as archive:
        return _Unpacking(archive, str(wheel), dest).run()


def require_wheel(wheel: Path) -> None:
    """Raise TargetError, as ``unpack_wheel`` does, where the list of members is no wheel's; writes nothing."""
    with _explained(wheel), zipfile.ZipFile(wheel) as archive:
        _Unpacking(archive, str(wheel), Path()).check()


@contextlib.contextmanager
def _explained(wheel: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise TargetError("not a readable wheel", path=str(wheel), found=str(error), hint=_HINT) from error
    except OSError as error:
        place = error.filename or wheel
        raise TargetError(f"cannot unpack: {error.strerror or error}", path=str(place)) from error


class _Unpacking:
    """One run over one archive."""

    def __init__(self, archive: zipfile.ZipFile, wheel: str, dest: Path) -> None:
        self.archive, self.wheel, self.dest = archive, wheel, dest
        self.members = [info for info in archive.infolist() if not info.is_dir()]

    def run(self) -> Path:
        """Check everything that can be checked first, then write."""
        info = self.check()
        raw = self.archive.read(f"{info}/RECORD")
        entries = record.parse(raw, name=f"{self.wheel}!{info}/RECORD")
        digests = {entry.path: entry.digest for entry in entries}
        for member in self.members:
            if member.filename not in digests and member.filename not in {f"{info}/{name}" for name in _UNLISTED}:
                self._refuse("the wheel holds a file that its RECORD does not list", member)
        for member in self.members:
            self._write(member, digests)
        self._rewrite_record(info, entries)
        return self.dest / info

    def check(self) -> str:
        """Judge the list of members; return the name of the ``*.dist-info`` directory."""
        self._check()
        return self._dist_info()

    def _dist_info(self) -> str:
        names = {m.filename.removesuffix("/RECORD") for m in self.members if m.filename.endswith(".dist-info/RECORD")}
        names = {name for name in names if "/" not in name}
        if len(names) != 1:
            found = ", ".join(sorted(names)) or "none"
            raise TargetError("not a wheel", path=self.wheel, sought="one *.dist-info/RECORD", found=found, hint=_HINT)
        return names.pop()

    def _check(self) -> None:
        seen: set[str] = set()
        for member in self.members:
            checked(member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                self._refuse("the wheel holds a link or a special file", member)
            if member.filename.casefold() in seen:
                self._refuse("the wheel holds a name twice", member)
            seen.add(member.filename.casefold())
        total = sum(member.file_size for member in self.members)
        if total > MAX_BYTES or len(self.members) > MAX_FILES:
            found = f"{total} bytes in {len(self.members)} files"
            raise TargetError("the wheel is too large", path=self.wheel, found=found)

    def _refuse(self, why: str, member: zipfile.ZipInfo) -> None:
        raise TargetError(why, path=self.wheel, found=repr(member.filename))

    def _write(self, member: zipfile.ZipInfo, digests: dict[str, str]) -> None:
        place = placed(member.filename)
        if place is None:
            return
        target = self.dest / place
        target.parent.mkdir(parents=True, exist_ok=True)
        actual = hashlib.sha256()
        with self.archive.open(member) as source, target.open("xb") as sink:
            while chunk := source.read(_CHUNK):
                actual.update(chunk)
                sink.write(chunk)
            os.fchmod(sink.fileno(), 0o755 if member.external_attr >> 16 & 0o111 else 0o644)
        self._compare(member, digests.get(member.filename, ""), actual.digest())

    def _compare(self, member: zipfile.ZipInfo, expected: str, actual: bytes) -> None:
        found = "sha256=" + base64.urlsafe_b64encode(actual).rstrip(b"=").decode("ascii")
        if expected.startswith("sha256=") and expected != found:
            path = f"{self.wheel}!{member.filename}"
            raise TargetError("the wheel's content differs from its RECORD", path=path, sought=expected, found=found)

    def _rewrite_record(self, info: str, entries: tuple[record.Entry, ...]) -> None:
        moved = {entry.path for entry in entries if placed(entry.path) != entry.path and entry.path}
        if not moved:
            return
        path = self.dest / info / "RECORD"
        slim = record.without(path.read_bytes(), moved)
        homes = sorted({home for old in moved if (home := placed(old))})
        path.write_bytes(record.with_rows(slim, {home: (self.dest / home).read_bytes() for home in homes}))


def placed(name: str) -> str | None:
    """Return where a member of a wheel lies below site-packages, or None where it belongs elsewhere."""
    head, _, rest = name.partition("/")
    if not head.endswith(".data"):
        return name
    scheme, _, path = rest.partition("/")
    return path if scheme in _ROOTS and path else None
