"""Applying a plan: everything or nothing, twice is once, a second plan is one transaction."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from escha_oscar.disk import fsops
from escha_oscar.disk.layout import STATE_DIR
from escha_oscar.errors import ApplyError, DriftError, StoppedError, TargetError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.pristine import pristine_tree
from escha_oscar.installed.revert import revert
from escha_oscar.model import Change, PlannedFile, sha256
from escha_oscar.target.record import parse
from tests.support.environments import (
    ADDED,
    CACHE,
    FILES,
    LINKED,
    MERGED,
    MERGED_AGAIN,
    PLACED,
    POOL,
    RECORD,
    SHARED,
    condition,
    make_environment,
    make_plan,
    snapshot,
    without_state,
)  # fmt: skip


def test_every_planned_byte_is_on_disk_and_modes_are_kept(site: Path) -> None:
    summary = apply_plan(make_plan(site))
    assert {path: (site / path).read_bytes() for path in MERGED} == MERGED
    assert (site / POOL).stat().st_mode & 0o777 == 0o755
    assert set(summary.added) == {ADDED, PLACED}
    assert summary.shared == (SHARED,)
    assert summary.links == (LINKED,)


def test_links_are_replaced_and_never_written_through(site: Path, tmp_path: Path) -> None:
    apply_plan(make_plan(site))
    assert (tmp_path / "cache/linked.py").read_text() == FILES[LINKED]
    assert (tmp_path / "cache/shared.py").read_text() == FILES[SHARED]
    assert (site / SHARED).stat().st_nlink == 1
    assert not (site / LINKED).is_symlink()


def test_record_has_a_true_row_for_each_file_and_a_bare_row_for_each_state_file(site: Path) -> None:
    apply_plan(make_plan(site))
    rows = {entry.path: entry for entry in parse((site / RECORD).read_bytes())}
    assert all(rows[path].size == str(len(data)) for path, data in MERGED.items())
    state_files = {str(p.relative_to(site)) for p in (site / ".escha-oscar").rglob("*") if p.is_file()}
    assert {path for path in rows if path.startswith(".escha-oscar")} == state_files
    assert all(rows[path].digest == "" for path in state_files)


def test_the_same_plan_twice_writes_nothing(site: Path) -> None:
    apply_plan(make_plan(site))
    before = {path: path.lstat().st_mtime_ns for path in site.rglob("*")}
    assert apply_plan(make_plan(site)).already
    assert {path: path.lstat().st_mtime_ns for path in site.rglob("*") if path.name != "lock"} == {
        path: time for path, time in before.items() if path.name != "lock"
    }


def test_another_plan_replaces_the_first_and_the_first_originals_stay(site: Path) -> None:
    stock = snapshot(site)
    apply_plan(make_plan(site))
    summary = apply_plan(make_plan(site, MERGED_AGAIN))
    assert {path: (site / path).read_bytes() for path in MERGED_AGAIN} == MERGED_AGAIN
    assert summary.removed == (PLACED,)
    assert not (site / PLACED).parent.exists()
    assert (site / SHARED).read_text() == FILES[SHARED]
    revert(site)
    assert snapshot(site) == stock


def test_a_second_plan_equals_the_second_plan_alone(tmp_path: Path) -> None:
    alone, after_another = make_environment(tmp_path / "alone"), make_environment(tmp_path / "after")
    apply_plan(make_plan(alone, MERGED_AGAIN))
    apply_plan(make_plan(after_another))
    apply_plan(make_plan(after_another, MERGED_AGAIN))
    assert without_state(snapshot(after_another)) == without_state(snapshot(alone))


def test_planning_reads_originals_of_merged_files_and_nothing_of_added_ones(site: Path) -> None:
    apply_plan(make_plan(site))
    tree = pristine_tree(site)
    for path, data in FILES.items() - {CACHE: FILES[CACHE]}.items():
        assert tree.read(path) == (data.encode() if isinstance(data, str) else data)
    assert tree.read(PLACED) is None
    assert not tree.exists(PLACED)
    assert tree.exists("sglang/srt")


def test_a_failing_verification_puts_everything_back(site: Path) -> None:
    stock = snapshot(site)

    def refuse(root: Path) -> None:
        assert (root / POOL).read_bytes() == MERGED[POOL]
        raise TargetError("symbol missing", path=POOL, line=3)

    with pytest.raises(ApplyError, match="symbol missing") as caught:
        apply_plan(make_plan(site), verify=refuse)
    assert caught.value.exit_code == 6
    assert snapshot(site) == stock


def test_a_bug_in_verification_puts_everything_back_too(site: Path) -> None:
    stock = snapshot(site)

    def broken(root: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        apply_plan(make_plan(site), verify=broken)
    assert snapshot(site) == stock


def test_a_file_that_changed_since_the_plan_is_refused(site: Path) -> None:
    plan = make_plan(site)
    (site / POOL).write_bytes(b"edited\n")
    before = snapshot(site)
    with pytest.raises(DriftError, match=POOL):
        apply_plan(plan)
    assert snapshot(site) == before


def test_a_file_edited_after_integration_is_not_overwritten(site: Path) -> None:
    apply_plan(make_plan(site))
    (site / POOL).write_bytes(b"edited\n")
    before = snapshot(site)
    with pytest.raises(DriftError, match="changed since the integration"):
        apply_plan(make_plan(site, MERGED_AGAIN))
    assert snapshot(site) == before


def test_a_wheel_replaced_while_verifying_is_not_overwritten_with_old_originals(site: Path) -> None:
    def reinstall(root: Path) -> None:
        (root / POOL).write_bytes(b"the new wheel\n")
        (root / RECORD).write_bytes(b"the new RECORD,,\n")

    with pytest.raises(ApplyError) as caught:
        apply_plan(make_plan(site), verify=reinstall)
    assert POOL in (caught.value.found or "")
    assert (site / POOL).read_bytes() == b"the new wheel\n"
    assert (site / RECORD).read_bytes() == b"the new RECORD,,\n"
    assert not (site / ".escha-oscar").exists()


@pytest.mark.parametrize("path", ["sglang/../../evil.py", "/etc/evil.py", "evil.pth", "sglang/x.so", "sitecustomize.py",
                                  "sglang\\evil.py", "sglang/a\x1b[31m.py", "sglang//a.py", "other/a.py"])  # fmt: skip
def test_a_plan_that_leaves_the_package_is_refused(site: Path, path: str) -> None:
    stock = snapshot(site)
    plan = make_plan(site)
    hostile = replace(plan, files=(*plan.files, PlannedFile(path, Change.PLACE, None, b"evil")))
    with pytest.raises(TargetError):
        apply_plan(hostile)
    assert snapshot(site) == stock


def test_a_folder_that_is_a_link_is_not_followed(site: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (site / "sglang/srt/mem_cache").rename(outside)
    (site / "sglang/srt/mem_cache").symlink_to(outside)
    before, there = snapshot(site), snapshot(outside)
    with pytest.raises(TargetError, match="symbolic link"):
        apply_plan(make_plan(site))
    assert (snapshot(site), snapshot(outside)) == (before, there)


def test_a_directory_in_place_of_a_file_is_refused(site: Path) -> None:
    (site / POOL).unlink()
    (site / POOL).mkdir()
    before = snapshot(site)
    with pytest.raises(TargetError, match="not a regular file"):
        apply_plan(make_plan(site))
    assert snapshot(site) == before


def test_too_little_space_is_refused_before_the_first_change(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = snapshot(site)
    monkeypatch.setattr(fsops.Root, "free_bytes", lambda self: 1000)
    with pytest.raises(ApplyError, match="not enough space") as caught:
        apply_plan(make_plan(site))
    assert caught.value.found == "1000 bytes free"
    assert snapshot(site) == stock


def test_new_files_and_folders_take_the_permissions_of_their_folder_whatever_the_umask(site: Path) -> None:
    (site / "sglang/srt/layers").chmod(0o2775)
    mask = os.umask(0o077)
    try:
        apply_plan(make_plan(site))
    finally:
        os.umask(mask)
    assert (site / PLACED).parent.stat().st_mode & 0o7777 == 0o2775
    assert (site / PLACED).stat().st_mode & 0o7777 == 0o664


@pytest.mark.parametrize(
    ("mode", "folder", "file"),
    [
        (0o755, 0o755, 0o644),
        (0o775, 0o755, 0o644),
        (0o2777, 0o755, 0o644),
        (0o750, 0o750, 0o640),
        (0o700, 0o700, 0o600),
    ],
)
def test_the_record_is_readable_to_whoever_may_read_site_packages_and_writable_to_its_owner_alone(
    site: Path, mode: int, folder: int, file: int
) -> None:
    def look(root: Path) -> None:
        seen.update({name: _mode(root / STATE_DIR / name) for name in ("journal", "lock", "undo")})

    seen: dict[str, int] = {}
    site.chmod(mode)
    apply_plan(make_plan(site))
    apply_plan(make_plan(site, MERGED_AGAIN), verify=look)
    assert seen == {"journal": file, "lock": 0o600, "undo": 0o700}
    state = site / STATE_DIR
    assert [_mode(path) for path in (state, state / "originals", state / "state.json")] == [folder, folder, file]


@pytest.mark.parametrize(
    ("mode", "above", "backup"),
    [
        (0o644, 0o755, 0o644),
        (0o755, 0o755, 0o644),
        (0o444, 0o711, 0o644),
        (0o640, 0o755, 0o600),
        (0o604, 0o755, 0o600),
        (0o600, 0o755, 0o600),
        (0o644, 0o750, 0o600),
    ],
)
def test_a_backup_is_never_open_wider_than_its_original(site: Path, mode: int, above: int, backup: int) -> None:
    (site / POOL).chmod(mode)
    (site / POOL).parent.chmod(above)
    original = sha256((site / POOL).read_bytes())
    apply_plan(make_plan(site))
    assert _mode(site / STATE_DIR / "originals" / original) == backup


def test_a_backup_of_what_a_link_leads_to_is_judged_there(site: Path) -> None:
    original = sha256((site / LINKED).read_bytes())
    (site / LINKED).resolve().parent.chmod(0o700)
    apply_plan(make_plan(site))
    assert _mode(site / STATE_DIR / "originals" / original) == 0o600


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_read_only_file_is_replaced_and_stays_read_only(site: Path) -> None:
    (site / POOL).chmod(0o444)
    stock = snapshot(site)
    apply_plan(make_plan(site))
    assert (site / POOL).stat().st_mode & 0o777 == 0o444
    revert(site)
    assert snapshot(site) == stock


def test_nothing_to_write_says_so(site: Path) -> None:
    stock = snapshot(site)
    assert apply_plan(make_plan(site, {})).already
    assert snapshot(site) == stock
    assert condition(site).value == "pristine"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_undone_between_two_steps(site: Path, number: signal.Signals) -> None:
    stock, before = snapshot(site), signal.getsignal(number)

    def impatient(root: Path) -> None:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedError, match=number.name) as caught:
        apply_plan(make_plan(site), verify=impatient)
    assert caught.value.exit_code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}[number]
    assert snapshot(site) == stock
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_ignored(site: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        apply_plan(make_plan(site), verify=lambda root: signal.raise_signal(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert condition(site).value == "integrated"


def test_it_works_outside_the_main_thread(site: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(apply_plan, make_plan(site)).result().already


def test_metadata_that_lies_elsewhere_is_refused(site: Path, tmp_path: Path) -> None:
    plan = make_plan(site)
    with pytest.raises(TargetError, match="metadata lies elsewhere"):
        apply_plan(replace(plan, target=replace(plan.target, dist_info=tmp_path)))


def test_a_distribution_without_record_is_refused(site: Path) -> None:
    plan = make_plan(site)
    (site / RECORD).unlink()
    before = snapshot(site)
    with pytest.raises(TargetError, match="has no RECORD"):
        apply_plan(plan)
    assert snapshot(site) == before
