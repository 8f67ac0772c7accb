"""What is installed, read from disk alone: no lock, no write, no import of the package."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from escha_oscar.disk import lock, transaction
from escha_oscar.disk.fsops import Root
from escha_oscar.disk.layout import STATE_FILE
from escha_oscar.errors import RecoveryError, TargetError
from escha_oscar.installed import memory, overlay_marker, state
from escha_oscar.installed.standing import Conditions, FileCondition, conditions, is_replaced
from escha_oscar.installed.state import State
from escha_oscar.model import SourceId
from escha_oscar.target.drift import compare
from escha_oscar.target.search import PACKAGE, no_package


class Condition(str, Enum):
    """The condition of an environment; FOREIGN has no record of ours and is not known to be the wheel's either."""

    PRISTINE = "pristine"
    FOREIGN = "foreign"
    INTEGRATED = "integrated"
    MODIFIED = "modified"
    REINSTALLED = "reinstalled"
    INTERRUPTED = "interrupted"
    RUNNING = "running"
    OVERLAY = "overlay"


@dataclass(frozen=True)
class FileStatus:
    """One file of the integration, or of the mapping where there is none, and how it stands."""

    path: str
    condition: FileCondition


@dataclass(frozen=True)
class Status:
    """The condition, where it came from, and every file that is not as the integration left it."""

    condition: Condition
    site_packages: Path
    source: SourceId | None = None
    kernels: str | None = None
    tool_version: str | None = None
    distribution: str | None = None
    version: str | None = None
    files: tuple[FileStatus, ...] = ()
    detail: str = ""

    @property
    def deviating(self) -> tuple[FileStatus, ...]:
        """Return the files that are not as the integration left them."""
        return tuple(file for file in self.files if file.condition is not FileCondition.MERGED)


def read_status(site_packages: Path) -> Status:
    """Return what is installed in ``site_packages``.

    Raises TargetError where the state is damaged or there is neither package nor state, UnreadableError where this user
    may not read it.
    """
    root = Root(site_packages)
    if overlay_marker.is_overlay(root.path):
        return _overlay(root)
    running = lock.holder(root)
    unfinished = _unfinished(root)
    known = state.load(root)
    if unfinished and not unfinished.committed:
        condition = Condition.RUNNING if running else Condition.INTERRUPTED
        return _status(condition, root, known, (), f"{unfinished.operation}, {running or 'cut off'}")
    detail = f"the last clean-up of a finished {unfinished.operation} is left to the next command" if unfinished else ""
    if known is None:
        return _unintegrated(root, detail)
    found = conditions(root, known)
    files = tuple(FileStatus(path, condition) for path, condition in found.items())
    return _status(_classify(known, found), root, known, files, detail)


def _classify(known: State, found: Conditions) -> Condition:
    if all(condition is FileCondition.MERGED for condition in found.values()):
        return Condition.INTEGRATED
    return Condition.REINSTALLED if is_replaced(known, found) else Condition.MODIFIED


@dataclass(frozen=True)
class _Unfinished:
    """A journal on disk: which operation began, and whether it was committed."""

    operation: str
    committed: bool


def _unfinished(root: Root) -> _Unfinished | None:
    try:
        begun = transaction.read_journal(root)
    except RecoveryError:
        return _Unfinished("an operation with a damaged journal", committed=False)
    return None if begun is None else _Unfinished(begun.operation, transaction.is_committed(root, begun))


def _unintegrated(root: Root, detail: str) -> Status:
    """Tell apart, by RECORD, a wheel as it was installed from one that was merged or edited without a record of ours.

    Of the former the note outside tells one whose wheel was installed anew, state and all.
    """
    if not root.full(PACKAGE).exists():
        raise no_package(root.path)
    try:
        wheel = compare(root.path)
    except TargetError as error:
        return Status(Condition.FOREIGN, root.path, detail=f"not comparable with the wheel: {error.message}")
    if STATE_FILE in wheel.listed:
        return Status(Condition.FOREIGN, root.path, detail="RECORD lists an integration, but its state is gone")
    if wheel.differing:
        files = tuple(FileStatus(path, FileCondition.EDITED) for path in wheel.differing)
        detail = f"mapped files that differ from the wheel's RECORD: {len(files)}"
        return Status(Condition.FOREIGN, root.path, files=files, detail=detail)
    note = memory.recall(root) if not detail else None
    if note is None:
        return Status(Condition.PRISTINE, root.path, detail=detail)
    detail = "the wheel was installed anew and took the integration with it"
    return Status(
        Condition.REINSTALLED, root.path, note.source, note.kernels, note.tool_version, note.distribution, note.version,
        (), detail,
    )  # fmt: skip


def _status(
    condition: Condition, root: Root, known: State | None, files: tuple[FileStatus, ...], detail: str
) -> Status:
    if known is None:
        return Status(condition, root.path, detail=detail)
    return Status(
        condition, root.path, known.source, known.kernels, known.tool_version, known.distribution, known.version,
        files, detail,
    )  # fmt: skip


def _overlay(root: Root) -> Status:
    """Return how a shadow tree stands: each merged file, and of the copied ones those that were edited."""
    made = overlay_marker.read_marker(root.path)
    off = overlay_marker.differing(root.path, {**made.copied, **made.merged})
    kinds = {path: FileCondition.EDITED if there else FileCondition.MISSING for path, there in off.items()}
    paths = sorted({*made.merged, *off})
    files = tuple(FileStatus(path, kinds.get(path, FileCondition.MERGED)) for path in paths)
    return Status(
        Condition.OVERLAY, root.path, made.source, made.kernels, made.tool_version, made.distribution, made.version,
        files, f"shadow of {made.shadows}",
    )  # fmt: skip
