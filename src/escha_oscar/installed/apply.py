"""Write a plan into an environment: all of it, verified, or nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from escha_oscar.disk import bytecode, store, transaction
from escha_oscar.disk.fsops import Image, Kind, Root
from escha_oscar.disk.journal import STATE_FILE, Journal, Step, allowed
from escha_oscar.disk.signals import Deferred
from escha_oscar.errors import ApplyError, DriftError, TargetError
from escha_oscar.installed import decide, memory, recovery, state
from escha_oscar.installed.decide import Decision, Disk
from escha_oscar.installed.state import State
from escha_oscar.installed.status import Condition, FileCondition, FileStatus, classify, condition_of
from escha_oscar.model import Change, Plan, sha256
from escha_oscar.progress import NoProgress, Progress
from escha_oscar.tree import DiskTree

_SLACK_BYTES = 128 * 1024


@dataclass(frozen=True)
class AppliedSummary:
    """What was written. ``already`` is True where everything stood there before and nothing was touched."""

    already: bool
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    bytecode: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PristineTree:
    """The tree as it was before any integration; the rest is read from disk. ``originals`` maps our paths only."""

    root: Root
    originals: dict[str, Image]

    def read(self, path: str) -> bytes | None:
        """Return the original bytes of ``path``, or None where there was no such file."""
        image = self.originals.get(path)
        if image is None:
            return DiskTree(self.root.path).read(path)
        return None if image.sha256 is None else store.load(self.root, image.sha256)

    def exists(self, path: str) -> bool:
        """Return whether ``path`` was a file or a directory."""
        image = self.originals.get(path)
        return DiskTree(self.root.path).exists(path) if image is None else image.kind is not Kind.ABSENT


def pristine_tree(site_packages: Path) -> PristineTree:
    """Return the environment as the wheel left it, to plan from; reads only.

    Raises RecoveryError where an interrupted run has to be resolved first, TargetError for a damaged state.
    """
    root = Root(site_packages)
    recovery.require_settled(root)
    known = _ours(root, state.load(root))
    return PristineTree(root, {entry.path: entry.original for entry in known.files} if known else {})


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
        known = _ours(root, state.load(root))
        _refuse_drift(root, known)
        if _stands(root, plan, known):
            return AppliedSummary(already=True)
        return _write(root, plan, known, verify, signals, progress)


def survey(root: Root, paths: Iterable[str]) -> Disk:
    """Read everything a decision rests on: each path, the bytecode beside it, the state file."""
    wanted = sorted(set(paths))
    caches = [cache for path in wanted for cache in bytecode.beside(root, path)]
    images = {path: root.image(path) for path in (*wanted, *caches, STATE_FILE)}
    folders = {str(folder) for path in wanted for folder in PurePosixPath(path).parents}
    absent = frozenset(folder for folder in folders if not root.full(folder).is_dir())
    fresh = {path: root.new_file_like(path) for path in wanted}
    return Disk(images, fresh, absent, store.readable(root), time.time_ns())


def run(
    root: Root,
    operation: str,
    decision: Decision,
    verify: Callable[[Path], None] | None,
    signals: Deferred,
    progress: Progress,
    identity: str,
) -> None:
    """Carry out a decision: probe, keep backups, journal, write, verify, commit."""
    journal = Journal(identity, operation, decision.steps, decision.made, decision.dropped)
    contents = {**decision.contents, **_stored(root, decision)}
    _probe(root, decision, contents)
    progress.step("keeping the originals")
    _keep(root, decision)
    transaction.execute(root, transaction.Work(journal, contents, verify), signals, progress)


def new_identity() -> str:
    """Return a fresh transaction id: 12 hex digits."""
    return os.urandom(6).hex()


def _ours(root: Root, known: State | None) -> State | None:
    """Return the state as far as it still holds: only our added files once the wheel was installed anew."""
    if known is None:
        return None
    images = {entry.path: root.image(entry.path) for entry in known.files}
    files = tuple(FileStatus(entry.path, condition_of(entry, images[entry.path])) for entry in known.files)
    return decide.leftovers(known, images) if classify(known, files) is Condition.REINSTALLED else known


def _refuse_drift(root: Root, known: State | None) -> None:
    entries = known.files if known else ()
    conditions = {entry.path: condition_of(entry, root.image(entry.path)) for entry in entries}
    changed = [path for path, condition in conditions.items() if condition is not FileCondition.MERGED]
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
    disk = survey(root, paths)
    originals = decide.originals_of(plan, known, disk)
    decide.check_before(plan, originals)
    record = _original_bytes(root, originals, decide.record_path(plan))
    identity = new_identity()
    decision = decide.integration(plan, known, originals, record, identity, disk)
    run(root, "integrate", decision, verify, signals, progress, identity)
    if decision.state is not None:
        memory.remember(root, decision.state)
    return _summary(decision)


def _original_bytes(root: Root, originals: dict[str, Image], path: str) -> bytes:
    image = originals[path]
    if image.sha256 is None:
        raise TargetError("the distribution has no RECORD", path=str(root.full(path)))
    data = root.read(path)
    return data if sha256(data) == image.sha256 else store.load(root, image.sha256)


def _stored(root: Root, decision: Decision) -> dict[str, bytes]:
    """Return the new bytes that come from backups, each hashed."""
    needed = {step.after.sha256 for step in decision.steps if step.after.kind is Kind.FILE}
    return {digest: store.load(root, digest) for digest in needed if digest and digest not in decision.contents}


def _probe(root: Root, decision: Decision, contents: dict[str, bytes]) -> None:
    """Refuse before the first change where a target cannot be replaced or space will not do."""
    for step in decision.steps:
        obstacle = root.obstacle(step.path)
        if obstacle:
            raise ApplyError(
                f"{obstacle}; nothing was written",
                path=str(root.full(step.path)),
                hint="run it as the owner, or: escha-oscar integrate --overlay DIR",
            )
    needed = sum(map(len, contents.values())) + 2 * sum(step.before.size for step in decision.steps) + _SLACK_BYTES
    free = root.free_bytes()
    if free < needed:
        raise ApplyError(
            "not enough space; nothing was written",
            path=str(root.path),
            sought=f"{needed} bytes free",
            found=f"{free} bytes free",
            hint="free some space, or: escha-oscar integrate --overlay DIR",
        )


def _keep(root: Root, decision: Decision) -> None:
    """Store the bytes of everything that will be replaced: originals to stay, the rest until the commit."""
    lasting = decision.state.originals if decision.state else frozenset[str]()
    kept: dict[str, dict[bytes, bool]] = {store.ORIGINALS: {}, store.UNDO: {}}
    for step in decision.steps:
        if step.before.sha256 is None:
            continue
        data = root.read(step.path)
        if sha256(data) != step.before.sha256:
            raise DriftError("changed by another process", path=str(root.full(step.path)))
        kept[store.ORIGINALS if step.before.sha256 in lasting else store.UNDO][data] = root.is_public(step.path)
    for folder, blobs in kept.items():
        if blobs:
            store.put(root, folder, blobs)


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
        bytecode=len(decision.steps) - 1 - len(steps),
        notes=_owner_notes(steps),
    )


def _owner_notes(steps: list[Step]) -> tuple[str, ...]:
    """Say which files change owner: only root can give a file to somebody else."""
    me = os.geteuid()
    others = [step.path for step in steps if step.before.kind is Kind.FILE and step.before.uid != me != 0]
    return (f"{len(others)} files of another owner now belong to you: {', '.join(others)}",) if others else ()
