"""Another user who may read the package but not write it: commands that read work, or say what is closed to them."""

from __future__ import annotations

import codecs
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest

from escha_oscar.cli import COMMANDS, main
from escha_oscar.disk.layout import JOURNAL_FILE, STATE_DIR
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.status import Condition, read_status
from tests.support import forks
from tests.support.environments import POOL, make_environment, make_plan, snapshot
from tests.support.wheels import make_site_packages

pytestmark = pytest.mark.root
READER = 65534


@pytest.fixture(autouse=True, scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the reader have the tool: its code is loaded before, and its data lie where everybody may read them.

    Interpreter and package may be closed to others: in a home directory, or in an environment for one run.
    """
    site = str(make_site_packages(tmp_path_factory.mktemp("warm"), forks.OLD))
    main(["integrate", "--source", "bundled", "--site-packages", site])
    main(["verify", "--level", "files", "--level", "static", "--site-packages", site, "--json"])
    for module, _, _ in COMMANDS.values():
        importlib.import_module(module)
    codecs.lookup("ascii")
    real = resources.files
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        tool = Path(name)
        tool.chmod(0o755)
        for part in ("donor", "kernels"):
            shutil.copytree(str(real("escha_oscar") / part), tool / part)
        for place in ("escha_oscar.source.bundled.files", "escha_oscar.merge.plan.resources.files"):
            patch.setattr(place, lambda package: tool if package == "escha_oscar" else real(package))
        yield


@contextmanager
def reader() -> Iterator[None]:
    """Be another user without privileges for a while."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(READER)
    os.seteuid(READER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture
def site(folder: Path) -> Path:
    site = make_environment(folder)
    apply_plan(make_plan(site))
    return site


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    with reader():
        code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def findings(data: dict[str, object]) -> dict[str, dict[str, str]]:
    found = data["findings"]
    assert isinstance(found, list)
    return {item["code"]: item for item in found}


def test_a_reader_gets_what_the_owner_gets(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = command(capsys, "status", "--site-packages", str(site))
    assert (code, data["condition"]) == (0, "integrated")
    verify = ("verify", "--level", "files", "--level", "static", "--site-packages", str(site))
    owners = main([*verify, "--json"])
    expected = json.loads(capsys.readouterr().out)
    code, data = command(capsys, *verify)
    assert (code, data["findings"]) == (owners, expected["findings"])
    assert findings(data).keys().isdisjoint({"no-base", "record-unreadable"})


def test_an_edit_is_a_finding_for_a_reader_too(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / POOL).write_bytes(b"edited\n")
    code, data = command(capsys, "verify", "--level", "files", "--site-packages", str(site))
    assert (code, list(findings(data))) == (1, ["file-edited"])


def test_a_run_in_progress_is_seen_without_its_lock(folder: Path) -> None:
    def look(root: Path) -> None:
        with reader():
            seen.append(read_status(root))

    seen = []
    site = make_environment(folder)
    apply_plan(make_plan(site), verify=look)
    assert [status.condition for status in seen] == [Condition.RUNNING]
    assert f"pid {os.getpid()}" in seen[0].detail


def test_originals_that_were_private_stay_private_and_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = make_environment(folder)
    (site / POOL).chmod(0o640)
    apply_plan(make_plan(site))
    (site / POOL).chmod(0o644)
    code, data = command(capsys, "verify", "--level", "files", "--site-packages", str(site))
    assert (code, findings(data)) == (0, {})
    _, data = command(capsys, "verify", "--level", "static", "--site-packages", str(site))
    note = findings(data)["no-base"]
    assert (note["severity"], note["found"]) == ("info", "may not be read by this user")


def test_a_record_that_is_closed_to_a_reader_is_told_by_name(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / STATE_DIR).chmod(0o700)  # as older versions left it
    code, data = command(capsys, "status", "--site-packages", str(site))
    assert (code, data["ok"]) == (8, False)
    assert "run it as the owner" in str(data["error"])
    code, data = command(capsys, "verify", "--level", "files", "--site-packages", str(site))
    assert (code, list(findings(data))) == (8, ["record-unreadable"])
    assert findings(data)["record-unreadable"]["hint"].startswith("run it as the owner")


@pytest.mark.parametrize("words", [("revert",), ("recover",)])
def test_a_reader_changes_nothing(site: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    before = {path: path.lstat().st_mtime_ns for path in site.rglob("*")}
    code, _ = command(capsys, *words, "--site-packages", str(site))
    assert code == 6
    assert {path: path.lstat().st_mtime_ns for path in site.rglob("*")} == before


@pytest.mark.parametrize("closed", [False, True], ids=["of another user", "closed to writing for all"])
def test_an_overlay_of_what_may_only_be_read(closed: bool, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = make_site_packages(folder, forks.OLD)
    if closed:
        for path in (site, *site.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
    place = folder / "overlays"
    place.mkdir()
    place.chmod(0o777)
    before = snapshot(site)
    words = ("integrate", "--source", "bundled", "--site-packages", str(site), "--overlay")
    for _ in range(2):  # the second replaces the first
        code, data = command(capsys, *words, str(place / "one"))
        assert (code, data.get("overlay")) == (0, str(place / "one")), data
    assert [path.name for path in place.iterdir()] == ["one"]
    assert snapshot(site) == before
    (site / STATE_DIR).mkdir()
    (site / JOURNAL_FILE).write_bytes(b"torn")
    code, data = command(capsys, *words, str(place / "two"))
    assert code == 7
    assert "damaged" in str(data["error"])
    assert [path.name for path in place.iterdir()] == ["one"]


def test_a_file_of_another_user_that_becomes_ones_own_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = make_site_packages(folder, forks.OLD)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, READER, READER)
    os.chown(site / POOL, 0, 0)
    with reader():
        assert main(["integrate", "--source", "bundled", "--site-packages", str(site)]) == 0
    named = [line for line in capsys.readouterr().out.splitlines() if "another user" in line]
    assert named == [f"belonged to another user and is yours now: {POOL}"]
    assert (site / POOL).stat().st_uid == READER
