"""Disks and permissions that refuse: nothing changes, and the message names the place and the way out."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import matrix
from tests.support.environments import MERGED, POOL, condition, make_environment, snapshot

NOBODY = 65534


def _drive(operation: str, site: Path, *, uid: int | None = None, file_size: int | None = None) -> tuple[int, str]:
    def limit() -> None:
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    command = [sys.executable, "-S", "-E", "-B", str(matrix.DRIVER), operation, str(site)]
    words = [str(uid)] if uid is not None else []
    done = subprocess.run([*command, *words], capture_output=True, text=True, preexec_fn=limit)
    matrix.TALLY.counts["limit=refusing disks"] += 1
    return done.returncode, done.stderr


@pytest.mark.parametrize("bytes_allowed", [0, 10, 60, 200, 400, 700, 900, 1200, 1500, 2000, 3000])
@pytest.mark.parametrize("operation", ["apply", "again", "revert"])
def test_a_file_size_limit_is_undone(operation: str, bytes_allowed: int, tmp_path: Path) -> None:
    place = matrix.prepare(operation, tmp_path)
    code, said = _drive(operation, place.site, file_size=bytes_allowed)
    assert code == 6, said
    assert "File too large" in said
    assert place.now() == place.old


@pytest.mark.root
@pytest.mark.parametrize("operation", ["apply", "again", "revert"])
def test_a_file_system_of_64_kib_refuses_before_the_first_change(operation: str, folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "none", str(folder)], check=True)
    try:
        place = matrix.prepare(operation, folder)
        subprocess.run(["mount", "-o", "remount,size=64k", str(folder)], check=False)
        (folder / "filler").write_bytes(b"x" * 4096)
        code, said = _drive(operation, place.site)
        assert code == 6, said
        assert "not enough space; nothing was written" in said
        assert place.now() == place.old
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("operation", ["apply", "again", "revert"])
@pytest.mark.parametrize("free_kib", [0, 4, 8, 12, 16, 24, 32, 48])
def test_a_disk_that_fills_up_in_the_middle_is_undone(operation: str, free_kib: int, folder: Path) -> None:
    """The probe is blind here (another writer takes the space after it), so writing itself must fail and be undone."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True)
    try:
        place = matrix.prepare(operation, folder)
        free = os.statvfs(folder).f_bavail * 4096
        with (folder / "filler").open("wb") as filler:
            filler.write(b"x" * (free - free_kib * 1024))
        before = place.now()
        code, said = _drive_without_probe(operation, place.site)
        assert code in (0, 6), said
        assert (code == 0) or place.now() == before
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _drive_without_probe(operation: str, site: Path) -> tuple[int, str]:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path; from escha_oscar.disk import fsops; from tests.faults import driver\n"
        "fsops.Root.free_bytes = lambda self: 1 << 40\n"
        "sys.exit(driver.main(sys.argv[3], Path(sys.argv[4])))\n"
    )
    root = matrix.DRIVER.parents[2]
    words = [sys.executable, "-B", "-c", program, str(root), str(root / "src"), operation, str(site)]
    done = subprocess.run(words, capture_output=True, text=True)
    matrix.TALLY.counts["limit=refusing disks"] += 1
    return done.returncode, done.stderr


@pytest.mark.root
@pytest.mark.parametrize("operation", ["apply", "revert"])
@pytest.mark.parametrize("flag", ["i", "a"])
@pytest.mark.parametrize("what", [POOL, "sglang/srt/mem_cache"])
def test_an_immutable_file_or_folder_is_named_and_nothing_changes(
    operation: str, flag: str, what: str, tmp_path: Path
) -> None:
    place = matrix.prepare(operation, tmp_path)
    subprocess.run(["chattr", f"+{flag}", str(place.site / what)], check=True)
    try:
        code, said = _drive(operation, place.site)
        assert code == 6, said
        assert "immutable" in said
        assert "--overlay" in said
        assert what in said
        assert place.now() == place.old
    finally:
        subprocess.run(["chattr", f"-{flag}", str(place.site / what)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("what", ["", "sglang/srt/mem_cache", "sglang"])
def test_a_read_only_folder_stops_another_user_before_anything_changes(what: str, folder: Path) -> None:
    site = make_environment(folder)
    _give(folder, NOBODY)
    (site / what).chmod(0o555)
    before = snapshot(folder)
    code, said = _drive("apply", site, uid=NOBODY)
    assert code == 6, said
    assert str(site / what) in said
    assert "--overlay" in said
    assert snapshot(folder) == before


@pytest.mark.root
def test_another_user_with_read_only_files_succeeds_and_root_may_revert(folder: Path) -> None:
    site = make_environment(folder)
    _give(folder, NOBODY)
    (site / POOL).chmod(0o444)
    before = snapshot(folder)
    assert _drive("apply", site, uid=NOBODY)[0] == 0
    assert (site / POOL).read_bytes() == MERGED[POOL]
    assert (site / POOL).stat().st_mode & 0o777 == 0o444
    assert _drive("revert", site)[0] == 0
    assert snapshot(folder) == before


@pytest.mark.root
def test_root_leaves_everything_to_the_owner_of_the_environment(folder: Path) -> None:
    site = make_environment(folder)
    _give(folder, NOBODY)
    before = snapshot(folder)
    assert _drive("apply", site)[0] == 0
    assert {path.lstat().st_uid for path in site.rglob("*")} == {NOBODY}
    assert _drive("revert", site, uid=NOBODY)[0] == 0
    assert snapshot(folder) == before


@pytest.mark.root
def test_status_needs_no_write_permission(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
    try:
        place = matrix.prepare("again", folder)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert condition(place.site).value == "integrated"
        code, said = _drive("revert", place.site)
        assert code == 6, said
        assert "Read-only file system" in said or "not writable" in said
        assert place.now() == place.old
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _give(folder: Path, uid: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)
