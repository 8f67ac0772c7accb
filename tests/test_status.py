"""Status: reads, never writes, and never calls a mixed tree whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escha_oscar import state
from escha_oscar.apply import apply_plan, pristine_tree
from escha_oscar.errors import RecoveryError, TargetError
from escha_oscar.fsops import Root
from escha_oscar.model import sha256
from escha_oscar.revert import revert
from escha_oscar.status import Condition, FileCondition, read_status
from tests.support.environments import MERGED, PLACED, POOL, RECORD, make_environment, make_plan, snapshot

STATE = ".escha-oscar/state.json"
JOURNAL = ".escha-oscar/journal"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_environment(tmp_path)


def test_a_fresh_wheel_is_pristine(site: Path) -> None:
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


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"{}",
        lambda data: b"[]",
        lambda data: b"\xff\xfe",
        lambda data: b"[" * 100_000,
        lambda data: data[:-20],
        lambda data: data.replace(b"native", b"foreign"),
        lambda data: data.replace(b'"schema_version": 1', b'"schema_version": true'),
    ],
    ids=["empty", "no keys", "a list", "not UTF-8", "deep nesting", "cut off", "an edited word", "a boolean schema"],
)
def test_a_damaged_state_is_refused_by_name(site: Path, spoil: object) -> None:
    assert callable(spoil)
    apply_plan(make_plan(site))
    (site / STATE).write_bytes(spoil((site / STATE).read_bytes()))
    before = snapshot(site)
    for command in (read_status, pristine_tree):
        with pytest.raises(TargetError, match="state file is damaged"):
            command(site)
    assert snapshot(site) == before


def test_a_state_of_a_newer_version_is_refused_and_not_guessed_at(site: Path) -> None:
    apply_plan(make_plan(site))
    with _state(site) as body:
        body["schema_version"] = 2
    with pytest.raises(TargetError, match="newer escha-oscar"):
        read_status(site)


@pytest.mark.parametrize(
    "path",
    [
        "../evil.py",
        "/etc/passwd",
        "sglang/../../evil.py",
        "evil.pth",
        "sglang/evil.so",
        "sglang/./a.py",
        "sitecustomize.py",
    ],
)
def test_a_state_that_points_elsewhere_is_refused_although_its_hash_is_right(site: Path, path: str) -> None:
    apply_plan(make_plan(site))
    with _state(site) as body:
        body["files"][0]["path"] = path
    with pytest.raises(TargetError):
        read_status(site)


@pytest.mark.parametrize("folder", ["..", "/etc", "sglang", "sglang/../..", "other"])
def test_a_state_whose_folders_lie_elsewhere_is_refused(site: Path, folder: str) -> None:
    apply_plan(make_plan(site))
    with _state(site) as body:
        body["folders"] = [folder]
    with pytest.raises(TargetError):
        read_status(site)


def test_a_backup_name_that_is_not_its_digest_is_refused(site: Path) -> None:
    apply_plan(make_plan(site))
    with _state(site) as body:
        body["files"][0]["backup"] = "../../../etc/passwd"
    with pytest.raises(TargetError, match="damaged"):
        read_status(site)


def test_a_state_file_that_is_a_link_is_not_followed(site: Path, tmp_path: Path) -> None:
    apply_plan(make_plan(site))
    (site / STATE).rename(tmp_path / "elsewhere.json")
    (site / STATE).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(TargetError, match="symbolic link"):
        read_status(site)


def test_a_state_directory_that_others_may_write_is_refused(site: Path) -> None:
    apply_plan(make_plan(site))
    (site / ".escha-oscar").chmod(0o777)
    with pytest.raises(TargetError, match="others may write"):
        read_status(site)


def test_a_state_directory_that_is_a_link_is_refused(site: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (site / ".escha-oscar").symlink_to(tmp_path / "elsewhere")
    for work in (read_status, lambda root: apply_plan(make_plan(root))):
        with pytest.raises(TargetError):
            work(site)
    assert list((tmp_path / "elsewhere").iterdir()) == []


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


@contextmanager
def _state(site: Path) -> Iterator[dict[str, object]]:
    """Edit the state and give it a right hash again, as whoever can write it could."""
    body = json.loads((site / STATE).read_bytes())
    yield body
    body.pop("self_sha256")
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    (site / STATE).write_text(json.dumps({**body, "self_sha256": sha256(text)}))


def test_encoding_the_state_and_reading_it_back_is_the_same_state(site: Path) -> None:
    apply_plan(make_plan(site))
    known = state.load(Root(site))
    assert known is not None
    assert state.decode(state.encode(known)) == known


def test_a_reinstall_that_took_the_state_along_is_still_told_from_a_fresh_wheel(site: Path) -> None:
    stock = snapshot(site)
    apply_plan(make_plan(site, commit="b" * 40))
    state_folder, kept = site / ".escha-oscar", site.parent / "kept"
    state_folder.rename(kept)
    found = read_status(site)
    assert found.condition is Condition.REINSTALLED
    assert found.source is not None
    assert found.source.commit == "b" * 40
    kept.rename(state_folder)
    revert(site)
    assert snapshot(site) == stock
    assert read_status(site).condition is Condition.PRISTINE


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"source": {"kind": 1}}'])
def test_a_damaged_note_is_passed_over(site: Path, data: bytes) -> None:
    apply_plan(make_plan(site))
    (site / ".escha-oscar").rename(site.parent / "kept")
    for note in Path(os.environ["XDG_STATE_HOME"]).rglob("*.json"):
        if str(site).encode() in note.read_bytes():
            note.write_bytes(data)
    assert read_status(site).condition is Condition.PRISTINE


def test_a_note_that_cannot_be_written_stops_nothing(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    assert not apply_plan(make_plan(site)).already
    assert read_status(site).condition is Condition.INTEGRATED
