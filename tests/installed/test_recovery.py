"""Recovery: an interrupted run is undone, edits made since are kept, a new wheel is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from escha_oscar.disk import transaction
from escha_oscar.disk.fsops import Root
from escha_oscar.errors import RecoveryError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.pristine import pristine_tree
from escha_oscar.installed.recovery import recover
from escha_oscar.installed.revert import revert
from tests.support.environments import ENVIRON, MERGED, POOL, RECORD, condition, make_plan, snapshot


class Killed(BaseException):
    """Stands for a process that ends on the spot."""


def _cut_off(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the tree as a kill after every file was put in place, before the commit."""

    def die(root: Root, work: object, progress: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "_finished_tree", die)
        patch.setattr(transaction, "undo", lambda root, journal: die(root, None, None))
        with pytest.raises(Killed):
            apply_plan(make_plan(site))
    assert condition(site).value == "interrupted"
    assert (site / POOL).read_bytes() == MERGED[POOL]


def test_it_puts_everything_back(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = snapshot(site)
    _cut_off(site, monkeypatch)
    done = recover(site)
    assert done is not None
    assert (done.operation, done.outcome, done.left) == ("integrate", "undone", ())
    assert snapshot(site) == stock
    assert recover(site) is None


def test_planning_on_a_mixed_tree_is_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cut_off(site, monkeypatch)
    with pytest.raises(RecoveryError) as caught:
        pristine_tree(site)
    assert caught.value.exit_code == 7
    assert caught.value.hint == "escha-oscar recover"


def test_the_next_apply_and_the_next_revert_recover_first(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = snapshot(site)
    _cut_off(site, monkeypatch)
    assert not apply_plan(make_plan(site)).already
    assert condition(site).value == "integrated"
    revert(site)
    _cut_off(site, monkeypatch)
    assert revert(site).recovered is not None
    assert snapshot(site) == stock


def test_a_file_edited_since_is_kept_aside_or_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = snapshot(site)
    _cut_off(site, monkeypatch)
    (site / POOL).write_bytes(b"edited\n")
    (site / ENVIRON).unlink()
    before = snapshot(site)
    with pytest.raises(RecoveryError, match="changed after the interruption"):
        recover(site)
    assert snapshot(site) == before
    done = recover(site, force=True)
    assert done is not None
    assert [(site / path).read_bytes() for path in done.saved] == [b"edited\n"]
    assert {path: entry for path, entry in snapshot(site).items() if not path.startswith(".escha-oscar")} == stock


def test_a_wheel_installed_since_is_left_alone(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cut_off(site, monkeypatch)
    for path in (POOL, RECORD):
        (site / path).unlink()
        (site / path).write_bytes(b"new wheel,,\n")
    done = recover(site)
    assert done is not None
    assert set(done.left) == {POOL, RECORD}
    assert (site / POOL).read_bytes() == b"new wheel,,\n"
    assert recover(site) is None


def test_a_damaged_backup_stops_it_and_names_the_backup(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cut_off(site, monkeypatch)
    for backup in (site / ".escha-oscar/originals").iterdir():
        backup.write_bytes(b"tampered")
    before = snapshot(site)
    with pytest.raises(RecoveryError, match="could not be undone") as caught:
        recover(site)
    assert "originals" in (caught.value.path or "")
    assert {p: e for p, e in snapshot(site).items() if "tampered" in e} == {}
    merged = {path: snapshot(site)[path] for path in MERGED}
    assert merged == {path: before[path] for path in MERGED}
    assert condition(site).value == "interrupted"


def test_nothing_to_recover_writes_nothing(site: Path) -> None:
    stock = snapshot(site)
    assert recover(site) is None
    assert snapshot(site) == stock
