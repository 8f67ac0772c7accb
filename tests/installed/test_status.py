"""Status: reads, never writes, and never calls a mixed tree whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from escha_oscar.errors import RecoveryError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.pristine import pristine_tree
from escha_oscar.installed.standing import FileCondition
from escha_oscar.installed.status import Condition, read_status
from tests.support.environments import (
    ENVIRON,
    INFO,
    MERGED,
    PLACED,
    POOL,
    RECORD,
    SHARED,
    make_plan,
    snapshot,
)  # fmt: skip

COPIED = "sglang/QuantKernel/oscar_rotation_clip_int2_kv.py"
JOURNAL = ".escha-oscar/journal"


def test_a_fresh_wheel_is_pristine(site: Path) -> None:
    assert read_status(site).condition is Condition.PRISTINE


def _edit(site: Path) -> None:
    (site / ENVIRON).write_bytes(b"edited\n")


def _merge_by_hand(site: Path) -> None:
    (site / COPIED).parent.mkdir()
    (site / COPIED).write_bytes(b"def store(): ...\n")


def _lose_the_state(site: Path) -> None:
    apply_plan(make_plan(site))
    shutil.rmtree(site / ".escha-oscar")


def _lose_the_owner(site: Path) -> None:
    shutil.rmtree(site / INFO)


@pytest.mark.parametrize(
    ("work", "named", "detail"),
    [
        (_edit, [ENVIRON], "mapped files that differ from the wheel's RECORD: 1"),
        (_merge_by_hand, [COPIED], "mapped files that differ from the wheel's RECORD: 1"),
        (_lose_the_state, [], "RECORD lists an integration, but its state is gone"),
        (_lose_the_owner, [], "not comparable with the wheel: sglang/ belongs to no distribution"),
    ],
    ids=["edited", "merged by hand", "state lost", "no owner"],
)
def test_what_is_not_the_wheel_by_its_record_is_not_called_pristine(
    site: Path, work: Callable[[Path], None], named: list[str], detail: str
) -> None:
    work(site)
    found = read_status(site)
    assert (found.condition, found.detail) == (Condition.FOREIGN, detail)
    assert [file.path for file in found.deviating] == named


def test_an_edit_outside_of_the_mapping_is_no_concern(site: Path) -> None:
    (site / SHARED).unlink()
    (site / "sglang/__init__.py").write_bytes(b"edited\n")
    assert read_status(site).condition is Condition.PRISTINE


def test_an_integration_says_where_it_came_from(site: Path) -> None:
    apply_plan(make_plan(site, commit="b" * 40))
    found = read_status(site)
    assert found.condition is Condition.INTEGRATED
    assert found.source is not None
    assert (found.source.commit, found.kernels, found.version) == ("b" * 40, "native", "1.0.2+qwen3moe")
    assert found.deviating == ()


def test_an_edited_and_a_missing_file_are_named(site: Path) -> None:
    apply_plan(make_plan(site))
    (site / POOL).write_bytes(b"edited\n")
    (site / PLACED).unlink()
    found = read_status(site)
    assert found.condition is Condition.MODIFIED
    assert {file.path: file.condition for file in found.deviating} == {
        POOL: FileCondition.EDITED,
        PLACED: FileCondition.MISSING,
    }


def test_a_wheel_installed_over_it_is_reinstalled_even_where_added_files_remain(site: Path) -> None:
    apply_plan(make_plan(site))
    for path in (*MERGED, RECORD):
        if path != PLACED:
            (site / path).unlink()
            (site / path).write_bytes(b"new\n")
    assert read_status(site).condition is Condition.REINSTALLED


def test_status_changes_nothing_and_is_quick(site: Path) -> None:
    apply_plan(make_plan(site))
    before = {path: path.lstat().st_mtime_ns for path in site.rglob("*")}
    begun = time.perf_counter()
    read_status(site)
    assert time.perf_counter() - begun < 2
    assert {path: path.lstat().st_mtime_ns for path in site.rglob("*")} == before


def test_a_run_in_progress_is_not_called_interrupted(site: Path) -> None:
    def look(root: Path) -> None:
        seen.append(read_status(root).condition)

    seen: list[Condition] = []
    apply_plan(make_plan(site), verify=look)
    assert seen == [Condition.RUNNING]


def test_a_damaged_journal_needs_recovery_and_nothing_is_guessed(site: Path) -> None:
    apply_plan(make_plan(site))
    (site / JOURNAL).write_bytes(b"torn")
    before = snapshot(site)
    assert read_status(site).condition is Condition.INTERRUPTED
    for work in (pristine_tree, lambda root: apply_plan(make_plan(root))):
        with pytest.raises(RecoveryError, match="damaged"):
            work(site)
    assert snapshot(site) == before


def test_status_in_a_fresh_process_takes_under_two_seconds(site: Path) -> None:
    apply_plan(make_plan(site))
    begun = time.perf_counter()
    words = [sys.executable, "-m", "escha_oscar", "status", "--json", "--site-packages", str(site)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["condition"] == "integrated"
    assert time.perf_counter() - begun < 2
