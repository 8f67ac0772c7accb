"""Kill, or fail, integrate and revert at every system call that changes anything: the tree ends all old or all new."""

from __future__ import annotations

from pathlib import Path

import pytest

from escha_oscar.installed.status import Condition
from tests.faults import matrix
from tests.faults.matrix import OPERATIONS, Place, Point, Snapshot

_NEXT = ("recover", "apply", "revert", "again")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_kill_before_any_call_leaves_old_or_new(operation: str, tmp_path: Path, stock: Snapshot) -> None:
    found = matrix.points(operation, matrix.prepare(operation, tmp_path).site)
    new = matrix.finished(operation, tmp_path)

    def killed(point: Point) -> str | None:
        place = matrix.prepare(operation, tmp_path)
        code = matrix.inject(point, "signal=KILL", place.site)
        complaint = None if code in (-9, 137) else f"exit {code}, not killed"
        complaint = complaint or _honest(place, new)
        matrix.settle(place, "recover")
        complaint = complaint or _old_or_new(place, new)
        matrix.cleanup(place)
        return complaint

    matrix.everywhere(killed, found)
    assert len(found) >= 60


@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_a_kill_the_next_command_does_its_whole_work(
    operation: str, tmp_path: Path, stock: Snapshot, whole: bool
) -> None:
    results = {"apply": matrix.finished("apply", tmp_path), "again": matrix.finished("again", tmp_path)}
    found = matrix.sampled(matrix.points(operation, matrix.prepare(operation, tmp_path).site), 3, whole=whole)
    following = {point: _NEXT[1 + index % 3] for index, point in enumerate(found)}

    def killed(point: Point) -> str | None:
        place = matrix.prepare(operation, tmp_path)
        matrix.inject(point, "signal=KILL", place.site)
        matrix.settle(place, following[point])
        if following[point] == "revert":
            complaint = None if place.now() == stock else "revert did not end in the stock tree"
        else:
            complaint = None if matrix.is_new(place.now(), results[following[point]]) else f"not {following[point]}"
        matrix.cleanup(place)
        return complaint

    matrix.everywhere(killed, found)


