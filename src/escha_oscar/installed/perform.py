"""Carrying out a decision: look at the disk before it, keep what will be replaced, run the transaction."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from escha_oscar.disk import bytecode, store, transaction
from escha_oscar.disk.fsops import Root
from escha_oscar.disk.image import Kind
from escha_oscar.disk.journal import Journal
from escha_oscar.disk.layout import ORIGINALS, STATE_FILE, UNDO
from escha_oscar.disk.signals import Deferred
from escha_oscar.errors import ApplyError, DriftError
from escha_oscar.installed.decide import Decision, Disk
from escha_oscar.model import sha256
from escha_oscar.progress import Progress

_SLACK_BYTES = 128 * 1024


def survey(root: Root, paths: Iterable[str]) -> Disk:
    """Read everything a decision rests on: each path, the bytecode beside it, the state file."""
    wanted = sorted(set(paths))
    caches = [cache for path in wanted for cache in bytecode.beside(root, path)]
    images = {path: root.image(path) for path in (*wanted, *caches, STATE_FILE)}
    folders = {str(folder) for path in wanted for folder in PurePosixPath(path).parents}
    absent = frozenset(folder for folder in folders if not root.full(folder).is_dir())
    fresh = {path: root.new_file_like(path) for path in wanted}
    return Disk(images, fresh, absent, store.readable(root), time.time_ns())


def perform(
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
    hint = "free some space, or: escha-oscar integrate --overlay DIR"
    root.require_room(needed, "nothing was written", hint)


def _keep(root: Root, decision: Decision) -> None:
    """Store the bytes of everything that will be replaced: originals to stay, the rest until the commit."""
    lasting = decision.state.originals if decision.state else frozenset[str]()
    kept: dict[str, dict[bytes, bool]] = {ORIGINALS: {}, UNDO: {}}
    for step in decision.steps:
        if step.before.sha256 is None:
            continue
        data = root.read(step.path)
        if sha256(data) != step.before.sha256:
            raise DriftError("changed by another process", path=str(root.full(step.path)))
        kept[ORIGINALS if step.before.sha256 in lasting else UNDO][data] = root.is_public(step.path)
    for folder, blobs in kept.items():
        if blobs:
            store.put(root, folder, blobs)
