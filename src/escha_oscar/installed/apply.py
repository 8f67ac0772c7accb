"""Write a plan into an environment: all of it, verified, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from escha_oscar.disk import bytecode, store
from escha_oscar.disk.fsops import Root
from escha_oscar.disk.image import Image, Kind
from escha_oscar.disk.journal import Step
from escha_oscar.disk.layout import allowed
from escha_oscar.disk.signals import Deferred
from escha_oscar.errors import DriftError, TargetError
from escha_oscar.installed import decide, memory, perform, recovery, state
from escha_oscar.installed.decide import Decision
from escha_oscar.installed.standing import FileCondition, conditions, valid_state
from escha_oscar.installed.state import State
from escha_oscar.model import Change, Plan, sha256
from escha_oscar.progress import NoProgress, Progress


@dataclass(frozen=True)
class AppliedSummary:
    """What was written. ``already`` is True where everything stood there before and nothing was touched.

    Of the changed files ``shared`` had further hard links, ``links`` were symbolic links, and ``owner_changed``
    belonged to another user: only root can give a file to somebody else.
    """

    already: bool
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    owner_changed: tuple[str, ...] = ()


def apply_plan(
    plan: Plan,
    *,
    verify: Callable[[Path], None] | None = None,
    progress: Progress | None = None,
    wait_s: float = 60.0,
) -> AppliedSummary:
    """Write ``plan``, whose ``before`` bytes are those of ``pristine_tree``, as one transaction.

    ``verify`` gets site-packages once the new tree stands and raises to have it undone. Raises ApplyError (undone),
    StoppedError (undone), DriftError (a file is not what was planned from; nothing written), LockedError,
    RecoveryError (could not be undone).
    """
    progress = progress or NoProgress()
    root = Root(plan.target.site_packages)
    with recovery.writing(root, progress, wait_s) as signals:
        recovery.settle(root, progress)
        known = valid_state(root, state.load(root))
        _refuse_drift(root, known)
        if _stands(root, plan, known):
            return AppliedSummary(already=True)
        return _write(root, plan, known, verify, signals, progress)


def _refuse_drift(root: Root, known: State | None) -> None:
    found = conditions(root, known) if known else {}
    changed = [path for path, condition in found.items() if condition is not FileCondition.MERGED]
    if changed:
        raise DriftError(
            f"changed since the integration: {', '.join(changed)}",
            path=str(root.full(changed[0])),
            hint="escha-oscar revert --force (keeps a copy of each), then escha-oscar integrate",
        )


def _stands(root: Root, plan: Plan, known: State | None) -> bool:
    """Return whether every planned byte is on disk and, where there is a state, it says the same."""
    planned = {file.path: file.after_sha256 for file in plan.files}
    if not planned:
        return known is None
    entries = known.files if known else ()
    recorded = {entry.path: entry.after_sha256 for entry in entries if entry.change is not Change.RECORD}
    return recorded == planned and all(root.image(path).sha256 == digest for path, digest in planned.items())


def _write(
    root: Root,
    plan: Plan,
    known: State | None,
    verify: Callable[[Path], None] | None,
    signals: Deferred,
    progress: Progress,
) -> AppliedSummary:
    if plan.target.dist_info.resolve().parent != root.path:
        raise TargetError("the distribution's metadata lies elsewhere", path=str(plan.target.dist_info))
    old = [entry.path for entry in known.files] if known else []
    paths = [*(allowed(file.path) for file in plan.files), decide.record_path(plan), *old]
    disk = perform.survey(root, paths)
    originals = decide.originals_of(plan, known, disk)
    decide.check_before(plan, originals)
    record = _original_bytes(root, originals, decide.record_path(plan))
    identity = perform.new_identity()
    decision = decide.integration(plan, known, originals, record, identity, disk)
    perform.perform(root, "integrate", decision, verify, signals, progress, identity)
    if decision.state is not None:
        memory.remember(root, decision.state)
    return _summary(decision)


def _original_bytes(root: Root, originals: dict[str, Image], path: str) -> bytes:
    image = originals[path]
    if image.sha256 is None:
        raise TargetError("the distribution has no RECORD", path=str(root.full(path)))
    data = root.read(path)
    return data if sha256(data) == image.sha256 else store.load(root, image.sha256)


def _summary(decision: Decision) -> AppliedSummary:
    steps = [step for step in decision.steps[:-1] if not bytecode.is_cache(step.path)]
    added = tuple(step.path for step in steps if step.before.kind is Kind.ABSENT)
    removed = tuple(step.path for step in steps if step.after.kind is Kind.ABSENT)
    return AppliedSummary(
        already=False,
        added=added,
        changed=tuple(step.path for step in steps if step.path not in (*added, *removed)),
        removed=removed,
        shared=tuple(step.path for step in steps if step.before.kind is Kind.FILE and step.before.links > 1),
        links=tuple(step.path for step in steps if step.before.kind is Kind.LINK),
        owner_changed=tuple(step.path for step in steps if _changes_owner(step)),
    )


def _changes_owner(step: Step) -> bool:
    return step.before.kind is Kind.FILE and step.before.uid != os.geteuid() != 0
