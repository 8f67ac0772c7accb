"""An overlay is a whole shadow tree; the installation keeps every byte."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from escha_oscar.disk import fsops
from escha_oscar.errors import ApplyError, DriftError, TargetError, UsageError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.overlay import write_overlay
from escha_oscar.installed.overlay_marker import MARKER
from escha_oscar.installed.standing import FileCondition
from escha_oscar.installed.status import Condition, read_status
from tests.support.environments import (
    CACHE,
    FILES,
    MERGED,
    MERGED_AGAIN,
    POOL,
    SHARED,
    make_plan,
    snapshot,
)


def test_it_is_whole_and_merged_and_shares_nothing(site: Path, tmp_path: Path) -> None:
    before = snapshot(site)
    dest = write_overlay(make_plan(site), tmp_path / "overlay")
    expected = {**{path: data.encode() if isinstance(data, str) else data for path, data in FILES.items()}, **MERGED}
    expected.pop(CACHE)
    found = {str(p.relative_to(dest)): p.read_bytes() for p in dest.rglob("*") if p.is_file()}
    found.pop(MARKER)
    assert found == expected
    assert all(not p.is_symlink() and p.stat().st_nlink == 1 for p in dest.rglob("*") if p.is_file())
    assert snapshot(site) == before
    assert (dest / SHARED).stat().st_ino != (site / SHARED).stat().st_ino


def test_a_fresh_interpreter_imports_from_it(site: Path, tmp_path: Path) -> None:
    dest = write_overlay(make_plan(site), tmp_path / "overlay")
    program = "import sglang.srt.mem_cache.memory_pool as m; print(m.pool(), m.__file__)"
    done = subprocess.run(
        [sys.executable, "-B", "-c", program],
        env={"PYTHONPATH": f"{dest}{os.pathsep}{site}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["int2", str(dest / "sglang/srt/mem_cache/memory_pool.py")]


def test_status_knows_it(site: Path, tmp_path: Path) -> None:
    found = read_status(write_overlay(make_plan(site), tmp_path / "overlay"))
    assert found.condition is Condition.OVERLAY
    assert str(site) in found.detail


def test_an_older_overlay_is_replaced(site: Path, tmp_path: Path) -> None:
    write_overlay(make_plan(site), tmp_path / "overlay")
    dest = write_overlay(make_plan(site, MERGED_AGAIN), tmp_path / "overlay")
    assert (dest / "sglang/__init__.py").read_bytes() == MERGED_AGAIN["sglang/__init__.py"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "overlay", "site-packages"]


@pytest.mark.parametrize("where", ["site-packages", "site-packages/inner", ".", "taken", "file", "link"])
def test_a_folder_that_is_something_else_is_refused(site: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    before = snapshot(tmp_path)
    with pytest.raises(UsageError):
        write_overlay(make_plan(site), tmp_path / where)
    assert snapshot(tmp_path) == before


def test_over_an_integrated_installation_it_is_the_same_as_over_a_fresh_one(site: Path, tmp_path: Path) -> None:
    fresh = snapshot(write_overlay(make_plan(site, MERGED_AGAIN), tmp_path / "fresh"))
    apply_plan(make_plan(site))
    dest = write_overlay(make_plan(site, MERGED_AGAIN), tmp_path / "overlay")
    found = {name: entry for name, entry in snapshot(dest).items() if entry[0] == "file"}
    assert found == {name: entry for name, entry in fresh.items() if entry[0] == "file"}


def test_an_empty_folder_will_do(site: Path, tmp_path: Path) -> None:
    (tmp_path / "overlay").mkdir()
    assert read_status(write_overlay(make_plan(site), tmp_path / "overlay")).condition is Condition.OVERLAY


def test_a_failing_write_leaves_nothing_behind(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(tmp_path)

    def full(path: Path, data: bytes, *, mode: int | None = None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(fsops, "atomic_write", full)
    with pytest.raises(ApplyError, match="no overlay was written"):
        write_overlay(make_plan(site), tmp_path / "overlay")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"schema_version": 2}', b"\xff"])
def test_a_damaged_marker_is_refused_by_name(site: Path, tmp_path: Path, data: bytes) -> None:
    dest = write_overlay(make_plan(site), tmp_path / "overlay")
    (dest / MARKER).write_bytes(data)
    with pytest.raises(TargetError, match="marker is damaged"):
        read_status(dest)


@pytest.mark.parametrize("path", [POOL, "sglang/srt/__init__.py"])
def test_an_edited_overlay_is_noticed_and_kept_unless_forced(site: Path, tmp_path: Path, path: str) -> None:
    dest = write_overlay(make_plan(site), tmp_path / "overlay")
    (dest / path).write_text("mine\n")
    assert [(file.path, file.condition) for file in read_status(dest).deviating] == [(path, FileCondition.EDITED)]
    before = snapshot(tmp_path)
    with pytest.raises(DriftError, match=path):
        write_overlay(make_plan(site), dest)
    assert snapshot(tmp_path) == before
    write_overlay(make_plan(site), dest, force=True)
    assert not read_status(dest).deviating


def test_a_file_that_is_gone_from_the_overlay_is_noticed(site: Path, tmp_path: Path) -> None:
    dest = write_overlay(make_plan(site), tmp_path / "overlay")
    (dest / POOL).unlink()
    assert [(file.path, file.condition) for file in read_status(dest).deviating] == [(POOL, FileCondition.MISSING)]


def test_a_disk_without_room_is_refused_before_the_first_byte(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsops.Root, "free_bytes", lambda self: 1000)
    before = snapshot(tmp_path)
    with pytest.raises(ApplyError, match="not enough space; no overlay was written") as caught:
        write_overlay(make_plan(site), tmp_path / "overlay")
    assert caught.value.found == "1000 bytes free"
    assert snapshot(tmp_path) == before


def test_a_copy_that_fails_names_the_first_file_alone(site: Path, tmp_path: Path) -> None:
    (site / "sglang/srt/a.py").symlink_to("nowhere-a")
    (site / "sglang/srt/b.py").symlink_to("nowhere-b")
    with pytest.raises(ApplyError, match="no overlay was written") as caught:
        write_overlay(make_plan(site), tmp_path / "overlay")
    assert len(str(caught.value)) < 300
