"""One transaction over many files: journal, temporary files beside every target, renames, checks, commit or undo.

The journal is durable before the first change and names every path, so any later process can undo what was begun.
All new bytes are on disk before the first rename. The last rename, of ``state.json``, is the commit.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from escha_oscar.disk import bytecode, store
from escha_oscar.disk.fsops import Root
from escha_oscar.disk.image import Image, Kind
from escha_oscar.disk.journal import Journal, Step, decode, encode
from escha_oscar.disk.layout import JOURNAL_FILE, STATE_DIR, STATE_FILE
from escha_oscar.disk.signals import Deferred
from escha_oscar.errors import ApplyError, DriftError, EschaOscarError, RecoveryError, StoppedError
from escha_oscar.progress import Progress

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_RECOVER = "escha-oscar recover"
_AS_OWNER = "run it as the environment's owner, or leave it alone: escha-oscar integrate --overlay DIR"


@dataclass(frozen=True)
class Work:
    """A transaction ready to run: the journal, the new bytes by digest, and the check of the finished tree."""

    journal: Journal
    contents: Mapping[str, bytes]
    verify: Callable[[Path], None] | None = None


def execute(root: Root, work: Work, signals: Deferred, progress: Progress) -> None:
    """Carry out every step or none.

    Raises ApplyError after an undo, StoppedError after a signal and an undo, RecoveryError where the undo failed too.
    """
    journal = work.journal
    try:
        signals.check()
        store.write(root, JOURNAL_FILE, encode(journal), store.readable(root))
        root.sync(STATE_DIR)
        root.sync("")  # the state directory itself may be new
        _prepare(root, work, signals, progress)
        _swap_all(root, journal, signals, progress)
        _finished_tree(root, work, progress)
        signals.check()
        _swap(root, journal, len(journal.steps) - 1)
        root.sync(STATE_DIR)
    except BaseException as error:
        left = _undo_after(root, journal, error, progress)
        raise _translated(error, left) from error
    with contextlib.suppress(OSError):  # committed: what clean-up leaves behind, the next command removes
        finish(root, journal)


def read_journal(root: Root) -> Journal | None:
    """Return the unfinished journal, or None; raises RecoveryError for a damaged one."""
    data = root.read_private(JOURNAL_FILE)
    return None if data is None else decode(data)


def is_committed(root: Root, journal: Journal) -> bool:
    """Return whether the last step of ``journal`` stands on disk."""
    return root.image(STATE_FILE).same_content(journal.commit.after)


def changed_since(root: Root, journal: Journal) -> tuple[str, ...]:
    """Return the paths that hold neither what was before nor what the transaction writes (bytecode aside)."""
    return tuple(step.path for step in journal.steps if _is_foreign(step, root.image(step.path)))


def undo(root: Root, journal: Journal, overwrite: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Put back everything that the transaction changed; return the paths left alone because others changed them.

    Paths in ``overwrite`` are put back whatever stands there.
    May be killed at any point and run again. Raises RecoveryError or OSError where a file cannot be put back.
    """
    for index in range(len(journal.steps)):
        root.remove(journal.temporary(index))
        root.remove(journal.temporary(index, undo=True))
    foreign = set(changed_since(root, journal)) - overwrite
    for index in reversed(range(len(journal.steps))):
        if journal.steps[index].path not in foreign:
            _put_back(root, journal, index)
    _drop_bytecode(root, journal, after=False)
    if journal.commit.before.kind is Kind.ABSENT:  # else an older integration had emptied them before
        bytecode.remove_empty(root, (step.path for step in journal.steps))
    for folder in reversed(journal.made):
        root.remove_folder(f"{folder}/__pycache__")
        root.remove_folder(folder)
    _sync_folders(root, journal)
    strict = [step for step in journal.steps if step.path not in foreign and not bytecode.is_cache(step.path)]
    _check(root, strict, after=False)
    _close(root)
    return tuple(sorted(foreign))


def finish(root: Root, journal: Journal) -> None:
    """Remove what a committed transaction leaves: folders that it dropped or emptied, and the journal."""
    if journal.commit.after.kind is Kind.ABSENT:
        bytecode.remove_empty(root, (step.path for step in journal.steps))
    for folder in sorted(journal.dropped, key=lambda path: -path.count("/")):
        root.remove_folder(f"{folder}/__pycache__")
        root.remove_folder(folder)
        root.sync(str(PurePosixPath(folder).parent))
    _close(root)


def _close(root: Root) -> None:
    root.remove(JOURNAL_FILE)
    root.sync(STATE_DIR)


def _prepare(root: Root, work: Work, signals: Deferred, progress: Progress) -> None:
    journal = work.journal
    for folder in journal.made:
        root.make_folder(folder)
    progress.step("writing beside the targets")
    for index, step in enumerate(journal.steps):
        signals.check()
        if step.after.kind is Kind.FILE:
            root.create(journal.temporary(index), work.contents[step.after.sha256 or ""], step.after)
        elif step.after.kind is Kind.LINK:
            root.create_link(journal.temporary(index), step.after.link or "")
        progress.advance(index + 1, len(journal.steps))


