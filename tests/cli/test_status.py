"""``escha-oscar status`` as typed: one word, its exit code, and the next command."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from escha_oscar.cli import main
from escha_oscar.cli import status as command
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.overlay import write_overlay
from escha_oscar.installed.status import Condition, Status
from escha_oscar.mapping import PIN
from escha_oscar.model import SourceId
from tests.support import forks
from tests.support.environments import POOL, make_environment, make_plan
from tests.support.wheels import make_site_packages


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_environment(tmp_path)


def _status(site: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object], str]:
    code = main(["status", "--json", "--site-packages", str(site)])
    data = json.loads(capsys.readouterr().out)
    assert main(["status", "--site-packages", str(site)]) == code == data["exit_code"]
    return code, data, capsys.readouterr().out


def test_pristine(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data, text = _status(site, capsys)
    assert (code, data["condition"]) == (0, "pristine")
    assert "pristine" in text


def test_a_wheel_without_an_integration_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = make_site_packages(tmp_path, forks.OLD)
    code, data, text = _status(site, capsys)
    assert (code, data["distribution"], data["version"]) == (0, "escha", "1.0.2+qwen3moe")
    assert "wheel: escha 1.0.2+qwen3moe" in text


def test_integrated_names_source_kernels_and_tool(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apply_plan(make_plan(site, commit="b" * 40))
    code, data, text = _status(site, capsys)
    assert (code, data["condition"], data["kernels"]) == (0, "integrated", "native")
    assert "b" * 40 in text
    assert isinstance(data["files"], dict)
    assert data["files"][POOL] == "merged"


def test_modified_names_the_file(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apply_plan(make_plan(site))
    (site / POOL).write_bytes(b"edited\n")
    code, data, text = _status(site, capsys)
    assert (code, data["condition"], data["ok"]) == (3, "modified", False)
    assert f"edited: {POOL}" in text
    assert "next: escha-oscar revert --force" in text


def test_a_merge_by_hand_is_foreign_and_names_the_files(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / POOL).write_bytes(b"merged by hand\n")
    code, data, text = _status(site, capsys)
    assert (code, data["condition"], data["files"]) == (3, "foreign", {POOL: "edited"})
    assert "no integration of this tool here" in text and f"edited: {POOL}" in text
    assert "mapped files that differ from the wheel's RECORD: 1" in text
    assert "next: escha-oscar verify" in text


def test_overlay_names_the_installation(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data, _ = _status(write_overlay(make_plan(site), tmp_path / "overlay"), capsys)
    assert (code, data["condition"]) == (0, "overlay")
    assert str(site) in str(data["detail"])


def test_reinstalled_says_to_integrate(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apply_plan(make_plan(site))
    shutil.rmtree(site)
    shutil.copytree(make_environment(tmp_path / "again"), site, symlinks=True)
    code, data, text = _status(site, capsys)
    assert (code, data["condition"]) == (0, "reinstalled")
    assert "reinstalled, not integrated" in text
    assert "next: escha-oscar integrate" in text


AGAIN = {
    "an Escha wheel": (("escha", None, None, "native"), ""),
    "the pinned commit": (("escha", PIN.repository, PIN.commit, "native"), ""),
    "a stock release": (("sglang", PIN.repository, PIN.commit, "native"), " --allow-upstream"),
    "another commit, its kernels": (
        ("escha", "/a b.git", "c" * 40, "pr"), f" --pr-repo '/a b.git' --pr-commit {'c' * 40} --kernels pr",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "options"), AGAIN.values(), ids=AGAIN)
def test_an_integration_is_repeated_with_its_own_options(
    made: tuple[str, str | None, str | None, str], options: str, tmp_path: Path
) -> None:
    distribution, repository, commit, kernels = made
    source = SourceId("pr", "it", commit, repository)
    found = Status(Condition.REINSTALLED, tmp_path, source, kernels, "0.1.0", distribution, "1")
    assert command._next(found) == f"escha-oscar integrate{options}"
    bundled = dataclasses.replace(found, source=SourceId("bundled", "it"))
    assert "--source bundled" in str(command._next(bundled)) and "--pr-" not in str(command._next(bundled))


def test_a_damaged_state_is_one_line_with_exit_3(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apply_plan(make_plan(site))
    (site / ".escha-oscar/state.json").write_bytes(b"{")
    assert main(["status", "--site-packages", str(site)]) == 3
    assert "state file is damaged" in capsys.readouterr().err


def test_a_hostile_folder_name_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = tmp_path / "a\x1b[31mb"
    (hostile / "sglang").mkdir(parents=True)
    assert main(["status", "--site-packages", str(hostile)]) == 3
    out = capsys.readouterr().out
    assert "\x1b" not in out and "foreign" in out
