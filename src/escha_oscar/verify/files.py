"""Level files: what an integration recorded against what lies on disk, and whether Python would import it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from escha_oscar.disk.fsops import Root
from escha_oscar.errors import TargetError, UnreadableError
from escha_oscar.installed import state
from escha_oscar.installed.overlay_marker import is_overlay, read_marker
from escha_oscar.installed.standing import FileCondition
from escha_oscar.installed.status import Condition, FileStatus, Status, read_status
from escha_oscar.mapping import copies, merges
from escha_oscar.mapping.wheels import KERNELS_DIR
from escha_oscar.model import Finding, Report
from escha_oscar.target.owner import find_owner
from escha_oscar.target.search import offers, same
from escha_oscar.verify.codes import finding

_LEFTOVERS = (".orig", ".rej", ".bak")
_FILE_CODES = {
    FileCondition.EDITED: ("file-edited", "differs from what was written"),
    FileCondition.ORIGINAL: ("file-restored", "has the wheel's bytes again"),
    FileCondition.MISSING: ("file-gone", "is gone"),
}


def check_files_on_disk(site_packages: Path, search_path: Sequence[Path] = ()) -> Report:
    """Return the findings about the files of ``site_packages``; ``search_path`` is where Python looks, in order."""
    overlay = is_overlay(site_packages)
    found = [
        *(_overlay(site_packages) if overlay else _conditions(site_packages)),
        *_shadows(site_packages, search_path),
        *(() if overlay else _owners(site_packages)),
        *_leftovers(site_packages),
    ]
    return Report(tuple(found), checks=4)


def _overlay(site_packages: Path) -> Iterator[Finding]:
    """Judge a shadow tree by what was written and by the wheel that it was made from."""
    try:
        made = read_marker(site_packages)
        owner = find_owner(Path(made.shadows))
    except TargetError as error:
        yield _damaged(error)
        return
    again = f"escha-oscar integrate --site-packages {shlex.quote(made.shadows)} --overlay"
    anew = f"{again} {shlex.quote(str(site_packages))} --force"
    yield from (_deviating(file, anew) for file in read_status(site_packages).deviating)
    made_from, now = f"{made.distribution} {made.version}", f"{owner.name} {owner.version}"
    if made_from != now:
        yield finding(
            "overlay-stale",
            "the wheel behind this shadow tree was replaced since",
            path=made.shadows,
            expected=made_from,
            found=now,
            hint=f"{again} <another folder>",
        )
        return
    yield finding(
        "overlay",
        f"a shadow of {made.shadows}: it takes effect where it comes first on PYTHONPATH",
        found=f"made from {made_from}",
    )


def _conditions(site_packages: Path) -> Iterator[Finding]:
    try:
        status = read_status(site_packages)
    except UnreadableError as error:
        yield finding(
            "record-unreadable",
            "the integration's record may not be read by this user",
            path=error.path,
            expected="a record that whoever may read the package may read",
            found="permission denied",
            hint=error.hint,
        )
        return
    except TargetError as error:
        yield _damaged(error)
        return
    yield from _condition(status)


def _damaged(error: TargetError) -> Finding:
    return finding(
        "record-damaged",
        f"the integration's record cannot be used: {error.message}",
        path=error.path,
        expected=error.sought or "a whole record",
        found=error.found or "a damaged one",
        hint=error.hint or "pip install --force-reinstall --no-deps WHEEL, then escha-oscar integrate",
    )


def _condition(status: Status) -> Iterator[Finding]:
    condition = status.condition
    if condition is Condition.MODIFIED:
        again = "escha-oscar revert --force (keeps a copy of each), then escha-oscar integrate"
        yield from (_deviating(_as_found(status.site_packages, file), again) for file in status.deviating)
    elif condition is Condition.REINSTALLED:
        yield finding(
            "not-merged-any-more",
            "not merged: files equal the wheel's, which was installed anew since the integration",
            expected="the merged files",
            found=f"{len(status.deviating)} files as the wheel has them",
            hint="escha-oscar integrate",
        )
    elif condition is Condition.INTERRUPTED:
        yield finding(
            "interrupted",
            f"an interrupted run has to be resolved: {status.detail}",
            expected="a finished transaction",
            found=status.detail,
            hint="escha-oscar recover",
        )
    elif condition is Condition.RUNNING:
        yield finding(
            "running",
            f"another process is changing this environment: {status.detail}",
            expected="a quiet environment",
            found=status.detail,
            hint="wait, then escha-oscar verify",
        )
    elif condition is Condition.PRISTINE:
        yield finding(
            "not-merged-yet",
            "not merged: files equal the wheel's",
            expected="merged files",
            found="the wheel's own, by RECORD",
            hint="escha-oscar integrate --dry-run",
        )
    elif condition is Condition.FOREIGN:
        names = ", ".join(file.path.rpartition("/")[2] for file in status.files)
        yield finding(
            "no-record",
            "merged by hand or by another tool: there are no recorded hashes to compare",
            found=f"changed from the wheel: {names}" if names else status.detail,
        )


def _as_found(site_packages: Path, file: FileStatus) -> FileStatus:
    """Return ``file`` as missing where it is: an added file is back to its original when it is absent."""
    there = (site_packages / file.path).exists()
    return file if there else FileStatus(file.path, FileCondition.MISSING)


def _deviating(file: FileStatus, hint: str) -> Finding:
    code, words = _FILE_CODES[file.condition]
    return finding(
        code,
        f"the file {words}",
        path=file.path,
        expected="the recorded digest",
        found="no such file" if file.condition is FileCondition.MISSING else file.condition.value,
        hint=hint,
    )


def _shadows(site_packages: Path, search_path: Sequence[Path]) -> Iterator[Finding]:
    for entry in search_path:
        if same(entry, site_packages):
            return
        shadow = offers(entry)
        if shadow is not None:
            yield finding(
                "shadowed",
                "another sglang comes first on the import path: Python never loads the one that is verified",
                path=str(shadow),
                expected=f"{site_packages / 'sglang'} first",
                found=f"{shadow} first",
                hint=f"escha-oscar verify --site-packages {shlex.quote(str(entry))}, or take it out of PYTHONPATH",
            )
            return


def _owners(site_packages: Path) -> Iterator[Finding]:
    try:
        find_owner(site_packages)
    except TargetError as error:
        several = "several owners" in error.message
        yield finding(
            "two-owners" if several else "owner-unclear",
            error.message,
            path=error.path,
            expected=error.sought or "one distribution that owns sglang/",
            found=error.found or "none",
            hint=error.hint,
        )


def _leftovers(site_packages: Path) -> Iterator[Finding]:
    recorded = _recorded(site_packages)
    for path in _left_over(site_packages, recorded):
        yield finding(
            "leftover",
            "left over from an older integration or a patch run",
            path=path,
            expected="no such file",
            found="a file that no record lists",
            hint=f"rm {site_packages / path}",
        )


def _recorded(site_packages: Path) -> frozenset[str] | None:
    try:
        known = state.load(Root(site_packages))
    except TargetError:
        return None
    return None if known is None else frozenset(entry.path for entry in known.files)


def _left_over(site_packages: Path, recorded: frozenset[str] | None) -> Iterator[str]:
    for row in (*copies(), *merges()):
        for path in row.wheel_paths:
            yield from (path + tail for tail in _LEFTOVERS if (site_packages / (path + tail)).is_file())
    placed = sorted((site_packages / KERNELS_DIR).glob("*.py"))
    names = [file.relative_to(site_packages).as_posix() for file in placed]
    if recorded is not None:
        yield from (name for name in names if name not in recorded)
