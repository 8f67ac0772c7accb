"""Reverting: exact bytes, modes and link types; edits are never lost; a newer wheel is never overwritten."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from escha_oscar.errors import DriftError, TargetError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.revert import Outcome, revert
from tests.support.environments import (
    ENVIRON,
    LINKED,
    MERGED,
    MERGED_AGAIN,
    PLACED,
    POOL,
    RECORD,
    condition,
    make_plan,
    snapshot,
)  # fmt: skip


def test_everything_comes_back(site: Path) -> None:
    stock, times = snapshot(site), _times(site)
    apply_plan(make_plan(site))
    done = revert(site)
    assert done.outcome is Outcome.REVERTED
    assert snapshot(site) == stock
    assert _times(site) == times
    assert (site / LINKED).is_symlink()


def test_a_second_revert_has_nothing_to_do(site: Path) -> None:
    apply_plan(make_plan(site))
    revert(site)
    assert revert(site).outcome is Outcome.NOTHING


def test_an_edited_file_is_refused_and_nothing_is_half_reverted(site: Path) -> None:
    apply_plan(make_plan(site))
    (site / POOL).write_bytes(b"edited\n")
    before = snapshot(site)
    with pytest.raises(DriftError, match=POOL) as caught:
        revert(site)
    assert "--force" in (caught.value.hint or "")
    assert snapshot(site) == before


def test_force_keeps_a_copy_of_the_edit(site: Path) -> None:
    stock = snapshot(site)
    apply_plan(make_plan(site))
    (site / POOL).write_bytes(b"edited\n")
    (site / ENVIRON).unlink()
    done = revert(site, force=True)
    assert [(site / path).read_bytes() for path in done.saved] == [b"edited\n"]
    shutil.rmtree(site / ".escha-oscar")
    assert snapshot(site) == stock


def test_integration_works_again_after_a_forced_revert(site: Path) -> None:
    apply_plan(make_plan(site))
    (site / POOL).write_bytes(b"edited\n")
    revert(site, force=True)
    apply_plan(make_plan(site))
    assert (site / POOL).read_bytes() == MERGED[POOL]


def test_a_wheel_installed_over_the_integration_is_left_alone(site: Path) -> None:
    apply_plan(make_plan(site))
    _install_over(site)
    done = revert(site)
    assert done.outcome is Outcome.REINSTALLED
    assert (site / POOL).read_bytes() == b"new wheel memory_pool.py\n"
    assert not (site / PLACED).exists()
    assert not (site / ".escha-oscar").exists()


def test_a_wheel_installed_over_the_integration_can_be_integrated(site: Path) -> None:
    apply_plan(make_plan(site))
    _install_over(site)
    assert condition(site).value == "reinstalled"
    installed = {path: (site / path).read_bytes() for path in MERGED if path != PLACED and (site / path).exists()}
    plan = make_plan(site, {POOL: b"merged into the new wheel\n", PLACED: MERGED[PLACED]})
    with pytest.raises(DriftError):
        apply_plan(plan)
    files = tuple(
        type(file)(file.path, file.change, installed.get(file.path), file.after)
        for file in plan.files
    )  # fmt: skip
    apply_plan(type(plan)(plan.target, plan.source, plan.kernels, files))
    assert condition(site).value == "integrated"
    revert(site)
    assert (site / POOL).read_bytes() == b"new wheel memory_pool.py\n"
    assert not (site / PLACED).exists()


def test_a_partly_replaced_wheel_is_refused_even_with_force(site: Path) -> None:
    apply_plan(make_plan(site))
    (site / RECORD).write_bytes(b"another RECORD,,\n")
    before = snapshot(site)
    with pytest.raises(DriftError, match="partly installed anew"):
        revert(site, force=True)
    assert snapshot(site) == before


def test_a_damaged_backup_is_refused_before_anything_changes(site: Path) -> None:
    apply_plan(make_plan(site))
    backup = next((site / ".escha-oscar/originals").iterdir())
    backup.write_bytes(backup.read_bytes() + b"x")
    before = snapshot(site)
    with pytest.raises(TargetError, match="missing or was altered"):
        revert(site)
    assert snapshot(site) == before


def test_folders_of_ours_that_hold_something_else_stay(site: Path) -> None:
    apply_plan(make_plan(site))
    (site / PLACED).with_name("notes.txt").write_text("mine")
    revert(site)
    assert (site / PLACED).with_name("notes.txt").read_text() == "mine"
    assert not (site / PLACED).exists()


def test_revert_after_two_plans_goes_back_to_the_wheel(site: Path) -> None:
    stock = snapshot(site)
    for plan in (MERGED, MERGED_AGAIN, MERGED):
        apply_plan(make_plan(site, plan))
    revert(site)
    assert snapshot(site) == stock


def _install_over(site: Path) -> None:
    """Write other bytes over every file the wheel owns, as an installer that knows nothing of us."""
    for path in (*(path for path in MERGED if path != PLACED), RECORD):
        (site / path).unlink(missing_ok=True)
        (site / path).write_bytes(f"new wheel {Path(path).name}\n".encode())
    (site / RECORD).write_bytes(b"sglang/__init__.py,,\n")


def _times(site: Path) -> dict[str, int]:
    return {str(p.relative_to(site)): p.lstat().st_mtime_ns for p in site.rglob("*.py") if not p.is_symlink()}
