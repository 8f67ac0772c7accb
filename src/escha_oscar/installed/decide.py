"""Which steps lead from what stands on disk to what is wanted: pure, no disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from escha_oscar import __version__
from escha_oscar.disk import bytecode
from escha_oscar.disk.image import ABSENT, Image, Kind
from escha_oscar.disk.journal import Step
from escha_oscar.disk.layout import LOCK_FILE, ORIGINALS, STATE_FILE, allowed
from escha_oscar.errors import DriftError
from escha_oscar.installed import state
from escha_oscar.installed.state import CacheEntry, FileEntry, State
from escha_oscar.model import Change, Plan, PlannedFile, sha256
from escha_oscar.target import record as rows

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Disk:
    """What was found: an image per path (targets, RECORD, bytecode, state), and how to dress new files.

    ``fresh`` gives mode and owner for each path that may be written anew, ``absent_folders`` what has to be made for
    them; ``state`` dresses the state file; ``now_ns`` is the time that written files get.
    """

    images: Mapping[str, Image]
    fresh: Mapping[str, Image]
    absent_folders: frozenset[str]
    state: Image
    now_ns: int

    def image(self, path: str) -> Image:
        """Return what stands at ``path``."""
        return self.images.get(path, ABSENT)

    @property
    def caches(self) -> tuple[str, ...]:
        """Return the compiled files that were found."""
        return tuple(sorted(path for path in self.images if bytecode.is_cache(path)))


@dataclass(frozen=True)
class Decision:
    """Steps in order (the commit last), the new bytes by digest, and the state that will hold (None: none)."""

    steps: tuple[Step, ...]
    contents: Mapping[str, bytes]
    state: State | None
    made: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def originals_of(plan: Plan, known: State | None, disk: Disk) -> dict[str, Image]:
    """Return what stood at each path before any integration: from the state, or from disk."""
    paths = [*(file.path for file in plan.files), record_path(plan)]
    kept = {entry.path: entry.original for entry in known.files} if known else {}
    return {**{path: disk.image(path) for path in paths}, **kept}


def check_before(plan: Plan, originals: Mapping[str, Image]) -> None:
    """Refuse where a file is no longer what the plan was made from; raises DriftError with every such path."""
    changed = [file.path for file in plan.files if originals[file.path].sha256 != file.before_sha256]
    if changed:
        raise DriftError(
            f"changed since the plan was made: {', '.join(changed)}",
            path=changed[0],
            hint="run escha-oscar integrate again",
        )


def integration(
    plan: Plan,
    known: State | None,
    originals: Mapping[str, Image],
    pristine_record: bytes,
    transaction: str,
    disk: Disk,
) -> Decision:
    """Return the steps that make ``plan`` true, over a pristine tree or over an older integration.

    ``known`` is the state of that older one, its files all as it left them (or the wheel replaced).
    """
    paths = {*(file.path for file in plan.files), record_path(plan)}
    restored = {path: image for path, image in originals.items() if path not in paths}
    caches = _original_caches(known, originals, disk)
    kept = {path: image for path, image in caches.items() if source_of(path) in paths}
    after_record = _record_after(plan, pristine_record, [*(originals[path] for path in paths), *kept.values()])
    files = (*plan.files, PlannedFile(record_path(plan), Change.RECORD, pristine_record, after_record))
    entries = tuple(FileEntry(allowed(f.path), f.change, originals[f.path], f.after_sha256) for f in files)
    folders = _folders(entries, known, disk)
    new = State(
        transaction, __version__, plan.source, plan.kernels, plan.target.distribution, plan.target.version, entries,
        tuple(CacheEntry(path, image) for path, image in sorted(kept.items())), folders.ours,
    )  # fmt: skip
    targets = {f.path: _dressed(f, originals[f.path], disk) for f in files}
    cache_targets = {path: _cache_target(path, caches, restored) for path in {*disk.caches, *caches}}
    decided = _decision({**restored, **targets}, cache_targets, record_path(plan), new, disk)
    contents = {**decided.contents, **{f.after_sha256: f.after for f in files}}
    return replace(decided, contents=contents, made=folders.made, dropped=folders.dropped)


def record_path(plan: Plan) -> str:
    """Return the path of the owner's RECORD, relative to site-packages."""
    return f"{plan.target.dist_info.name}/RECORD"


