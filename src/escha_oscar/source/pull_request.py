"""The pull request at its pinned commit: fetched once into a cache of our own, read as git objects, no checkout."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from escha_oscar.errors import SourceError, TargetError, UsageError
from escha_oscar.mapping import PIN, ROWS
from escha_oscar.model import SourceId
from escha_oscar.progress import NoProgress, Progress
from escha_oscar.source import _store, cache, fetch
from escha_oscar.source._objects import is_object_id
from escha_oscar.source._remote import Remote, parse_remote
from escha_oscar.tree import checked

_CACHE_HINT = "set XDG_CACHE_HOME to a folder with room that you can write to"
_FETCH_HINT = "escha-oscar fetch"


@dataclass(frozen=True)
class PullRequest:
    """The tree below ``prefix`` of one verified commit.

    ``location`` is the bare store, ``blobs`` the mapped files that exist there, ``fetched`` whether this call used the
    network (or the local repository), ``filtered`` whether the store holds only the files that were asked for.
    """

    id: SourceId
    location: Path
    prefix: str
    blobs: tuple[_store.Blob, ...]
    fetched: bool
    filtered: bool
    _remote: Remote = field(repr=False)
    _offline: bool = field(repr=False)
    _contents: dict[str, bytes | None] = field(repr=False)
    _progress: Progress = field(repr=False)

    @classmethod
    def open(
        cls,
        cache_dir: Path,
        *,
        repository: str = PIN.repository,
        commit: str = PIN.commit,
        prefix: str = PIN.prefix,
        pull_request: int = PIN.pull_request,
        offline: bool = False,
        progress: Progress | None = None,
    ) -> PullRequest:
        """Return the source, from the cache where it is whole, else fetched.

        Raises UsageError for a commit that is not 40 hex digits, a bad prefix or a refused transport, and SourceError
        where git is missing, the commit cannot be had, or an object fails its hash.
        """
        sink = NoProgress() if progress is None else progress
        remote = parse_remote(repository)
        wanted = fetch.Wanted(_commit(commit), _prefix(prefix), mapped_paths(), pull_request)
        folder = cache.private(cache.private(cache_dir) / remote.key)
        place = folder / f"{commit}.git"
        cached = _cached(place, wanted)
        found = cached if isinstance(cached, _Files) else _filled(place, remote, wanted, offline, cached, sink)
        _require_files(found, remote, wanted)
        contents = {**dict.fromkeys(wanted.paths), **found.contents}
        return cls(
            _source_id(remote, commit, pull_request), place, wanted.prefix, found.blobs, found is not cached,
            (place / fetch.FILTERED).exists(), remote, offline, contents, sink,
        )  # fmt: skip

    def read(self, path: str) -> bytes | None:
        """Return the file's verified bytes, or None where the commit has no such file.

        A file that is not among the mapped ones is fetched when it is missing, unless the source was opened offline.
        Raises SourceError where it cannot be had, fails its hash, or is not a regular file.
        """
        if path in self._contents:
            return self._contents[path]
        try:
            checked(path)
        except TargetError as error:
            raise SourceError(error.message, path=error.path, sought=error.sought) from error
        self._contents[path] = self._from_store(path)
        return self._contents[path]

    def _from_store(self, path: str) -> bytes | None:
        contents, _, missing = self._lookup(path)
        if not missing:
            return contents.get(path)
        place = f"{self.prefix}/{path}"
        if self._offline:
            raise SourceError("the file is not in the cache", path=place, found="offline", hint=_FETCH_HINT)
        reason = fetch.bring(self.location, self._remote, missing, self._progress)
        contents, _, missing = self._lookup(path)
        if missing:
            raise SourceError("cannot fetch a file", path=place, found=reason or "still missing", hint=_FETCH_HINT)
        return contents.get(path)

    def _lookup(self, path: str) -> tuple[dict[str, bytes], tuple[_store.Blob, ...], tuple[str, ...]]:
        assert self.id.commit is not None
        return _store.read_files(self.location, self.id.commit, self.prefix, [path])


@dataclass(frozen=True)
class _Files:
    contents: dict[str, bytes]
    blobs: tuple[_store.Blob, ...]


def mapped_paths() -> tuple[str, ...]:
    """Return every path of the pull request that the mapping names, skipped ones too."""
    return tuple(sorted({path for row in ROWS for path in row.pr_paths}))


def _cached(place: Path, wanted: fetch.Wanted) -> _Files | SourceError:
    """Return what the store at ``place`` holds, or why it does not serve."""
    if not place.is_dir():
        return SourceError("the source cache is empty", path=str(place))
    try:
        contents, blobs, missing = _store.read_files(place, wanted.commit, wanted.prefix, wanted.paths)
    except SourceError as error:
        return error
    if missing:
        return SourceError("files are missing from the source cache", path=str(place), found=f"{len(missing)} missing")
    return _Files(contents, blobs)


def _filled(
    place: Path, remote: Remote, wanted: fetch.Wanted, offline: bool, cached: SourceError, progress: Progress
) -> _Files:
    """Fetch the store at ``place`` and return what it holds; offline, raise ``cached`` with the command that helps."""
    if offline:
        cached.hint = cached.hint or _FETCH_HINT
        raise cached
    try:
        with cache.filling(place.parent, progress):
            again = _cached(place, wanted)
            if isinstance(again, SourceError):
                fetch.fill(place, remote, wanted, progress)
                again = _cached(place, wanted)
    except OSError as error:
        why = f"cannot fill the source cache: {error.strerror or error}"
        raise SourceError(why, path=str(error.filename or place), hint=_CACHE_HINT) from error
    if isinstance(again, SourceError):
        raise again
    return again


def _require_files(found: _Files, remote: Remote, wanted: fetch.Wanted) -> None:
    if not found.blobs:
        raise SourceError(
            "the commit has none of the mapped files", path=remote.display, sought=f"sglang/ below {wanted.prefix!r}",
            found=wanted.commit, hint="name the folder that holds sglang/ with --pr-prefix",
        )  # fmt: skip


def _commit(text: str) -> str:
    if not is_object_id(text):
        hint = "git rev-parse COMMIT prints it; without --pr-commit the pinned one is taken"
        raise UsageError("not a full commit id", sought="40 lower-case hex digits", found=repr(text), hint=hint)
    return text


def _prefix(text: str) -> str:
    if text in ("", "."):
        return ""
    try:
        return str(checked(text))
    except TargetError as error:
        raise UsageError("not a folder of the repository", sought="a relative path", found=repr(text)) from error


def _source_id(remote: Remote, commit: str, pull_request: int) -> SourceId:
    pinned = (remote.location, commit) == (PIN.repository, PIN.commit)
    what = f"sglang PR #{pull_request}" if pinned else remote.display
    return SourceId("pr", f"{what} at {commit[:12]}", commit, remote.display)
