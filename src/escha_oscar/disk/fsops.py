"""Every change to a disk: temporary file beside the target, fsync, rename. Nothing here opens a target for writing.

``Root`` reaches files by walking from one open directory, so a directory that is swapped for a symbolic link between
check and use makes the step fail instead of writing elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from escha_oscar.disk.image import ABSENT, Image, Kind
from escha_oscar.errors import ApplyError, TargetError, UnreadableError
from escha_oscar.model import sha256
from escha_oscar.tree import checked

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FS_IOC_GETFLAGS = 0x80086601
_IMMUTABLE_OR_APPEND = 0x30
#: Files larger than this are not what this tool edits; reading stops there.
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Root:
    """A resolved directory; every path given to its methods is relative to it and may not leave it.

    All methods raise OSError with the full path in ``filename`` where the system refuses, and TargetError where a
    path leaves the tree, runs through a symbolic link or is neither file nor link.
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.resolve())

    def full(self, path: str) -> Path:
        """Return the absolute form of ``path``."""
        return self.path / path

    @contextlib.contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """Open a directory below the root, component by component, and yield its descriptor."""
        descriptor = os.open(self.path, _DIRECTORY)
        try:
            for part in PurePosixPath(path).parts:
                descriptor = self._enter(descriptor, part, path)
            yield descriptor
        finally:
            os.close(descriptor)

    def _enter(self, descriptor: int, part: str, path: str) -> int:
        try:
            inner = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise TargetError(
                "a directory on the way is a symbolic link or not a directory",
                path=str(self.full(path)),
                sought=f"a directory named {part!r}",
                hint="escha-oscar integrate --overlay DIR",
            ) from error
        os.close(descriptor)
        return inner

    @contextlib.contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the folder of ``path`` and the last component; name the path in every OSError."""
        pure = checked(path)
        try:
            with self.folder(str(pure.parent)) as descriptor:
                yield descriptor, pure.name
        except OSError as error:
            error.filename, error.filename2 = str(self.full(path)), None
            raise

    def image(self, path: str) -> Image:
        """Return what stands at ``path``; a missing parent counts as absent."""
        try:
            with self.parent(path) as (folder, name):
                return _image(folder, name, str(self.full(path)))
        except FileNotFoundError:
            return ABSENT

    def read(self, path: str) -> bytes:
        """Return the bytes at ``path``, through a final symbolic link if it is one."""
        with self.parent(path) as (folder, name):
            return _read(folder, name, os.O_RDONLY, str(self.full(path)))[0]

    def read_private(self, path: str) -> bytes | None:
        """Return the bytes of a regular file of our own, or None; a symbolic link there is refused.

        Raises UnreadableError where this user may not read it.
        """
        try:
            with self.parent(path) as (folder, name):
                return _read(folder, name, os.O_NOFOLLOW, str(self.full(path)))[0]
        except FileNotFoundError:
            return None
        except PermissionError as error:
            owner = f"run it as the owner of the environment, user id {self.path.stat().st_uid}"
            raise UnreadableError("may not be read by this user", path=error.filename, hint=owner) from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise TargetError("is a symbolic link, expected a regular file", path=error.filename) from error
            raise

    def create(self, path: str, data: bytes, like: Image) -> None:
        """Write a new file with the permission bits, owner and time of ``like``, and fsync it."""
        with self.parent(path) as (folder, name):
            descriptor = os.open(name, _CREATE, 0o600, dir_fd=folder)
            try:
                _write_all(descriptor, data)
                _dress(descriptor, like)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def create_link(self, path: str, text: str) -> None:
        """Make a symbolic link with the given text."""
        with self.parent(path) as (folder, name):
            os.symlink(text, name, dir_fd=folder)

    def hard_link(self, source: str, path: str, like: Image) -> None:
        """Make ``path`` a second name of ``source`` and dress it as ``like``; needs no free data block."""
        with self.parent(source) as (from_folder, from_name), self.parent(path) as (folder, name):
            os.link(from_name, name, src_dir_fd=from_folder, dst_dir_fd=folder, follow_symlinks=False)
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                _dress(descriptor, like)
            finally:
                os.close(descriptor)

    def move(self, source: str, path: str) -> None:
        """Rename ``source`` over ``path``, atomically; both lie on one filesystem."""
        with self.parent(source) as (from_folder, from_name), self.parent(path) as (folder, name):
            os.replace(from_name, name, src_dir_fd=from_folder, dst_dir_fd=folder)

    def remove(self, path: str) -> None:
        """Unlink a file or link; an absent one is fine."""
        with contextlib.suppress(FileNotFoundError), self.parent(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def make_folder(self, path: str, mode: int | None = None) -> None:
        """Make one directory with the permission bits of its parent (or ``mode``) and the parent's owner."""
        with self.parent(path) as (folder, name):
            above = os.fstat(folder)
            os.mkdir(name, 0o700, dir_fd=folder)
            try:
                self._dress_folder(folder, name, above, mode)
            except OSError:
                os.rmdir(name, dir_fd=folder)
                raise

    def _dress_folder(self, folder: int, name: str, above: os.stat_result, mode: int | None) -> None:
        inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            wanted = stat.S_IMODE(above.st_mode) if mode is None else mode
            _dress(inner, Image(Kind.FILE, mode=wanted, uid=above.st_uid, gid=above.st_gid))
        finally:
            os.close(inner)

    def remove_folder(self, path: str) -> bool:
        """Remove an empty directory; return False where it is not empty, True where it is gone."""
        try:
            with self.parent(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory, none where it is absent."""
        try:
            with self.folder(path) as descriptor:
                return tuple(sorted(os.listdir(descriptor)))  # noqa: PTH208 - pathlib takes no descriptor
        except FileNotFoundError:
            return ()

    def sync(self, path: str) -> None:
        """Fsync a directory, so that the names in it are on disk; an absent one is fine."""
        with contextlib.suppress(FileNotFoundError), self.folder(path) as descriptor:
            os.fsync(descriptor)

    def new_file_like(self, path: str) -> Image:
        """Return mode and owner for a new file: those of the nearest existing folder, less the execute bits."""
        folder = PurePosixPath(path).parent
        while not self.full(str(folder)).is_dir():
            folder = folder.parent
        found = self.full(str(folder)).stat()
        return Image(Kind.FILE, mode=found.st_mode & 0o666, uid=found.st_uid, gid=found.st_gid)

    def readers(self) -> int:
        """Return the bits with which group and others may read and pass the root."""
        return self.path.stat().st_mode & 0o055

    def is_public(self, path: str) -> bool:
        """Return whether whoever passes the root may read the content at ``path``, behind a link too."""
        real = self.full(path).resolve()
        below = (folder for folder in real.parents if not self.path.is_relative_to(folder))
        return all(folder.stat().st_mode & 0o011 == 0o011 for folder in below) and real.stat().st_mode & 0o044 == 0o044

    def obstacle(self, path: str) -> str | None:
        """Return why ``path`` cannot be replaced (folder not writable, immutable), or None."""
        folder = self.full(str(PurePosixPath(path).parent))
        if not folder.is_dir():
            return None
        for place in (folder, self.full(path)):
            if _is_immutable(place):
                return f"{place} is immutable or append-only (chattr)"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"folder {folder} is not writable"
        return None

    def free_bytes(self) -> int:
        """Return the bytes that this user may still write on the filesystem of the root."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def require_room(self, needed: int, outcome: str, hint: str) -> None:
        """Raise ApplyError where ``needed`` bytes will not fit; ``outcome`` says what has not happened then."""
        free = self.free_bytes()
        if free < needed:
            raise ApplyError(
                f"not enough space; {outcome}",
                path=str(self.path),
                sought=f"{needed} bytes free",
                found=f"{free} bytes free",
                hint=hint,
            )


def atomic_write(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace or create one file: temporary file in the same folder, fsync, rename, fsync of the folder.

    Keeps the permission bits of an existing file unless ``mode`` is given; a symbolic link at ``path`` is replaced,
    not written through. Raises OSError; no temporary file remains.
    """
    root = Root(path.parent)
    before = root.image(path.name)
    like = before if before.kind is Kind.FILE else Image(Kind.FILE, mode=_default_mode(), uid=-1, gid=-1)
    like = replace(like, mtime_ns=0, mode=like.mode if mode is None else mode)
    temporary = f".{path.name}.{os.urandom(6).hex()}.tmp"
    try:
        root.create(temporary, data, like)
        root.move(temporary, path.name)
    except BaseException:
        root.remove(temporary)
        raise
    root.sync("")


def put_tree(built: Path, dest: Path) -> None:
    """Rename a finished folder to ``dest``; an older folder there is moved aside first and removed last.

    Everything is flushed to disk before the rename. Raises OSError with the older folder back in its place.
    """
    os.sync()
    aside = built.with_name(f"{built.name}.old")
    older = dest.exists()
    if older:
        dest.rename(aside)
    try:
        built.rename(dest)
    except OSError:
        if older:
            aside.rename(dest)
        raise
    Root(dest.parent).sync("")
    shutil.rmtree(aside, ignore_errors=True)


def _default_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _image(folder: int, name: str, full: str) -> Image:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        digest, size = _behind(folder, name, full)
        return _image_of(found, Kind.LINK, digest, size, os.readlink(name, dir_fd=folder))
    data, opened = _read(folder, name, os.O_NOFOLLOW, full)
    return _image_of(opened, Kind.FILE, sha256(data), len(data), None)


def _image_of(found: os.stat_result, kind: Kind, digest: str | None, size: int, link: str | None) -> Image:
    return Image(
        kind, digest, size, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns, link,
        found.st_nlink,
    )  # fmt: skip


def _behind(folder: int, name: str, full: str) -> tuple[str | None, int]:
    try:
        data, _ = _read(folder, name, 0, full)
    except FileNotFoundError:
        return None, 0
    return sha256(data), len(data)


def _read(folder: int, name: str, flags: int, full: str) -> tuple[bytes, os.stat_result]:
    descriptor = os.open(name, _READ | flags, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise TargetError("is not a regular file", path=full, sought="a regular file or a link to one")
        if found.st_size > MAX_BYTES:
            raise TargetError("is too large", path=full, sought=f"at most {MAX_BYTES} bytes", found=str(found.st_size))
        with os.fdopen(os.dup(descriptor), "rb") as stream:
            return stream.read(), found
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _dress(descriptor: int, like: Image) -> None:
    """Set owner, permission bits and time on an open file; the owner only where it differs and we may."""
    now = os.fstat(descriptor)
    wanted = (now.st_uid if like.uid < 0 else like.uid, now.st_gid if like.gid < 0 else like.gid)
    if (now.st_uid, now.st_gid) != wanted:
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, *wanted)
    os.fchmod(descriptor, like.mode)
    if like.mtime_ns:
        os.utime(descriptor, ns=(like.mtime_ns, like.mtime_ns))


def _is_immutable(path: Path) -> bool:
    try:
        descriptor = os.open(path, _READ | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        flags: Any = fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, b"\0" * 8)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return bool(int.from_bytes(flags[:4], "little") & _IMMUTABLE_OR_APPEND)
