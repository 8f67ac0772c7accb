"""A complete shadow of the package with the plan laid over it, for PYTHONPATH; the installation stays untouched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from escha_oscar import __version__
from escha_oscar.disk import fsops
from escha_oscar.disk.layout import allowed
from escha_oscar.errors import ApplyError, DriftError, UsageError
from escha_oscar.installed.overlay_marker import MARKER, Marker, differing, encode, is_overlay, read_marker
from escha_oscar.installed.pristine import pristine_tree
from escha_oscar.model import Plan, sha256
from escha_oscar.progress import NoProgress, Progress
from escha_oscar.target.search import PACKAGE

_SLACK_BYTES = 1 << 20


def write_overlay(plan: Plan, dest: Path, progress: Progress | None = None, *, force: bool = False) -> Path:
    """Write ``dest`` with all of ``sglang/`` and the plan over it; return its absolute path, for PYTHONPATH.

    Every file is a copy of its own: nothing in the overlay shares an inode with the installation. The tree is built
    beside ``dest`` and renamed into place; an older overlay of ours there is replaced. Raises UsageError where
    ``dest`` is something else, DriftError where files of an older overlay were edited (unless ``force``), ApplyError
    (nothing left behind) where writing fails.
    """
    progress = progress or NoProgress()
    dest, source = dest.absolute(), plan.target.site_packages
    require_place(dest, source, force=force)
    building = dest.parent / f".{dest.name}.{os.urandom(6).hex()}.tmp"
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        _require_room(plan, source, dest.parent)
        _build(plan, source, building, progress)
        fsops.put_tree(building, dest)
    except OSError as error:
        raise _not_written(error) from error
    finally:
        _open_folders(building)
        shutil.rmtree(building, ignore_errors=True)
    return dest


def require_place(dest: Path, source: Path, *, force: bool = False) -> None:
    """Refuse a ``dest`` as ``write_overlay`` does: in the installation, taken, or an overlay with edits."""
    real = dest.resolve()
    if real == source or real.is_relative_to(source) or source.is_relative_to(real):
        message = "an overlay cannot lie in the installation, nor the installation in it"
        raise UsageError(message, path=str(dest), hint="name a folder elsewhere")
    taken = dest.is_symlink() or (dest.exists() and not is_overlay(dest))
    empty = dest.is_dir() and not dest.is_symlink() and not any(dest.iterdir())
    if taken and not empty:
        message = "exists and is no overlay of this tool"
        raise UsageError(message, path=str(dest), hint="name a folder that does not exist yet")
    if is_overlay(dest) and not force:
        _refuse_edits(dest)


def _refuse_edits(dest: Path) -> None:
    """Refuse to replace an overlay whose files were edited: a new one would lose the edits."""
    marker = read_marker(dest)
    edited = list(differing(dest, {**marker.copied, **marker.merged}))
    if edited:
        raise DriftError(
            f"edited since the overlay was written: {', '.join(edited)}",
            path=str(dest / edited[0]),
            hint="name another --overlay folder, or add --force to write it anew without the edits",
        )


def _require_room(plan: Plan, source: Path, place: Path) -> None:
    """Raise ApplyError before the first byte where the whole tree will not fit."""
    copied = sum(path.stat().st_size for path in (source / PACKAGE).rglob("*") if path.is_file())
    needed = copied + sum(len(file.after) for file in plan.files) + _SLACK_BYTES
    hint = "choose an --overlay folder on another disk"
    fsops.Root(place).require_room(needed, "no overlay was written", hint)


def _not_written(error: OSError) -> ApplyError:
    """Say the first thing that failed: copying a tree collects one error for every file."""
    path, why = error.filename, error.strerror
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        first = error.args[0]
        _, path, why = first[0] if isinstance(first, list) else (None, None, first)
    hint = "choose another --overlay folder"
    return ApplyError(f"{why or error}; no overlay was written", path=path, hint=hint)


def _build(plan: Plan, source: Path, building: Path, progress: Progress) -> None:
    progress.step("copying the package")
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(source / PACKAGE, building / PACKAGE, ignore=ignore)
    _open_folders(building)
    _take_back(plan, source, building)
    progress.step("laying the merged files over it")
    for count, file in enumerate(plan.files, start=1):
        target = building / allowed(file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fsops.atomic_write(target, file.after)
        if sha256(target.read_bytes()) != file.after_sha256:
            raise OSError(5, "a file read back differs from what was written", str(target))
        progress.advance(count, len(plan.files))
    fsops.atomic_write(building / MARKER, encode(_marker(plan, source, building)), mode=0o644)


def _open_folders(tree: Path) -> None:
    """Let the owner write in folders that were copied from a read-only installation."""
    for folder in (Path(name) for name, _, _ in os.walk(tree)):
        folder.chmod(folder.stat().st_mode | 0o700)


def _take_back(plan: Plan, source: Path, building: Path) -> None:
    """Where the installation itself is integrated, put back in the copy what this plan does not touch."""
    pristine = pristine_tree(source)
    planned = {file.path for file in plan.files}
    for path in sorted(set(pristine.originals) - planned):
        if path.startswith(f"{PACKAGE}/"):
            data = pristine.read(path)
            if data is None:
                (building / path).unlink(missing_ok=True)
            else:
                fsops.atomic_write(building / path, data)


def _marker(plan: Plan, source: Path, building: Path) -> Marker:
    merged = {file.path: file.after_sha256 for file in plan.files}
    files = (path for path in sorted((building / PACKAGE).rglob("*")) if path.is_file())
    digests = {path.relative_to(building).as_posix(): sha256(path.read_bytes()) for path in files}
    return Marker(
        str(source), plan.source, plan.kernels, __version__, plan.target.distribution, plan.target.version,
        merged, {path: digest for path, digest in digests.items() if path not in merged},
    )  # fmt: skip