def reversal(known: State, keep: frozenset[str], disk: Disk) -> Decision:
    """Return the steps that put every original back, but for the paths in ``keep``, which stay as they are."""
    targets = {entry.path: entry.original for entry in known.files if entry.path not in keep}
    sources = {path for path in targets if path.endswith(".py")}
    back = {entry.path: entry.original for entry in known.caches if source_of(entry.path) in sources}
    cache_targets = {path: back.get(path, ABSENT) for path in {*disk.caches, *back}}
    record = next((entry.path for entry in known.files if entry.change is Change.RECORD), "")
    return replace(_decision(targets, cache_targets, record, None, disk), dropped=known.folders)


def source_of(cache: str) -> str:
    """Return the source of a compiled file: ``a/__pycache__/b.cpython-312.opt-1.pyc`` -> ``a/b.py``."""
    pure = PurePosixPath(cache)
    return str(pure.parent.parent / f"{pure.name.split('.', 1)[0]}.py")


def _record_after(plan: Plan, pristine: bytes, originals: Iterable[Image]) -> bytes:
    """Add hashed rows for our files, and bare rows for the state, so that uninstallers leave nothing behind."""
    backups = [f"{ORIGINALS}/{image.sha256}" for image in originals if image.sha256]
    own = [STATE_FILE, LOCK_FILE, *backups]
    return rows.with_rows(pristine, {**{f.path: f.after for f in plan.files}, **dict.fromkeys(own)})


def _original_caches(known: State | None, originals: Mapping[str, Image], disk: Disk) -> dict[str, Image]:
    """Return the compiled files that belong to original sources: those known, and those of files first met now."""
    caches = {entry.path: entry.original for entry in known.caches} if known else {}
    old = {entry.path for entry in known.files} if known else set()
    for path in disk.caches:
        source = source_of(path)
        if source not in old and originals.get(source, ABSENT).kind is not Kind.ABSENT:
            caches[path] = disk.image(path)
    return caches


def _cache_target(path: str, caches: Mapping[str, Image], restored: Mapping[str, Image]) -> Image:
    return caches.get(path, ABSENT) if source_of(path) in restored else ABSENT


@dataclass(frozen=True)
class _Folders:
    """Folders of added files: those that are ours, those of them to make now, and former ones of ours to drop."""

    ours: tuple[str, ...]
    made: tuple[str, ...]
    dropped: tuple[str, ...]


def _folders(entries: Iterable[FileEntry], known: State | None, disk: Disk) -> _Folders:
    added = {str(folder) for e in entries if e.original.kind is Kind.ABSENT for folder in PurePosixPath(e.path).parents}
    old = set(known.folders) if known else set[str]()
    made = added & disk.absent_folders
    ours = (old & added) | made
    return _Folders(*(tuple(sorted(folders, key=_depth)) for folders in (ours, made, old - ours)))


def _depth(folder: str) -> tuple[int, str]:
    return folder.count("/"), folder


def _dressed(file: PlannedFile, original: Image, disk: Disk) -> Image:
    """Return the image to write: mode and owner of the original, a time that no old bytecode can match."""
    like = original if original.kind is Kind.FILE else disk.fresh[file.path]
    now_ns = max(disk.now_ns, original.mtime_ns + _SECOND_NS, disk.image(file.path).mtime_ns + _SECOND_NS)
    return Image(Kind.FILE, file.after_sha256, len(file.after), like.mode, like.uid, like.gid, now_ns)


def _decision(
    targets: Mapping[str, Image],
    caches: Mapping[str, Image],
    record: str,
    new: State | None,
    disk: Disk,
) -> Decision:
    """Order the steps: added files, changed files, bytecode, RECORD, and the state as the commit."""
    data = state.encode(new) if new else b""
    commit = replace(disk.state, sha256=sha256(data), size=len(data)) if new else ABSENT
    sources = sorted((path for path in targets if path != record), key=lambda p: (disk.image(p).kind.value, p))
    wanted = [(path, targets[path]) for path in sources]
    wanted += [(path, caches[path]) for path in sorted(caches)]
    wanted += [(record, targets[record])] if record in targets else []
    steps = [Step(path, disk.image(path), after) for path, after in wanted]
    needed = [step for step in steps if not step.before.same_content(step.after)]
    last = Step(STATE_FILE, disk.image(STATE_FILE), commit)
    return Decision((*needed, last), {commit.sha256: data} if commit.sha256 else {}, new)