@pytest.mark.parametrize("fault", ["error=ENOSPC", "error=EIO"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_failing_call_is_undone_or_harmless(operation: str, fault: str, tmp_path: Path, whole: bool) -> None:
    start = 0 if fault == "error=ENOSPC" else 1  # in the sample, each call fails in one of the two ways
    every = matrix.points(operation, matrix.prepare(operation, tmp_path).site)
    found = matrix.sampled(every, 2, whole=whole, start=start)
    new = matrix.finished(operation, tmp_path)

    def failed(point: Point) -> str | None:
        place = matrix.prepare(operation, tmp_path)
        code = matrix.inject(point, fault, place.site)
        complaint = _consistent(place, code, new)
        matrix.cleanup(place)
        return complaint

    matrix.everywhere(failed, found)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_disk_that_stays_full_from_any_write_on_is_undone(operation: str, tmp_path: Path) -> None:
    found = [p for p in matrix.points(operation, matrix.prepare(operation, tmp_path).site) if p.call == "write"]
    new = matrix.finished(operation, tmp_path)

    def full(point: Point) -> str | None:
        place = matrix.prepare(operation, tmp_path)
        code = matrix.inject(point, "error=ENOSPC", place.site, onwards=True)
        complaint = f"exit {code}" if code not in (0, 6) else _consistent(place, code, new)
        matrix.cleanup(place)
        return complaint

    matrix.everywhere(full, found)


@pytest.mark.parametrize(("signal", "code"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_signal_at_any_call_is_undone_or_too_late(
    operation: str, signal: str, code: int, tmp_path: Path, whole: bool
) -> None:
    found = matrix.sampled(matrix.points(operation, matrix.prepare(operation, tmp_path).site), 4, whole=whole)
    new = matrix.finished(operation, tmp_path)

    def stopped(point: Point) -> str | None:
        place = matrix.prepare(operation, tmp_path)
        got = matrix.inject(point, f"signal={signal}", place.site)
        complaint = None
        if got == 0:
            complaint = None if matrix.is_new(place.now(), new) else "exit 0, but not the new tree"
        elif got not in (code, 128 - code):
            complaint = f"exit {got}"
        else:
            matrix.settle(place, "recover")
            complaint = None if place.now() == place.old else "stopped, but not the old tree"
        matrix.cleanup(place)
        return complaint

    matrix.everywhere(stopped, found)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_recovery_may_be_killed_three_times_at_any_call(operation: str, tmp_path: Path, whole: bool) -> None:
    cut = _late_rename(matrix.points(operation, matrix.prepare(operation, tmp_path).site))
    cut_off = _cut_off(cut, tmp_path)
    found = matrix.sampled(matrix.points("recover", cut_off.site), 2, whole=whole)
    assert len(found) >= 15

    def killed(point: Point) -> str | None:
        place = _cut_off(cut, tmp_path)
        for _ in range(3):
            matrix.inject(point, "signal=KILL", place.site)
        matrix.settle(place, "recover")
        complaint = None if place.now() == place.old else "not the old tree"
        matrix.cleanup(place)
        return complaint

    matrix.everywhere(killed, found)


@pytest.mark.parametrize("fault", ["error=ENOSPC", "error=EIO"])
def test_recovery_that_fails_can_be_run_again(fault: str, tmp_path: Path, whole: bool) -> None:
    cut = _late_rename(matrix.points("apply", matrix.prepare("apply", tmp_path).site))
    found = matrix.sampled(matrix.points("recover", _cut_off(cut, tmp_path).site), 2, whole=whole)

    def failed(point: Point) -> str | None:
        place = _cut_off(cut, tmp_path)
        code = matrix.inject(point, fault, place.site)
        matrix.settle(place, "recover")
        complaint = None if code in (0, 6, 7) else f"exit {code}"
        complaint = complaint or (None if place.now() == place.old else "not the old tree")
        matrix.cleanup(place)
        return complaint

    matrix.everywhere(failed, found)


def _late_rename(found: tuple[Point, ...]) -> Point:
    """Return the rename at which about half of the targets are new."""
    renames = [point for point in found if point.call == "renameat"]
    return renames[-4]


def _cut_off(cut: Point, base: Path) -> Place:
    place = matrix.prepare(cut.operation, base)
    matrix.inject(cut, "signal=KILL", place.site)
    assert matrix.says(place).condition is Condition.INTERRUPTED
    return place


def _honest(place: Place, new: Snapshot) -> str | None:
    """Complain where ``status`` calls a tree whole that is not."""
    said = matrix.says(place)
    if said.condition is Condition.INTERRUPTED:
        return None
    view = matrix.files_of if said.detail else matrix.public
    was = Condition.INTEGRATED if any(name.endswith("state.json") for name in place.old) else Condition.PRISTINE
    if said.condition is was and view(place.now()) == view(place.old):
        return None
    return None if view(place.now()) == view(new) else f"status says {said.condition.value}, the tree is a mix"


def _old_or_new(place: Place, new: Snapshot) -> str | None:
    now = place.now()
    return (
        None if now == place.old or matrix.is_new(now, new) else f"neither old nor new: {_differences(now, place.old)}"
    )


def _consistent(place: Place, code: int, new: Snapshot) -> str | None:
    """Check tree and exit code against each other: 0 is new, 6 is old, 7 is old after ``recover``."""
    if code == 0:
        whole = matrix.files_of(place.now()) == matrix.files_of(new)
        matrix.settle(place, "recover")
        return None if whole and matrix.is_new(place.now(), new) else "exit 0, but not the new tree"
    if code == 7:
        matrix.settle(place, "recover")
    elif code != 6:
        return f"exit {code}"
    now = place.now()
    return None if now == place.old else f"exit {code}, but not the old tree: {_differences(now, place.old)}"


def _differences(now: Snapshot, old: Snapshot) -> list[str]:
    return sorted(name for name in now.keys() | old.keys() if now.get(name) != old.get(name))[:6]
