"""The state is untrusted input: damaged, newer, or pointing elsewhere means refused, nothing written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escha_oscar.disk.fsops import Root
from escha_oscar.errors import TargetError
from escha_oscar.installed import state
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.pristine import pristine_tree
from escha_oscar.installed.status import read_status
from escha_oscar.model import sha256
from tests.support.environments import make_plan, snapshot

STATE = ".escha-oscar/state.json"


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
