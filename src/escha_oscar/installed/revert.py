"""Put every original back: bytes, permission bits, link types; and forget the integration."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from escha_oscar.disk import bytecode
from escha_oscar.disk.fsops import Root
from escha_oscar.disk.image import Kind
from escha_oscar.disk.layout import STATE_DIR
from escha_oscar.disk.signals import Deferred
from escha_oscar.errors import DriftError, UsageError
from escha_oscar.installed import decide, memory, perform, recovery, state
from escha_oscar.installed.overlay_marker import is_overlay
from escha_oscar.installed.standing import FileCondition, conditions, is_replaced, remaining
from escha_oscar.installed.state import State
from escha_oscar.progress import NoProgress, Progress


class Outcome(str, Enum):
    """What a revert found and did."""

    NOTHING = "nothing-to-do"
    REVERTED = "reverted"
    REINSTALLED = "reinstalled"


@dataclass(frozen=True)
class RevertSummary:
    """What was put back. ``saved`` are copies of edited files; ``left`` belong to a wheel installed since."""

    outcome: Outcome
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    recovered: recovery.Recovery | None = None


def revert(
    site_packages: Path, *, force: bool = False, progress: Progress | None = None, wait_s: float = 60.0
) -> RevertSummary:
    """Put back what ``apply_plan`` replaced and remove what it added, as one transaction.

    Edited files are refused with DriftError, or with ``force`` saved aside first. Files of a wheel that was installed
    since are never overwritten. Raises ApplyError or StoppedError (both: integrated as before), LockedError,
    TargetError for damaged backups (nothing written), RecoveryError, UsageError for an overlay (nothing touched).
    """
    progress = progress or NoProgress()
    root = Root(site_packages)
    if is_overlay(root.path):
        where = shlex.quote(str(root.path))
        raise UsageError("an overlay is undone by removing its folder", path=str(root.path), hint=f"rm -r {where}")
    if not root.full(STATE_DIR).exists():
        memory.forget(root)
        return RevertSummary(Outcome.NOTHING)
    with recovery.writing(root, progress, wait_s) as signals:
        recovered = recovery.settle(root, progress, force=force)
        known = state.load(root)
        if known is None:
            return RevertSummary(Outcome.NOTHING, recovered=recovered)
        return _revert(root, known, signals, progress, recovered, force=force)


def _revert(
    root: Root,
    known: State,
    signals: Deferred,
    progress: Progress,
    recovered: recovery.Recovery | None,
    *,
    force: bool,
) -> RevertSummary:
    found = conditions(root, known)
    replaced = is_replaced(known, found)
    left = frozenset(found) - remaining(known, found) if replaced else frozenset[str]()
    added = {entry.path for entry in known.files if entry.original.kind is Kind.ABSENT}
    edited = [p for p, condition in found.items() if _is_edit(condition, p in added) and p not in left]
    _refuse(root, known, edited, force=force)
    disk = perform.survey(root, found)
    decision = decide.reversal(known, left, disk)
    saved = recovery.save_aside(root, edited)
    perform.perform(root, "revert", decision, None, signals, progress, perform.new_identity())
    memory.forget(root)
    steps = [step for step in decision.steps[:-1] if not bytecode.is_cache(step.path)]
    return RevertSummary(
        Outcome.REINSTALLED if replaced else Outcome.REVERTED,
        restored=tuple(step.path for step in steps if step.after.kind is not Kind.ABSENT),
        removed=tuple(step.path for step in steps if step.after.kind is Kind.ABSENT),
        saved=saved,
        left=tuple(sorted(path for path in left if found[path] is FileCondition.EDITED)),
        recovered=recovered,
    )


def _is_edit(condition: FileCondition, added: bool) -> bool:
    return condition is FileCondition.EDITED or (condition is FileCondition.MISSING and not added)


def _refuse(root: Root, known: State, edited: list[str], *, force: bool) -> None:
    """Refuse edits without ``force``, and with it too where RECORD says that another wheel is there."""
    record = known.record.path
    if record in edited:
        raise DriftError(
            "the wheel was partly installed anew: its originals are not those that were kept",
            path=str(root.full(record)),
            found=", ".join(edited),
            hint="pip install --force-reinstall --no-deps WHEEL, then escha-oscar revert",
        )
    if edited and not force:
        raise DriftError(
            f"edited since the integration: {', '.join(edited)}",
            path=str(root.full(edited[0])),
            hint="escha-oscar revert --force (keeps a copy of each)",
        )
