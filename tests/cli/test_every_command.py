"""What holds for every command: help that fits, completion, and one JSON object whatever happens."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from escha_oscar import cli
from escha_oscar.cli import COMMANDS, main
from tests.support import forks
from tests.support.checkpoints import MOE, write_config
from tests.support.pr_tree import FILES
from tests.support.pull_request import make_pull_repository
from tests.support.wheels import make_site_packages, make_wheel

SUCCESSES = {
    "integrate": "--site-packages {site} --source bundled --dry-run --diff",
    "revert": "--site-packages {site}",
    "recover": "--site-packages {site}",
    "status": "--site-packages {site}",
    "verify": "--log {log} --config {config} --tp 2 --group-size 32",
    "mapping": "--site-packages {site}",
    "fetch": "--pr-repo {pull} --pr-commit {pinned}",
    "rotations": "--head-dim 32 --num-layers 2 --out-dir {tmp}",
    "budget": "--config {config} --vram 12GB --weights 6GB --tp 2",
    "recipe": "--config {config} --vram 12GB --tp 2",
    "demo": "--wheel {wheel} --source bundled",
}
FAILURES = {
    "integrate": "--site-packages {tmp} --source bundled",
    "revert": "--site-packages /nonexistent",
    "recover": "--python /nonexistent",
    "status": "--site-packages {tmp}",
    "verify": "--log /nonexistent",
    "mapping": "--site-packages /nonexistent",
    "fetch": "--pr-repo /nonexistent",
    "rotations": "--head-dim 7 --num-layers 2",
    "budget": "--config {config} --tp 3",
    "recipe": "--config {config} --vram 12 --tp 2",
    "demo": "--wheel {log}",
}
LOG = "KV Cache is allocated. #tokens: 350257, K size: 0.42 GB, V size: 0.42 GB\n"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pull = make_pull_repository(tmp_path / "pr.git", FILES)
    (tmp_path / "server.log").write_text(LOG, encoding="utf-8")
    found = {
        "site": make_site_packages(tmp_path, forks.OLD),
        "wheel": make_wheel(tmp_path, forks.OLD, name="sglang", version="0.5.9"),
        "config": write_config(tmp_path, MOE),
        "log": tmp_path / "server.log",
        "pull": pull.path,
        "tmp": tmp_path,
    }
    return {"pinned": pull.pinned, **{name: str(path) for name, path in found.items()}}


@pytest.mark.parametrize("lines", [SUCCESSES, FAILURES], ids=["success", "failure"])
@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_one_object_whatever_happens(
    command: str, lines: dict[str, str], places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    args = [command, *shlex.split(lines[command].format(**places)), "--json"]
    code = main(args)
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert out.endswith("}\n") and err == ""
    assert (answer["schema_version"], answer["command"], answer["exit_code"]) == (1, command, code)
    assert answer["ok"] is (code == 0) is (lines is SUCCESSES)
    assert lines is SUCCESSES or {"code", "message", "hint"} <= answer["error"].keys()


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal_of_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*filter(None, [command]), "--help"]) == 0
    assert max(map(cell_len, capsys.readouterr().out.splitlines())) <= 80


def completed(words: str, shell: str = "bash_complete") -> list[str]:
    count = str(len(words.split(" ")) - 1)
    environment = {"PYTHONPATH": str(Path(cli.__file__).parents[2]), "COMP_WORDS": words, "COMP_CWORD": count}
    done = subprocess.run(
        [sys.executable, "-m", "escha_oscar"], env={**os.environ, **environment, "_ESCHA_OSCAR_COMPLETE": shell},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


def test_commands_options_and_choices_are_completed() -> None:
    assert completed("escha-oscar re") == ["plain,revert", "plain,recover", "plain,recipe"]
    assert completed("escha-oscar integrate --allow") == ["plain,--allow-upstream"]
    assert completed("escha-oscar integrate --source ") == ["plain,pr", "plain,bundled"]
