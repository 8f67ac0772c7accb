"""One writer per environment: ``flock`` on our own lock file and on the one that uv honours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from escha_oscar.disk.fsops import Root
from escha_oscar.disk.layout import LOCK_FILE, STATE_DIR
from escha_oscar.errors import LockedError
from escha_oscar.progress import Progress

_POLL_S = 0.05


@contextlib.contextmanager
def exclusive(root: Root, progress: Progress, *, wait_s: float = 60.0) -> Iterator[None]:
    """Hold the environment's locks: first the installer's (uv, ``<venv>/.lock``), then our own.

    Waits up to ``wait_s`` seconds and raises LockedError naming the holder. Makes the state directory if need be.
    """
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as stack:
        outer = installer_lock(root.path)
        if outer is not None:
            descriptor = _open_outer(outer)
            if descriptor is not None:
                stack.callback(os.close, descriptor)
                _wait(descriptor, outer, deadline, progress)
        stack.callback(os.close, _take_own(root, deadline, progress))
        yield


def holder(root: Root) -> str | None:
    """Return who holds our lock right now (``pid 12 (command)``), or None; needs no permission on the lock file."""
    try:
        with root.parent(LOCK_FILE) as (folder, name):
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except PermissionError:  # another user's: who may open it could hold it as well
                return _listed(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except OSError:
        return None
    try:
        return None if _try(descriptor, fcntl.LOCK_SH) else _who(descriptor)
    finally:
        os.close(descriptor)


def installer_lock(site_packages: Path) -> Path | None:
    """Return the lock file that uv takes for this environment, or None where uv would take none in it."""
    for folder in (site_packages, *site_packages.parents[:4]):
        if (folder / ".lock").is_file() or (folder / "pyvenv.cfg").is_file():
            return folder / ".lock"
    return None


def _open_outer(path: Path) -> int | None:
    """Open the installer's lock file, made if absent; None where this user may neither make nor read it."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    for mode in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, mode | flags, 0o644)
            _give_to_owner(descriptor, path.parent)
            return descriptor
    return None


def _give_to_owner(descriptor: int, folder: Path) -> None:
    """Let root leave no lock file behind that the environment's owner cannot open."""
    owner = folder.stat()
    if os.geteuid() == 0 and os.fstat(descriptor).st_uid != owner.st_uid:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _take_own(root: Root, deadline: float, progress: Progress) -> int:
    """Lock our file; the name is checked after locking, because the last holder may have removed the file."""
    while True:
        with contextlib.suppress(FileExistsError):
            root.make_folder(STATE_DIR, 0o700 | root.readers())
        try:
            with root.parent(LOCK_FILE) as (folder, name):
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(name, flags, 0o600, dir_fd=folder)
                _give_to_owner(descriptor, root.path)
        except FileNotFoundError:
            continue  # the state directory went away between the two steps
        try:
            _wait(descriptor, root.full(LOCK_FILE), deadline, progress)
            if _is_current(root, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_current(root: Root, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(root.full(LOCK_FILE)))
    except FileNotFoundError:
        return False


def _wait(descriptor: int, path: Path, deadline: float, progress: Progress) -> None:
    said = False
    while not _try(descriptor, fcntl.LOCK_EX):
        who = _who(descriptor)
        if time.monotonic() >= deadline:
            raise LockedError(
                f"another process holds the environment's lock: {who}",
                path=str(path),
                hint="wait for it to end, then run the same command again",
            )
        if not said:
            progress.step(f"waiting for the lock held by {who}")
            said = True
        time.sleep(_POLL_S)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _who(descriptor: int) -> str:
    return _listed(os.fstat(descriptor)) or "another process"


def _listed(file: os.stat_result) -> str | None:
    """Return who holds a lock on a file by /proc/locks; a holder in another container has no pid here."""
    inode = f":{file.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            fields = line.split()
            if {"FLOCK", "WRITE"} <= set(fields) and "->" not in fields and any(f.endswith(inode) for f in fields):
                return _command(int(fields[4]))
    return None


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"pid {pid}"
    text = " ".join(word.decode("utf-8", "replace") for word in words if word)
    return f"pid {pid} ({text[:80]})" if text else f"pid {pid}"