def _swap_all(root: Root, journal: Journal, signals: Deferred, progress: Progress) -> None:
    progress.step("putting files in place")
    for index in range(len(journal.steps) - 1):
        signals.check()
        _swap(root, journal, index)
    _drop_bytecode(root, journal, after=True)
    _sync_folders(root, journal)


def _swap(root: Root, journal: Journal, index: int) -> None:
    step = journal.steps[index]
    if _is_foreign(step, root.image(step.path)):
        raise DriftError("changed by another process while files were being written", path=str(root.full(step.path)))
    if step.after.kind is Kind.ABSENT:
        root.remove(step.path)
    else:
        root.move(journal.temporary(index), step.path)


def _finished_tree(root: Root, work: Work, progress: Progress) -> None:
    steps = list(work.journal.steps[:-1])
    progress.step("reading every file back")
    _check(root, steps, after=True)
    if work.verify is not None:
        progress.step("verifying the tree")
        work.verify(root.path)
        _check(root, steps, after=True)  # an installer without a lock may have worked meanwhile


def _check(root: Root, steps: list[Step], *, after: bool) -> None:
    for step in steps:
        wanted = step.after if after else step.before
        if bytecode.is_cache(step.path) and wanted.kind is Kind.ABSENT:
            continue  # a running process may write it again, from the new source
        if not wanted.same_content(root.image(step.path)):
            raise DriftError("is not what was written", path=str(root.full(step.path)), sought=wanted.sha256)


def _is_foreign(step: Step, now: Image) -> bool:
    known = now.same_content(step.before) or now.same_content(step.after)
    return not known and not bytecode.is_cache(step.path)


def _put_back(root: Root, journal: Journal, index: int) -> None:
    step = journal.steps[index]
    if root.image(step.path).same_content(step.before):
        return
    if step.before.kind is Kind.ABSENT:
        root.remove(step.path)
        return
    if bytecode.is_cache(step.path) and not store.holds(root, step.before.sha256):
        root.remove(step.path)  # an installer took the backups: Python compiles again
        return
    temporary = journal.temporary(index, undo=True)
    if step.before.kind is Kind.LINK:
        root.create_link(temporary, step.before.link or "")
    else:
        _recreate(root, temporary, step.before)
    root.move(temporary, step.path)


def _recreate(root: Root, temporary: str, image: Image) -> None:
    """Write the backup beside its target; on a full disk give the backup itself a second name instead."""
    data = store.load(root, image.sha256 or "")
    try:
        root.create(temporary, data, image)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        root.remove(temporary)
        root.hard_link(store.where(root, image.sha256 or ""), temporary, image)


def _drop_bytecode(root: Root, journal: Journal, *, after: bool) -> None:
    """Remove compiled copies of the changed sources, but those that the steps put there."""
    images = {step.path: step.after if after else step.before for step in journal.steps}
    keep = frozenset(path for path, image in images.items() if image.kind is not Kind.ABSENT)
    bytecode.drop(root, [path for path in images if path.endswith(".py")], keep=keep)


def _sync_folders(root: Root, journal: Journal) -> None:
    folders = {str(PurePosixPath(step.path).parent) for step in journal.steps}
    for folder in sorted(folders | {str(PurePosixPath(path).parent) for path in journal.made}):
        root.sync(folder)


def _undo_after(root: Root, journal: Journal, error: BaseException, progress: Progress) -> tuple[str, ...]:
    progress.step("putting the tree back")
    try:
        return undo(root, journal)
    except (OSError, EschaOscarError) as second:
        raise RecoveryError(
            f"writing failed ({_reason(error)}) and so did putting the tree back ({_reason(second)})",
            path=getattr(second, "filename", None) or getattr(second, "path", None),
            hint=_RECOVER,
        ) from error


def _translated(error: BaseException, left: tuple[str, ...]) -> BaseException:
    if isinstance(error, StoppedError) or not isinstance(error, (OSError, EschaOscarError)):
        return error
    found = f"changed by another process and left as found: {', '.join(left)}" if left else None
    return rolled_back(error, found)


def rolled_back(error: OSError | EschaOscarError, found: str | None = None) -> ApplyError:
    """Return the error to raise once the tree is as it was."""
    if isinstance(error, OSError):
        hint = "free some space and run it again" if error.errno in _NO_SPACE else _AS_OWNER
        message = f"{_reason(error)}; the tree is as it was before"
        return ApplyError(message, path=error.filename, found=found, hint=hint)
    message = f"{error.message}; the tree is as it was before"
    applied = ApplyError(message, error.path, error.line, error.sought, found or error.found, error.hint)
    return replace(applied, hint=applied.hint or "escha-oscar status")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror} (errno {error.errno})" if error.strerror else str(error)
    return str(error) or type(error).__name__
