"""The note outside the environment: a reinstalled wheel is told from a fresh one; losing the note does no harm."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.revert import revert
from escha_oscar.installed.status import Condition, read_status
from tests.support.environments import make_environment, make_plan


def _reinstall(site: Path) -> None:
    """Install the wheel anew as pip does: what RECORD lists goes first, the state included."""
    shutil.rmtree(site)
    shutil.copytree(make_environment(site.parent / "again"), site, symlinks=True)


def test_a_reinstall_that_took_the_state_along_is_still_told_from_a_fresh_wheel(site: Path) -> None:
    apply_plan(make_plan(site, commit="b" * 40))
    _reinstall(site)
    found = read_status(site)
    assert found.condition is Condition.REINSTALLED
    assert found.source is not None
    assert found.source.commit == "b" * 40
    revert(site)
    assert read_status(site).condition is Condition.PRISTINE


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"source": {"kind": 1}}'])
def test_a_damaged_note_is_passed_over(site: Path, data: bytes) -> None:
    apply_plan(make_plan(site))
    _reinstall(site)
    for note in Path(os.environ["XDG_STATE_HOME"]).rglob("*.json"):
        if str(site).encode() in note.read_bytes():
            note.write_bytes(data)
    assert read_status(site).condition is Condition.PRISTINE


def test_a_note_that_cannot_be_written_stops_nothing(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    assert not apply_plan(make_plan(site)).already
    assert read_status(site).condition is Condition.INTEGRATED
