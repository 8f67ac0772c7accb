"""One writer at a time: the second waits, and says for whom."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from escha_oscar.disk import lock
from escha_oscar.disk.fsops import Root
from escha_oscar.disk.layout import LOCK_FILE
from escha_oscar.errors import LockedError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.pristine import pristine_tree
from escha_oscar.installed.revert import revert
from escha_oscar.progress import NoProgress
from tests.support.environments import condition, make_environment, make_plan, snapshot

_HOLD = (
    "import fcntl, os, sys\n"
    "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644); fcntl.flock(fd, fcntl.LOCK_EX)\n"
    "print('held', flush=True); sys.stdin.read()\n"
)


class Spoken(NoProgress):
    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)


def _holder(path: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _HOLD, str(path)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def _release(process: subprocess.Popen[str]) -> None:
    process.communicate("", timeout=20)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_environment(tmp_path, venv=True)


def test_the_environments_own_lock_is_honoured_and_its_holder_named(site: Path, tmp_path: Path) -> None:
    before, process = snapshot(site), _holder(tmp_path / "venv/.lock")
    try:
        with pytest.raises(LockedError, match=f"pid {process.pid} ") as caught:
            apply_plan(make_plan(site), wait_s=0.2)
        assert caught.value.exit_code == 3
        assert snapshot(site) == before
    finally:
        _release(process)


def test_waiting_ends_when_the_holder_does(site: Path, tmp_path: Path) -> None:
    process, spoken = _holder(tmp_path / "venv/.lock"), Spoken()
    threading.Timer(0.5, _release, [process]).start()
    apply_plan(make_plan(site), progress=spoken, wait_s=20)
    assert any(f"pid {process.pid} " in step for step in spoken.steps)
    assert condition(site).value == "integrated"


def test_a_killed_holder_leaves_no_lock_behind(site: Path, tmp_path: Path) -> None:
    process = _holder(tmp_path / "venv/.lock")
    process.kill()
    process.communicate(timeout=20)
    apply_plan(make_plan(site), wait_s=1)


def test_our_own_lock_excludes_revert_during_verification(site: Path) -> None:
    def meanwhile(root: Path) -> None:
        with pytest.raises(LockedError, match="pid"):
            revert(root, wait_s=0.1)

    apply_plan(make_plan(site), verify=meanwhile)


def test_planning_while_another_process_writes_is_refused(site: Path) -> None:
    def meanwhile(root: Path) -> None:
        with pytest.raises(LockedError, match="is changing this environment: pid"):
            pristine_tree(root)

    apply_plan(make_plan(site), verify=meanwhile)
    assert pristine_tree(site).read("sglang/srt/environ.py") == b"FIELDS = ['a']\n"


def test_the_lock_is_the_same_through_a_linked_path(site: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(tmp_path / "venv")
    other = tmp_path / "linked" / site.relative_to(tmp_path / "venv")

    def meanwhile(root: Path) -> None:
        with pytest.raises(LockedError):
            revert(other, wait_s=0.1)

    apply_plan(make_plan(other), verify=meanwhile)
    assert condition(site).value == "integrated"
    assert apply_plan(make_plan(site)).already


def test_a_lock_file_that_was_removed_while_we_waited_is_taken_anew(tmp_path: Path) -> None:
    root = Root(tmp_path)
    with lock.exclusive(root, NoProgress()):
        held = os.open(root.full(LOCK_FILE), os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.3, lambda: (root.remove(LOCK_FILE), os.close(held))).start()
    with lock.exclusive(root, NoProgress(), wait_s=20):
        assert root.full(LOCK_FILE).exists()
        assert lock.holder(root) is not None
    assert lock.holder(root) is None


def test_two_integrations_and_a_revert_at_once_end_in_one_of_their_trees(tmp_path: Path) -> None:
    driver = Path(__file__).parents[1] / "faults/driver.py"
    ends = {}
    for name, operations in {"apply": ["apply"], "again": ["again"], "stock": []}.items():
        place = make_environment(tmp_path / name)
        for operation in operations:
            subprocess.run([sys.executable, "-B", str(driver), operation, str(place)], check=True)
        ends[name] = {path: entry for path, entry in snapshot(place).items() if not path.startswith(".escha-oscar")}
    for turn in range(4):
        place = make_environment(tmp_path / f"race{turn}")
        racers = [
            subprocess.Popen([sys.executable, "-B", str(driver), operation, str(place)], stderr=subprocess.PIPE)
            for operation in ("apply", "again", "revert", "apply")
        ]
        for racer in racers:
            _, said = racer.communicate(timeout=60)
            assert racer.returncode == 0, said
        found = {path: entry for path, entry in snapshot(place).items() if not path.startswith(".escha-oscar")}
        assert found in ends.values()
        assert condition(place).value in ("integrated", "pristine")
