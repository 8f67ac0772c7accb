"""A complete shadow of the package with the plan laid over it, for PYTHONPATH; the installation stays untouched."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from escha_oscar import __version__, fsops
from escha_oscar.apply import pristine_tree
from escha_oscar.errors import ApplyError, TargetError, UsageError
from escha_oscar.journal import allowed
from escha_oscar.model import Plan, SourceId, sha256
from escha_oscar.progress import NoProgress, Progress
from escha_oscar.status import OVERLAY_MARKER

_PACKAGE = "sglang"
_SCHEMA_VERSION = 1


def write_overlay(plan: Plan, source_site_packages: Path, dest: Path, progress: Progress | None = None) -> Path:
    """Write ``dest`` with all of ``sglang/`` and the plan over it; return its absolute path, for PYTHONPATH.

    Every file is a copy of its own: nothing in the shadow shares an inode with the installation. The tree is built
    beside ``dest`` and renamed into place; an older shadow of ours there is replaced. Raises UsageError where
    ``dest`` is something else, ApplyError (nothing left behind) where writing fails.
    """
    progress = progress or NoProgress()
    dest, source = dest.absolute(), source_site_packages.resolve()
    _refuse(dest, source)
    building = dest.parent / f".{dest.name}.{os.urandom(6).hex()}.tmp"
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        _build(plan, source, building, progress)
        fsops.put_tree(building, dest)
    except OSError as error:
        message = f"{error.strerror or error}; no overlay was written"
        raise ApplyError(message, path=error.filename, hint="choose another --overlay folder") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return dest


def read_marker(root: Path) -> dict[str, Any]:
    """Return what the marker of a shadow tree says; raises TargetError for a damaged one."""
    path = root / OVERLAY_MARKER
    try:
        marker: dict[str, Any] = json.loads(path.read_bytes())
        if marker["schema_version"] != _SCHEMA_VERSION:
            raise ValueError(f"schema {marker['schema_version']!r}")
        _ = [marker[key] for key in ("shadows", "kernels", "tool_version", "distribution", "version")]
        SourceId(**marker["source"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TargetError("the overlay's marker is damaged", path=str(path), found=str(error)) from error
    return marker


def _refuse(dest: Path, source: Path) -> None:
    real = dest.resolve()
    if real == source or real.is_relative_to(source) or source.is_relative_to(real):
        message = "an overlay cannot lie in the installation, nor the installation in it"
        raise UsageError(message, path=str(dest), hint="name a folder elsewhere")
    taken = dest.is_symlink() or (dest.exists() and not (dest / OVERLAY_MARKER).is_file())
    empty = dest.is_dir() and not dest.is_symlink() and not any(dest.iterdir())
    if taken and not empty:
        message = "exists and is no overlay of this tool"
        raise UsageError(message, path=str(dest), hint="name a folder that does not exist yet")


def _build(plan: Plan, source: Path, building: Path, progress: Progress) -> None:
    progress.step("copying the package")
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(source / _PACKAGE, building / _PACKAGE, ignore=ignore)
    _take_back(plan, source, building)
    progress.step("laying the merged files over it")
    for count, file in enumerate(plan.files, start=1):
        target = building / allowed(file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fsops.atomic_write(target, file.after)
        if sha256(target.read_bytes()) != file.after_sha256:
            raise OSError(5, "a file read back differs from what was written", str(target))
        progress.advance(count, len(plan.files))
    fsops.atomic_write(building / OVERLAY_MARKER, _marker(plan, source), mode=0o644)


def _take_back(plan: Plan, source: Path, building: Path) -> None:
    """Where the installation itself is integrated, put back in the copy what this plan does not touch."""
    pristine = pristine_tree(source)
    planned = {file.path for file in plan.files}
    for path in sorted(set(pristine.originals) - planned):
        if path.startswith(f"{_PACKAGE}/"):
            data = pristine.read(path)
            if data is None:
                (building / path).unlink(missing_ok=True)
            else:
                fsops.atomic_write(building / path, data)


def _marker(plan: Plan, source: Path) -> bytes:
    body = {
        "schema_version": _SCHEMA_VERSION,
        "tool_version": __version__,
        "shadows": str(source),
        "source": asdict(plan.source),
        "kernels": plan.kernels,
        "distribution": plan.target.distribution,
        "version": plan.target.version,
        "files": {file.path: file.after_sha256 for file in plan.files},
    }
    return json.dumps(body, indent=1, sort_keys=True).encode("ascii") + b"\n"
