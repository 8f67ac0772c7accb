"""Filling a bare object store with one commit: filtered where the server can, by pull ref where it must."""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from escha_oscar.errors import SourceError
from escha_oscar.progress import Progress
from escha_oscar.source import _git, _store
from escha_oscar.source._remote import Remote

MAX_BYTES = 2 * 2**30
FETCH_SECONDS = 900.0
STALL_SECONDS = 90.0
#: Commits of the pull ref that are searched for the pinned one when a server does not serve it by id.
PULL_DEPTH = 200
#: A file in the store that says that blobs were left out.
FILTERED = "escha-oscar-filtered"
_OURS = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
_QUIET = ("--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules")
_BUNDLE_HINT = "the clone is another user's: let them make a bundle (git bundle create FILE --all) and name that file"
_UNREACHABLE = ("unable to access", "not found", "does not appear to be a git repository", "Could not read from remote")


@dataclass(frozen=True)
class Wanted:
    """What a fetch must bring: one commit, and the files of it that are needed later without a network."""

    commit: str
    prefix: str
    paths: tuple[str, ...]
    pull_request: int


@dataclass(frozen=True)
class _Attempt:
    ref: str
    depth: int
    filtered: bool

    @property
    def args(self) -> list[str]:
        """Return the arguments of ``git fetch`` that differ between attempts."""
        return [f"--depth={self.depth}", *(["--filter=blob:none"] if self.filtered else [])]


def fill(place: Path, remote: Remote, wanted: Wanted, progress: Progress) -> None:
    """Make a bare repository at ``place`` that holds the wanted commit and files; nothing is left there on failure.

    Raises SourceError with git's last words where no attempt brings the commit.
    """
    reasons: list[str] = []
    for attempt in _attempts(remote, wanted):
        draft = Path(tempfile.mkdtemp(prefix="draft-", dir=place.parent))
        try:
            reason = _try(draft / "git", remote, wanted, attempt, progress)
            if not reason:
                _swap(draft / "git", place, draft / "old")
                return
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        reasons.append(reason)
        if any(word in reason for word in _UNREACHABLE):
            break
    found = "; ".join(dict.fromkeys(reasons))
    foreign = "dubious ownership" in found
    raise SourceError(
        f"cannot fetch commit {wanted.commit}", path=remote.display, sought="the pinned commit and its files",
        found=found, hint=_BUNDLE_HINT if foreign else _git.BUNDLED_HINT,
    )  # fmt: skip


def bring(repository: Path, remote: Remote, blobs: Sequence[str], progress: Progress) -> str:
    """Fetch ``blobs`` by id into a store in one batch; return '' or the reason why it failed."""
    if remote.is_bundle:
        return "a bundle has no more than it brought"
    progress.step(f"fetching {len(blobs)} files")
    return _run(repository, ["fetch", *_QUIET, *remote.fetch_args, *blobs], remote, progress)


def _attempts(remote: Remote, wanted: Wanted) -> Iterator[_Attempt]:
    if remote.is_bundle:
        yield _Attempt("bundle", 0, filtered=False)
        return
    for filtered in (True, False):
        yield _Attempt(wanted.commit, 1, filtered)
        yield _Attempt(f"refs/pull/{wanted.pull_request}/head", PULL_DEPTH, filtered)


def _try(draft: Path, remote: Remote, wanted: Wanted, attempt: _Attempt, progress: Progress) -> str:
    """Run one attempt in a fresh repository; return '' when everything wanted is there, else the reason."""
    _create(draft)
    progress.step(f"fetching {wanted.commit[:12]} from {remote.display}")
    if remote.is_bundle:
        reason = _run(draft, ["bundle", "unbundle", remote.location], remote, progress)
    else:
        reason = _run(draft, ["fetch", *_QUIET, *attempt.args, *remote.fetch_args, attempt.ref], remote, progress)
    # git has registered a promisor remote for a filtered fetch; without it a later read can never reach out.
    (draft / "config").write_text(_OURS, encoding="ascii")
    return reason or _complete(draft, remote, wanted, progress)


def _complete(draft: Path, remote: Remote, wanted: Wanted, progress: Progress) -> str:
    try:
        _, _, missing = _store.read_files(draft, wanted.commit, wanted.prefix, wanted.paths)
    except _store.MissingObjectError as error:
        return f"what arrived lacks {error.path}"
    if not missing:
        return ""
    (draft / FILTERED).touch()
    return bring(draft, remote, missing, progress) or (
        "" if _store.hold_all(draft, missing) else "the server left out files of the commit"
    )


def _create(draft: Path) -> None:
    result = _git.run(draft, ["init", "--quiet", "--bare", "--template="], protocol="", limits=_git.Limits(60))
    if result.status:
        raise SourceError("cannot create the source cache", path=str(draft), found=result.reason)


def _run(repository: Path, args: Sequence[str], remote: Remote, progress: Progress) -> str:
    watch = _Watch(repository, progress, 0 if remote.is_local else int(STALL_SECONDS / 0.25))
    limits = _git.Limits(FETCH_SECONDS, watch.check)
    result = _git.run(repository, args, protocol=remote.protocol, limits=limits)
    return result.reason if result.status else watch.check()


class _Watch:
    """Reports how much has arrived, and stops a fetch that grows too large or does not move at all."""

    def __init__(self, repository: Path, progress: Progress, patience: int) -> None:
        self._repository, self._progress, self._patience = repository, progress, patience
        self._size, self._idle = 0, 0

    def check(self) -> str:
        """Return a reason to stop, or ''; called a few times a second."""
        size = size_of(self._repository)
        self._idle = 0 if size != self._size else self._idle + 1
        self._size = size
        self._progress.advance(size)
        if size > MAX_BYTES:
            return f"more than {MAX_BYTES} bytes arrived"
        stalled = self._patience and self._idle > self._patience
        return f"unable to access the server: nothing arrived for {STALL_SECONDS:.0f} s" if stalled else ""


def size_of(folder: Path) -> int:
    """Return the bytes of all files below ``folder``; files that vanish meanwhile count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            state = path.lstat()
        except OSError:
            continue
        total += state.st_size if stat.S_ISREG(state.st_mode) else 0
    return total


def _swap(new: Path, place: Path, aside: Path) -> None:
    """Put ``new`` at ``place``; what was there is moved into the draft folder and goes with it."""
    if place.exists():
        place.rename(aside)
    new.rename(place)
