"""The command group: help without heavy imports, usage errors, failures as JSON, pipes, stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from escha_oscar import __version__, cli
from escha_oscar.cli import COMMANDS, main

HEAVY = ("torch", "triton", "libcst", "git", "numpy", "rich", "escha_oscar.merge.plan", "escha_oscar.transforms")
SOURCE = Path(cli.__file__).parents[2]


def run(code: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in an interpreter of its own, with nothing imported yet."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **env}
    return subprocess.run(
        [sys.executable, "-c", code, *args], env=environment, capture_output=True, text=True, check=False
    )


IMPORTED = """\
import sys
from escha_oscar.cli import main
code = main(sys.argv[1:])
print(code, sorted(set(sys.modules) & set({heavy!r})), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "args", [["--help"], ["-h"], ["--version"], [], ["mapping", "--help"], ["integrate", "--help"], ["nonsense"]]
)
def test_help_and_usage_import_nothing_heavy(args: list[str]) -> None:
    done = run(IMPORTED.format(heavy=HEAVY), *args)
    code, found = done.stderr.splitlines()[-1].split(" ", 1)
    assert found == "[]"
    assert code == ("2" if args == ["nonsense"] else "0") or not args


def test_help_lists_every_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, (_, _, line) in COMMANDS.items():
        assert f"  {name} " in out
        assert line.split()[0] in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: escha-oscar {name}")
    if not isinstance(cli.app.get_command(click.Context(cli.app), name), click.Group):
        assert "--json" in out


def test_without_a_command_the_help_is_shown_and_not_called_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    out, err = capsys.readouterr()
    assert (out + err).startswith("Usage: escha-oscar [OPTIONS] COMMAND")
    assert "error" not in out + err


def test_commands_can_be_completed_without_importing_them() -> None:
    assert cli.app.list_commands(click.Context(cli.app)) == list(COMMANDS)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


USAGE = {
    "no such command": (["nonsense"], "No such command"),
    "no such option": (["mapping", "--nonsense"], "No such option"),
    "a missing value": (["mapping", "--site-packages"], "requires an argument"),
    "a bad choice": (["integrate", "--kernels", "other"], "'other' is not one of"),
    "an extra argument": (["mapping", "extra"], "unexpected extra argument"),
}


@pytest.mark.parametrize(("args", "message"), USAGE.values(), ids=USAGE)
def test_a_usage_error_is_two_lines_on_stderr(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error[usage]: ") and message in err
    assert err.splitlines()[-1].startswith("  next: escha-oscar") and err.endswith("--help\n")


@pytest.mark.parametrize(("args", "message"), USAGE.values(), ids=USAGE)
def test_a_usage_error_is_one_object_with_json(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*args[:1], "--json", *args[1:]]) == 2
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["ok"], answer["exit_code"], answer["error"]["code"]) == (False, 2, "usage")
    assert message in answer["error"]["message"]
    assert answer["command"] == args[0]
    assert err == ""


def stand_in(monkeypatch: pytest.MonkeyPatch, failure: BaseException | None, result: object = None) -> None:
    @click.command()
    def command() -> object:
        if failure is not None:
            raise failure
        return result

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, name: command)


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (1, 1), (8, 8), ("text", 0)])
def test_the_return_value_of_a_command_is_the_exit_code(
    result: object, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, None, result)
    assert main(["status"]) == code


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), click.Abort()], ids=["interrupt", "abort"])
def test_an_interrupt_says_so_and_exits_130(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, failure)
    assert main(["status"]) == 130
    out, err = capsys.readouterr()
    assert (out, err.strip().splitlines()[0]) == (
        "", "error[interrupted]: stopped by SIGINT; no installed file was changed",
    )  # fmt: skip


def test_a_file_that_may_not_be_read_is_named_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, PermissionError(13, "Permission denied", "/site-packages/.escha-oscar/journal"))
    assert main(["status"]) == 3
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == (
        "",
        ["error[target]: /site-packages/.escha-oscar/journal: Permission denied", "  next: escha-oscar status"],
    )


def test_an_exit_inside_a_command_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, click.exceptions.Exit(3))
    assert main(["status"]) == 3


CLOSED_PIPE = """\
import os, sys
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
from escha_oscar.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["mapping"], 0),
        (["mapping", "--json"], 0),
        (["mapping", "--json", "--site-packages", "/nonexistent"], 3),
        (["mapping", "--json", "--nonsense"], 2),
    ],
)
def test_a_reader_that_has_gone_changes_no_exit_code(args: list[str], code: int) -> None:
    done = run(CLOSED_PIPE, *args)
    assert (done.returncode, done.stderr) == (code, "")


def test_the_console_script_and_the_module_are_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "escha_oscar", "mapping", "--site-packages", "/nonexistent", "--json"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "target"
    assert done.stderr == ""


def test_arguments_come_from_the_command_line_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["escha-oscar", "--version"])
    assert main() == 0
    assert __version__ in capsys.readouterr().out
