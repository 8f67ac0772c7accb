"""Resolve an interrupted run: undo it, or finish cleaning up where it had already committed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from escha_oscar.disk import store, transaction
from escha_oscar.disk.fsops import Root
from escha_oscar.disk.journal import Journal
from escha_oscar.disk.layout import JOURNAL_FILE, STATE_DIR
from escha_oscar.disk.lock import exclusive, holder
from escha_oscar.disk.signals import Deferred, deferred
from escha_oscar.errors import LockedError, RecoveryError, TargetError
from escha_oscar.installed import state
from escha_oscar.progress import NoProgress, Progress

_RECOVER = "escha-oscar recover"


@dataclass(frozen=True)
class Recovery:
    """What recovery did: ``outcome`` is ``undone`` or ``finished``; ``left`` are files that others changed since."""

    operation: str
    outcome: str
    left: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()


def require_settled(root: Root) -> None:
    """Refuse a tree that may be a mix: LockedError while another writes, RecoveryError after a cut; reads only."""
    journal = transaction.read_journal(root)
    if journal is not None and not transaction.is_committed(root, journal):
        who = holder(root)
        if who is not None:
            message = f"another process is changing this environment: {who}"
            raise LockedError(message, path=str(root.path), hint="wait for it to end, then run the same command again")
        raise RecoveryError(
            f"an interrupted {journal.operation} has to be resolved first",
            path=str(root.full(JOURNAL_FILE)),
            hint=_RECOVER,
        )


def settle(root: Root, progress: Progress, *, force: bool = False) -> Recovery | None:
    """Resolve an unfinished journal, under the lock; None where there is none.

    May be killed at any point and run again. Raises RecoveryError where files were edited since (unless ``force``,
    which saves them aside), where a backup is damaged, or where a file cannot be put back.
    """
    journal = transaction.read_journal(root)
    if journal is None:
        return None
    if transaction.is_committed(root, journal):
        transaction.finish(root, journal)
        return Recovery(journal.operation, "finished")
    progress.step(f"undoing an interrupted {journal.operation}")
    edited = _edited(root, journal, force=force)
    try:
        saved = save_aside(root, edited)
        left = transaction.undo(root, journal, frozenset(edited))
    except (OSError, TargetError) as error:
        raise RecoveryError(
            f"the interrupted {journal.operation} could not be undone: {error}",
            path=getattr(error, "filename", None) or getattr(error, "path", None),
            hint=_RECOVER,
        ) from error
    return Recovery(journal.operation, "undone", left, saved)


def recover(
    site_packages: Path, *, force: bool = False, progress: Progress | None = None, wait_s: float = 60.0
) -> Recovery | None:
    """Resolve an interrupted run of this environment, if there is one; afterwards it is all old or all new.

    Raises LockedError, ApplyError where the state directory cannot be written, RecoveryError as ``settle`` does.
    """
    progress = progress or NoProgress()
    root = Root(site_packages)
    if not root.full(STATE_DIR).exists():
        return None
    with writing(root, progress, wait_s):
        return settle(root, progress, force=force)


@contextlib.contextmanager
def writing(root: Root, progress: Progress, wait_s: float) -> Iterator[Deferred]:
    """Hold the lock, hold back signals, and leave no stray file behind; turns OSError into ApplyError."""
    try:
        with exclusive(root, progress, wait_s=wait_s), deferred() as signals:
            try:
                yield signals
            finally:
                tidy(root)
    except OSError as error:
        raise transaction.rolled_back(error) from error


def tidy(root: Root) -> None:
    """Remove stray files of the state directory, under the lock; does nothing while a journal stands."""
    with contextlib.suppress(OSError, TargetError):
        if root.read_private(JOURNAL_FILE) is None:
            known = state.load(root)
            store.tidy(root, known.originals if known else frozenset(), integrated=known is not None)


def save_aside(root: Root, paths: Iterable[str]) -> tuple[str, ...]:
    """Keep a copy of each edited file below the state directory; return the copies' paths."""
    copies = []
    for path in paths:
        if root.image(path).sha256 is not None:
            copies.append(store.keep_aside(root, path, root.read(path)))
    return tuple(copies)


def _edited(root: Root, journal: Journal, *, force: bool) -> tuple[str, ...]:
    """Return the files that others changed after the interruption and that may be put back all the same.

    None where the wheel was installed anew: its files are not ours to touch.
    """
    edited = transaction.changed_since(root, journal)
    if not edited or any(path.endswith(".dist-info/RECORD") for path in edited):
        return ()
    if not force:
        raise RecoveryError(
            f"changed after the interruption: {', '.join(edited)}",
            path=str(root.full(edited[0])),
            hint="escha-oscar recover --force (keeps a copy of each)",
        )
    return edited
