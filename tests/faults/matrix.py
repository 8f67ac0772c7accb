"""Faults injected by strace into one operation: which system calls it makes, and what is left after each fault."""

from __future__ import annotations

import collections
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.recovery import recover
from escha_oscar.installed.revert import revert
from escha_oscar.installed.status import Status, read_status
from tests.support.environments import (
    MERGED_AGAIN,
    make_environment,
    make_plan,
    snapshot,
    without_state,
)

DRIVER = Path(__file__).with_name("driver.py")
#: Every system call by which a file, a name or a permission changes, or reaches the disk.
CALLS = (
    "write", "pwrite64", "fsync", "fdatasync", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir",
    "mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat", "chmod", "fchmod", "fchown", "utimensat", "ftruncate",
)  # fmt: skip
OPERATIONS = ("apply", "again", "revert")
WORKERS = 2

Snapshot = dict[str, tuple[str, int, str]]


@dataclass
class Tally:
    """How many faults were injected, by kind."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)


TALLY = Tally()


@dataclass(frozen=True, order=True)
class Point:
    """The ``number``-th call of ``call`` in an operation."""

    operation: str
    call: str
    number: int


@dataclass(frozen=True)
class Place:
    """A fresh environment in a folder of its own, before an operation that is about to be disturbed."""

    folder: Path
    site: Path
    old: Snapshot

    def now(self) -> Snapshot:
        """Return the environment, the other environment's cache included."""
        return snapshot(self.folder)


def require_strace() -> None:
    """Fail with one clear sentence where strace is missing or may not trace."""
    if shutil.which("strace") is None:
        raise AssertionError("tests/faults needs strace: apt-get install strace")
    done = subprocess.run(["strace", "-f", "-qq", "-o", os.devnull, "true"], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"strace cannot trace here (ptrace forbidden?): {done.stderr.strip()}")


def prepare(operation: str, base: Path) -> Place:
    """Make the environment that ``operation`` starts from."""
    folder = Path(tempfile.mkdtemp(dir=base))
    site = make_environment(folder)
    if operation != "apply":
        apply_plan(make_plan(site))
    return Place(folder, site, snapshot(folder))


def finished(operation: str, base: Path) -> Snapshot:
    """Return the environment after an undisturbed ``operation``."""
    place = prepare(operation, base)
    assert run(operation, place.site) == 0
    return place.now()


def points(operation: str, site: Path) -> tuple[Point, ...]:
    """Run ``operation`` undisturbed in ``site`` and return each of its calls."""
    with tempfile.NamedTemporaryFile(mode="r", prefix="trace") as log:
        assert run(operation, site, "-o", log.name, "-e", f"trace={','.join(CALLS)}") == 0
        names = [line.split()[1].partition("(")[0] for line in log if "(" in line]
    seen: collections.Counter[str] = collections.Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(Point(operation, name, seen[name]))
    return tuple(found)


def run(operation: str, site: Path, *options: str) -> int:
    """Run the driver under strace and return its exit code."""
    tracer = ["strace", "-f", "-qq", *(options or ("-o", os.devnull, "-e", "trace=none"))]
    driver = [sys.executable, "-S", "-E", "-B", str(DRIVER), operation, str(site)]
    done = subprocess.run([*tracer, *driver], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 3, 6, 7, 129, 130, 143) or done.returncode < 0 or done.returncode > 128, done.stderr
    return done.returncode


def inject(point: Point, fault: str, site: Path, *, onwards: bool = False) -> int:
    """Run the point's operation with ``fault`` (``signal=KILL``, ``error=EIO``) there; return the exit code."""
    TALLY.counts[fault] += 1
    rule = f"inject={point.call}:{fault}:when={point.number}{'+' if onwards else ''}"
    # --seccomp-bpf is quicker, but under it strace 6.1 drops injected signals
    quick = ["--seccomp-bpf"] if fault.startswith("error=") else []
    return run(point.operation, site, *quick, "-o", os.devnull, "-e", f"trace={point.call}", "-e", rule)


def is_new(found: Snapshot, new: Snapshot) -> bool:
    """Return whether ``found`` is the finished tree: same bytes, same names; only the state's content may differ."""
    return public(found) == public(new) and found.keys() == new.keys()


def public(found: Snapshot) -> Snapshot:
    """Return a snapshot less the tool's own directory."""
    inner = {name.partition("site-packages/")[2] or name: entry for name, entry in found.items()}
    return without_state(inner)


def settle(place: Place, how: str) -> None:
    """Run the next command that a user might type."""
    commands: dict[str, Callable[[], object]] = {
        "recover": lambda: recover(place.site),
        "apply": lambda: (recover(place.site), apply_plan(make_plan(place.site))),
        "again": lambda: (recover(place.site), apply_plan(make_plan(place.site, MERGED_AGAIN))),
        "revert": lambda: revert(place.site),
    }
    commands[how]()


def says(place: Place) -> Status:
    """Return what ``status`` says."""
    return read_status(place.site)


def files_of(found: Snapshot) -> Snapshot:
    """Return files and links of the package, without empty folders that a last clean-up would remove."""
    return {name: entry for name, entry in public(found).items() if entry[0] != "folder"}


def everywhere(work: Callable[[Point], str | None], chosen: Sequence[Point]) -> None:
    """Run ``work`` at each point, on all cores; fail with its complaints, one a line."""
    with ThreadPoolExecutor(WORKERS) as pool:
        results = list(zip(chosen, pool.map(work, chosen), strict=True))
    complaints = [f"{p.operation} {p.call}#{p.number}: {complaint}" for p, complaint in results if complaint]
    assert not complaints, "\n".join(["", *complaints])


def sampled(found: Sequence[Point], every: int, *, whole: bool, start: int = 0) -> tuple[Point, ...]:
    """Return every ``every``-th point, or all of them."""
    return tuple(found) if whole else tuple(found[start::every])


def cleanup(place: Place) -> None:
    """Remove the place."""
    shutil.rmtree(place.folder, ignore_errors=True)
