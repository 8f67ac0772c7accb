"""The files level: recorded digests, reinstalled wheels, shadows, owners, leftovers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from escha_oscar.errors import UnreadableError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.overlay import write_overlay
from escha_oscar.installed.overlay_marker import MARKER
from escha_oscar.installed.status import Condition, Status
from escha_oscar.mapping.wheels import KERNELS_DIR
from escha_oscar.model import Severity
from escha_oscar.verify import files
from escha_oscar.verify.before import recorded
from escha_oscar.verify.codes import CODES, Level
from escha_oscar.verify.files import check_files_on_disk
from tests.support.environments import ADDED, ENVIRON, INFO, PLACED, POOL, make_environment, make_plan
from tests.support.wheels import SKELETON, make_site_packages


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return an environment with an integration in it."""
    site = make_environment(tmp_path / "env")
    apply_plan(make_plan(site))
    return site


def codes(site: Path, path: tuple[Path, ...] = ()) -> list[str]:
    return [f.code for f in check_files_on_disk(site, path).findings]


def test_an_integration_as_it_was_written_gives_nothing(site: Path) -> None:
    assert check_files_on_disk(site).findings == ()


def edit(path: str):
    return lambda site: (site / path).write_bytes(b"# edited by somebody\n")


def original(path: str):
    def put_back(site: Path) -> None:
        data = next(f.before for f in make_plan(site).files if f.path == path)
        assert data is not None
        (site / path).write_bytes(data)

    return put_back


def delete(path: str):
    return lambda site: (site / path).unlink()


def damage(site: Path) -> None:
    state = site / ".escha-oscar/state.json"
    state.write_bytes(state.read_bytes()[:-40])


def reinstall(site: Path) -> None:
    shutil.copytree(make_environment(site.parent / "fresh"), site, dirs_exist_ok=True)


def second_owner(site: Path) -> None:
    make_site_packages(site.parent, {"sglang/version.py": ""}, name="sglang", version="0.5.9")


def leave_behind(site: Path) -> None:
    (site / f"{ENVIRON}.orig").write_text("")


def older_kernels(site: Path) -> None:
    (site / KERNELS_DIR / "old.py").write_text("")


BROKEN = {
    "an edited file": (edit(POOL), "file-edited"),
    "an edited placed file": (edit(PLACED), "file-edited"),
    "a file put back": (original(ENVIRON), "file-restored"),
    "a deleted file": (delete(ADDED), "file-gone"),
    "a damaged record": (damage, "record-damaged"),
    "a wheel installed anew": (reinstall, "not-merged-any-more"),
    "two owners": (second_owner, "two-owners"),
    "a patch's backup": (leave_behind, "leftover"),
    "kernels of an older run": (older_kernels, "leftover"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_gives_exactly_its_finding(site: Path, name: str) -> None:
    break_it, code = BROKEN[name]
    break_it(site)
    report = check_files_on_disk(site)
    assert [f.code for f in report.findings] == [code]
    assert report.ok is (CODES[code].severity is not Severity.ERROR)
    assert report.findings[0].hint


def test_a_reinstalled_wheel_is_said_to_equal_the_wheels_files(site: Path) -> None:
    reinstall(site)
    assert "not merged" in check_files_on_disk(site).findings[0].message
    assert "files equal the wheel's" in check_files_on_disk(site).findings[0].message


def test_an_interrupted_run_has_to_be_resolved(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for condition, code in ((Condition.INTERRUPTED, "interrupted"), (Condition.RUNNING, "running")):
        status = Status(condition, site, detail="integrate")
        monkeypatch.setattr(files, "read_status", lambda _, status=status: status)
        assert codes(site) == [code]
    assert CODES["running"].cannot_tell


def test_a_stock_wheel_is_not_merged_yet(tmp_path: Path) -> None:
    site = make_site_packages(tmp_path, SKELETON)
    report = check_files_on_disk(site)
    assert [f.code for f in report.findings] == ["not-merged-yet"]


def test_a_merge_by_hand_has_no_record_and_names_what_was_changed(tmp_path: Path) -> None:
    site = make_site_packages(tmp_path, SKELETON)
    (site / ENVIRON).write_text("X = 1\n")
    report = check_files_on_disk(site)
    assert [(f.code, f.severity) for f in report.findings] == [("no-record", Severity.INFO)]
    assert "environ.py" in (report.findings[0].found or "") and "decode" not in (report.findings[0].found or "")


def test_a_bare_tree_has_no_clear_owner(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    assert codes(tmp_path) == ["no-record", "owner-unclear"]


def test_the_shadow_is_named_with_the_tree_that_python_would_import(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    (overlay / "sglang").mkdir(parents=True)
    (overlay / "sglang/__init__.py").write_text("")
    report = check_files_on_disk(site, (tmp_path, overlay, site))
    assert [f.code for f in report.findings] == ["shadowed"]
    assert str(overlay / "sglang") in (report.findings[0].found or "")
    assert str(site / "sglang") in (report.findings[0].expected or "")
    assert codes(site, (site, overlay)) == []


def test_a_shadow_tree_is_judged_by_the_wheel_behind_it(tmp_path: Path) -> None:
    site = make_environment(tmp_path / "env")
    shadow = write_overlay(make_plan(site), tmp_path / "shadow")
    assert codes(shadow) == ["overlay"]
    (site / INFO / "METADATA").write_text("Metadata-Version: 2.1\nName: escha\nVersion: 1.0.3+qwen3moe\n")
    assert codes(shadow) == ["overlay-stale"]
    (shadow / MARKER).write_text("{}")
    assert codes(shadow) == ["record-damaged"]


def test_the_record_gives_back_the_tree_before(site: Path) -> None:
    known = recorded(site)
    assert known.base is not None and known.source_kind == "pr" and POOL in known.changed
    assert known.base.read(ENVIRON) == b"FIELDS = ['a']\n"
    assert known.base.read(PLACED) is None and not known.base.exists(ADDED)
    assert known.base.exists(f"{INFO}/METADATA")


def test_of_a_damaged_record_what_can_be_read_counts(site: Path) -> None:
    originals = site / ".escha-oscar/originals"
    for backup in originals.iterdir():
        os.truncate(backup, 0)
    known = recorded(site)
    assert known.base is None and known.source_kind == "pr" and POOL in known.changed
    assert "backup is missing or was altered" in str(known.problem)
    damage(site)
    assert recorded(site).changed == () and "damaged" in str(recorded(site).problem)


def test_a_record_that_may_not_be_read_leaves_the_question_open(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> Status:
        raise UnreadableError("may not be read by this user", path="state.json", hint="run it as the owner")

    monkeypatch.setattr(files, "read_status", refuse)
    found = check_files_on_disk(site).findings[0]
    assert (found.code, found.path, found.hint) == ("record-unreadable", "state.json", "run it as the owner")
    assert CODES["record-unreadable"].cannot_tell


def test_every_files_code_is_met_here() -> None:
    met = {code for _, code in BROKEN.values()}
    met |= {"not-merged-yet", "no-record", "owner-unclear", "shadowed", "interrupted", "running", "record-unreadable"}
    met |= {"overlay", "overlay-stale"}
    assert met == {name for name, code in CODES.items() if code.level is Level.FILES}
