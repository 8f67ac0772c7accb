"""Next commands: they carry what was typed, and every error has one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from escha_oscar import cli
from escha_oscar.cli import main
from escha_oscar.cli._hints import completed, context_of, typed_options
from tests.support import forks
from tests.support.checkpoints import MOE
from tests.support.wheels import make_site_packages

KNOWN: Mapping[str, Mapping[str, bool]] = {
    "integrate": {
        "--site-packages": True, "--python": True, "--allow-upstream": False, "--source": True, "--pr-repo": True,
        "--pr-commit": True, "--overlay": True, "--force": False, "--dry-run": False, "--kernels": True,
    },
    "revert": {"--site-packages": True, "--python": True, "--force": False},
    "verify": {"--site-packages": True, "--log": True, "--config": True, "--tp": True, "--level": True},
    "budget": {"--config": True, "--tp": True},
}  # fmt: skip
SITE = {"--site-packages": "/a b/site"}
QUOTED = "--site-packages '/a b/site'"

COMPLETED = {
    "nothing was typed": ("escha-oscar revert --force", {}, "escha-oscar revert --force"),
    "a folder": ("escha-oscar revert --force", SITE, f"escha-oscar revert --force {QUOTED}"),
    "prose behind it": (
        "escha-oscar revert --force (keeps a copy of each), then escha-oscar integrate",
        {**SITE, "--allow-upstream": None, "--source": "bundled"},
        f"escha-oscar revert --force {QUOTED} (keeps a copy of each), then "
        f"escha-oscar integrate {QUOTED} --allow-upstream --source bundled",
    ),
    "prose before and behind it": (
        "run escha-oscar integrate again",
        {"--python": "/opt/x/bin/python"},
        "run escha-oscar integrate --python /opt/x/bin/python again",
    ),
    "joined by the shell": (
        "escha-oscar revert && escha-oscar integrate",
        SITE,
        f"escha-oscar revert {QUOTED} && escha-oscar integrate {QUOTED}",
    ),
    "a comment behind it": ("escha-oscar integrate  # why", SITE, f"escha-oscar integrate {QUOTED}  # why"),
    "named already": (
        "escha-oscar verify --site-packages /b, or not",
        SITE,
        "escha-oscar verify --site-packages /b, or not",
    ),
    "a placeholder": ("escha-oscar verify --site-packages DIR", SITE, f"escha-oscar verify {QUOTED}"),
    "placeholders of other options": (
        "escha-oscar verify --log FILE --config config.json --tp N",
        {"--config": "/m/config.json", "--tp": "2"},
        "escha-oscar verify --log FILE --config /m/config.json --tp 2",
    ),
    "a value that is no placeholder": (
        "escha-oscar verify --log FILE --tp 4",
        {"--tp": "2"},
        "escha-oscar verify --log FILE --tp 4",
    ),
    "options that the command does not know": (
        "escha-oscar budget --config config.json",
        {**SITE, "--source": "bundled"},
        "escha-oscar budget --config config.json",
    ),
    "options that do not name the target": (
        "escha-oscar integrate",
        {"--force": None, "--level": "files"},
        "escha-oscar integrate",
    ),
    "an overlay and a dry run": (
        "escha-oscar integrate --force",
        {"--overlay": "o", "--dry-run": None, "--kernels": "pr"},
        "escha-oscar integrate --force --kernels pr --overlay o --dry-run",
    ),
    "another pull request": (
        "escha-oscar integrate",
        {"--pr-repo": "r.git", "--pr-commit": "ab"},
        "escha-oscar integrate --pr-repo r.git --pr-commit ab",
    ),
    "the bundled source needs no pull request": (
        "escha-oscar integrate --source bundled (no network)",
        {"--pr-repo": "r.git", **SITE},
        f"escha-oscar integrate --source bundled {QUOTED} (no network)",
    ),
    "a folder in another command": ("grep -rn x <site-packages>/sglang", SITE, "grep -rn x '/a b/site'/sglang"),
    "no folder for another command": ("grep -rn x <site-packages>/sglang", {}, "grep -rn x <site-packages>/sglang"),
    "no command of ours": ("pip install --upgrade escha-oscar", SITE, "pip install --upgrade escha-oscar"),
    "no such command": ("escha-oscar frobnicate --force", SITE, "escha-oscar frobnicate --force"),
    "text": ("wait for it to end", SITE, "wait for it to end"),
}


@pytest.mark.parametrize(("hint", "typed", "wanted"), COMPLETED.values(), ids=COMPLETED)
def test_a_hint_is_completed_with_what_was_typed(hint: str, typed: Mapping[str, str | None], wanted: str) -> None:
    assert completed(hint, typed, KNOWN.get) == wanted


def test_only_what_was_typed_counts() -> None:
    context = context_of(
        cli.app, ["--no-color", "integrate", "--pr-commit", "x", "--python=/p", "--diff", "--nonsense"]
    )
    assert context is not None
    assert typed_options(context) == {"--python": "/p", "--pr-commit": "x", "--diff": None}


@pytest.mark.parametrize("args", [[], ["--json"], ["nonsense"]])
def test_without_a_command_nothing_was_typed(args: list[str]) -> None:
    assert context_of(cli.app, args) is None


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Give the files that the command lines below name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    site = make_site_packages(tmp_path, forks.OLD)
    stock = make_site_packages(tmp_path / "stock", forks.OLD, name="sglang", version="0.5.9")
    renamed = forks.POOL_TEXT.replace("class HybridLinearKVPool", "class HybridPool")
    odd = make_site_packages(tmp_path / "odd", {**forks.OLD, forks.POOL: renamed})
    (tmp_path / "failing").write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    (tmp_path / "failing").chmod(0o755)
    (tmp_path / "text").write_text("no wheel, no config, no rotation file", encoding="utf-8")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MOE), encoding="utf-8")
    names = {"site": site, "stock": stock, "odd": odd, "tmp": tmp_path, "config": config}
    return {name: str(path) for name, path in names.items()}


ERRORS = {
    "no such folder": (3, "integrate --site-packages nope"),
    "no such folder to show": (3, "mapping --site-packages nope"),
    "no such folder to look at": (3, "status --site-packages nope"),
    "a folder without the package": (3, "integrate --site-packages {tmp}"),
    "no such interpreter": (3, "integrate --python nope"),
    "an interpreter that fails": (3, "status --python {tmp}/failing"),
    "stock without a word": (3, "integrate --site-packages {stock}"),
    "a commit that is none": (2, "integrate --site-packages {site} --pr-commit abc"),
    "no such repository": (2, "fetch --pr-repo nope.git"),
    "a transport": (2, "fetch --pr-repo ssh://host/r.git"),
    "a prefix that leaves": (2, "fetch --pr-prefix ../x"),
    "an empty cache": (5, "integrate --site-packages {site} --offline"),
    "an anchor": (4, "integrate --site-packages {odd} --source bundled"),
    "no unit": (2, "budget --config {config} --vram 12"),
    "no unit for a recipe": (2, "recipe --config {config} --tp 2 --vram 12"),
    "heads over GPUs": (2, "budget --config {config} --tp 3"),
    "heads over GPUs for a recipe": (2, "recipe --config {config} --tp 3 --vram 12GB"),
    "a group size": (2, "budget --config {config} --group-size 7"),
    "weights alone": (2, "budget --config {config} --weights 6GB"),
    "two pools": (2, "budget --config {config} --vram 12GB --tokens 5"),
    "no config": (2, "budget --config nope.json"),
    "a config that is a folder": (2, "budget --config {tmp}"),
    "a config that is no JSON": (2, "budget --config text"),
    "a context that does not fit": (2, "recipe --config {config} --tp 2 --vram 12GB --weights 10GB"),
    "a capability": (2, "recipe --config {config} --tp 2 --vram 12GB --compute-capability x"),
    "no log": (2, "verify --log nope.log"),
    "a level without its log": (2, "verify --level log"),
    "a level without its server": (2, "verify --level live"),
    "a server address": (2, "verify --url nonsense"),
    "no such code": (2, "verify --site-packages {site} --only bogus"),
    "no such level": (2, "verify --level bogus"),
    "no wheel": (2, "demo --wheel nope.whl --source bundled"),
    "no wheel but a file": (3, "demo --wheel text"),
    "a folder that is there": (2, "demo --keep {tmp} --source bundled"),
    "no model": (2, "rotations"),
    "two jobs": (2, "rotations --inspect --calibrate dumps x.pt"),
    "no file to inspect": (2, "rotations --inspect"),
    "no dumps": (2, "rotations --calibrate nope"),
    "no such command": (2, "frobnicate"),
    "no such option": (2, "status --nope"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "line"), ERRORS.values(), ids=ERRORS)
def test_every_error_has_a_next_command_that_exists(
    code: int, line: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    args = shlex.split(line.format(**places))
    assert main(args) == code
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    hint = err.splitlines()[-1]
    assert hint.startswith("  next: ")
    assert main([*args, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == hint.removeprefix("  next: ")
    for name, rest in re.findall(r"escha-oscar ([a-z]+)((?: --?[a-z-]+(?: [^-(\s]\S*)?)*)", hint):
        options = {word for word in rest.split() if word.startswith("-")}
        assert options <= options_of(name) | {"--help"}


def options_of(name: str) -> set[str]:
    command = cli.app.get_command(click.Context(cli.app), name)
    assert command is not None
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("asked", ["integrate", "status"])
def test_the_next_commands_of_a_whole_session_can_be_pasted(
    asked: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Integrate, edit a file, and from there do only what the tool says, until nothing is left to do."""
    where, how = ["--site-packages", places["stock"]], ["--allow-upstream", "--source", "bundled"]
    edited = Path(places["stock"]) / forks.SCHEDULER
    assert main(["integrate", *where, *how]) == 0
    edited.write_text(edited.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    capsys.readouterr()
    assert main([asked, *where, *(how if asked == "integrate" else [])]) == 3
    out, err = capsys.readouterr()
    hint = (out + err).splitlines()[-1].partition("next: ")[2]
    commands = re.findall(r"escha-oscar ((?:(?!, then| \().)*)", hint)
    assert [command.split()[0] for command in commands] == ["revert", "integrate"]
    for command in commands:
        assert main(shlex.split(command)) == 0
    capsys.readouterr()
    assert main(["status", *where]) == 0
    assert "\nintegrated\n" in capsys.readouterr().out


def test_status_and_verify_say_commands_that_can_be_pasted(
    places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    site = places["site"]
    assert main(["integrate", "--site-packages", site, "--source", "bundled"]) == 0
    Path(site, forks.SCHEDULER).write_text("# gone\n", encoding="utf-8")
    capsys.readouterr()
    assert main(["status", "--site-packages", site]) == 3
    assert f"revert --force --site-packages {site} (keeps" in capsys.readouterr().out
    assert main(["status", "--site-packages", site, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["hint"].endswith(f"integrate --source bundled --site-packages {site}")
    assert main(["verify", "--level", "files", "--site-packages", site]) == 1
    assert f"--site-packages {site}" in capsys.readouterr().out
    assert main(["verify", "--level", "files", "--site-packages", site, "--json"]) == 1
    hints = [finding["hint"] for finding in json.loads(capsys.readouterr().out)["findings"] if finding["hint"]]
    assert hints and all(f"--site-packages {site}" in hint for hint in hints)
