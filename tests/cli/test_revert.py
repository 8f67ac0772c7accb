"""``escha-oscar revert`` and ``recover`` as typed: exit code, stdout, stderr."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from escha_oscar.cli import main
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.overlay import write_overlay
from tests.support.environments import FILES, MERGED, POOL, RECORD, condition, make_environment, make_plan, snapshot


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = make_environment(tmp_path)
    apply_plan(make_plan(site))
    return site


def test_revert_says_what_it_put_back_and_to_restart(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revert", "--site-packages", str(site)]) == 0
    said = capsys.readouterr().out
    assert "put back 4 files, removed 2" in said
    assert "restart" in said
    assert condition(site).value == "pristine"


def test_revert_twice_has_nothing_to_do(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["revert", "--site-packages", str(site)])
    capsys.readouterr()
    assert main(["revert", "--site-packages", str(site)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_revert_as_json(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revert", "--json", "--site-packages", str(site)]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["outcome"] == "reverted"
    assert POOL in done["restored"]
    assert done["recovered"] is None


def test_an_edit_is_refused_with_exit_3_and_a_next_command(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / POOL).write_bytes(b"edited\n")
    assert main(["revert", "--site-packages", str(site)]) == 3
    said = capsys.readouterr().err
    assert POOL in said
    assert "revert --force" in said
    assert main(["revert", "--json", "--site-packages", str(site)]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "drift"
    assert main(["revert", "--force", "--site-packages", str(site)]) == 0
    assert "edited copy kept" in capsys.readouterr().out


def test_no_such_directory_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("revert", "recover"):
        assert main([command, "--site-packages", str(tmp_path / "none")]) == 3
        assert "no such directory" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["revert", "recover", "status", "verify"])
def test_a_folder_without_package_and_state_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "venv"
    inner = empty / "lib/python3.11/site-packages"
    inner.mkdir(parents=True)
    for folder, hint in ((empty, f"--site-packages {inner}"), (inner, "name the folder that holds sglang/")):
        assert main([command, "--site-packages", str(folder)]) == 3
        said = capsys.readouterr().err
        assert f"{folder}: no sglang/ here" in said and f"next: {hint}" in said
        assert list(inner.iterdir()) == []


def test_the_package_itself_is_not_the_folder_that_holds_it(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--site-packages", str(site / "sglang")]) == 3
    assert f"next: --site-packages {site}\n" in capsys.readouterr().err


def test_what_an_uninstalled_package_left_of_us_can_be_reverted(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(site / "sglang")
    shutil.rmtree((site / RECORD).parent)
    assert main(["revert", "--site-packages", str(site)]) == 0
    assert "installed anew" in capsys.readouterr().out
    assert list(site.iterdir()) == []


def test_an_overlay_is_undone_by_removing_it(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shadow = write_overlay(make_plan(site), tmp_path / "my overlay")
    before = snapshot(shadow)
    assert main(["revert", "--site-packages", str(shadow)]) == 2
    said = capsys.readouterr().err
    assert "an overlay is undone by removing its folder" in said and f"next: rm -r '{shadow}'" in said
    assert snapshot(shadow) == before


def test_recover_with_nothing_to_do(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", "--site-packages", str(site)]) == 0
    assert "no run was interrupted" in capsys.readouterr().out
    assert main(["recover", "--json", "--site-packages", str(site)]) == 0
    assert json.loads(capsys.readouterr().out)["recovered"] is None


def test_recover_after_a_kill(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(site)
    _kill_in_the_middle_of_a_revert(site)
    assert main(["status", "--site-packages", str(site)]) == 7
    assert "escha-oscar recover" in capsys.readouterr().out
    assert main(["recover", "--json", "--site-packages", str(site)]) == 0
    assert json.loads(capsys.readouterr().out)["recovered"]["operation"] == "revert"
    assert snapshot(site) == before


def test_recover_keeps_an_edit_aside_when_forced(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _kill_in_the_middle_of_a_revert(site)
    (site / POOL).write_bytes(b"edited\n")
    assert main(["recover", "--site-packages", str(site)]) == 7
    assert "recover --force" in capsys.readouterr().err
    assert main(["recover", "--force", "--site-packages", str(site)]) == 0
    said = capsys.readouterr().out
    assert "an interrupted revert was undone" in said
    kept = Path(said.partition("edited copy kept: ")[2].strip())
    assert kept.read_bytes() == b"edited\n"
    assert (site / POOL).read_bytes() == MERGED[POOL]


def test_revert_recovers_first_and_says_so(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _kill_in_the_middle_of_a_revert(site)
    assert main(["revert", "--site-packages", str(site)]) == 0
    said = capsys.readouterr().out
    assert "an interrupted revert was undone" in said
    assert "put back 4 files" in said


def test_recover_leaves_a_new_wheel_alone_and_says_so(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _kill_in_the_middle_of_a_revert(site)
    for path in (POOL, RECORD):
        (site / path).write_bytes(b"new wheel,,\n")
    assert main(["recover", "--site-packages", str(site)]) == 0
    assert f"left as found, changed by another program: {POOL}" in capsys.readouterr().out


def test_revert_over_a_new_wheel_says_so(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (*FILES, RECORD):
        (site / path).unlink(missing_ok=True)
        (site / path).write_bytes(b"new wheel,,\n")
    assert main(["revert", "--site-packages", str(site)]) == 0
    assert "installed anew" in capsys.readouterr().out


def test_a_mixed_tree_is_not_verified(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _kill_in_the_middle_of_a_revert(site)
    assert main(["verify", "--json", "--level", "static", "--site-packages", str(site)]) == 7
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["hint"]) == ("recovery-needed", f"escha-oscar recover --site-packages {site}")


def test_the_interpreter_of_an_environment_finds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    library = next(venv.glob("lib/python3*"))
    (library / "site-packages").rmdir()
    made = make_environment(tmp_path / "made")
    made.rename(library / "site-packages")
    apply_plan(make_plan(library / "site-packages", {POOL: MERGED[POOL]}))
    assert main(["status", "--json", "--python", str(venv / "bin/python")]) == 0
    assert json.loads(capsys.readouterr().out)["condition"] == "integrated"
    assert main(["revert", "--python", str(venv / "bin/python")]) == 0


def _kill_in_the_middle_of_a_revert(site: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from escha_oscar.disk import transaction\nfrom escha_oscar.installed import revert\n"
        "transaction._finished_tree = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        "revert.revert(Path(sys.argv[1]))\n"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", program, str(site)], env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == -signal.SIGKILL
