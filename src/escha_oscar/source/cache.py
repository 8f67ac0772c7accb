"""The user's source cache: one private directory, one folder per repository, one bare store per commit."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from escha_oscar.errors import SourceError
from escha_oscar.progress import Progress


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/escha-oscar`` (absolute values only), else ``~/.cache/escha-oscar``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "escha-oscar"


def private(directory: Path) -> Path:
    """Make ``directory`` with mode 0700, or tighten it to that; return it.

    Raises SourceError where it cannot be made, is no directory, or belongs to somebody else.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = directory.stat()
        if state.st_uid == os.geteuid() and stat.S_IMODE(state.st_mode) != 0o700:
            directory.chmod(0o700)
    except OSError as error:
        raise SourceError(
            f"cannot use the source cache: {error.strerror}", path=str(directory), hint="set XDG_CACHE_HOME to a folder"
            " that you can write to",
        ) from error  # fmt: skip
    if state.st_uid != os.geteuid():
        raise SourceError(
            "the source cache belongs to another user", path=str(directory), sought=f"owner {os.geteuid()}",
            found=f"owner {state.st_uid}", hint="set XDG_CACHE_HOME to a folder of your own",
        )  # fmt: skip
    return directory


@contextlib.contextmanager
def filling(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the folder's lock while a store is filled; drafts of runs that died are removed first."""
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.step("waiting for another fetch")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for draft in folder.glob("draft-*"):
            shutil.rmtree(draft, ignore_errors=True)
        yield
