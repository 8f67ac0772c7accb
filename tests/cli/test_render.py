"""What commands print: plain in pipes, colour on terminals unless told otherwise, nothing that drives the terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from escha_oscar.cli import _render, main
from escha_oscar.cli._render import Output, console, printable, set_color
from escha_oscar.cli._table import line, table
from escha_oscar.errors import ExitCode, TargetError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_lasting_color(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    yield
    set_color(None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("日本語 Größe", "日本語 Größe"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb\x00\x7f", "a\\x0db\\x00\\x7f"),
        ("right\u202eleft", "right\\x202eleft"),
        ("\ud800", "\\xd800"),
    ],
)
def test_control_characters_are_shown_and_not_sent(text: str, shown: str) -> None:
    assert printable(text) == shown


def coloured(monkeypatch: pytest.MonkeyPatch, *, stderr: bool = False) -> bool:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr" if stderr else "sys.stdout", stream)
    console(stderr=stderr).print("x", style="bold red")
    return "31" in stream.getvalue()


@pytest.mark.parametrize("stderr", [False, True], ids=["stdout", "stderr"])
def test_a_terminal_has_colour_unless_told_otherwise(stderr: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert coloured(monkeypatch, stderr=stderr)
    set_color(False)
    assert not coloured(monkeypatch, stderr=stderr)
    set_color(None)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured(monkeypatch, stderr=stderr)


def test_the_option_turns_colour_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    assert main(["--no-color", "mapping"]) == 0
    assert "\x1b[3" not in stream.getvalue().replace("\x1b[3m", "")
    assert _render._COLOR is False


def test_a_pipe_has_no_codes_and_a_fixed_width(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    out = console()
    assert out.width == 100
    out.print("[bold]x[/bold] :smile:", style="red")
    assert stream.getvalue() == "[bold]x[/bold] :smile:\n"


ROWS = [("merge", "sglang/srt/" + "very_long_name/" * 20 + "x.py", "3"), ("copy", "日本.py", "12")]


def test_a_pipe_gets_aligned_lines_that_are_never_wrapped() -> None:
    stream = io.StringIO()
    plain = Console(file=stream, width=40)
    table(plain, "files", ("change", "path", "+"), ROWS)
    line(plain, "x" * 300)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0] == "files" and lines[4] == "x" * 300
    assert lines[2].startswith("  merge   sglang/") and lines[2].endswith("x.py   3")


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_narrow_terminal_folds_cells_and_loses_nothing(width: int) -> None:
    stream = Terminal()
    table(Console(file=stream, width=width, force_terminal=True, no_color=True), "files", ("change", "path"), [
        row[:2] for row in ROWS
    ])  # fmt: skip
    text = stream.getvalue()
    assert "".join(text.split()).count("name/") >= 1
    for word in ("merge", "copy"):
        assert word in text


def test_a_result_is_one_object_or_text(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"path": Path("/x"), "text": "日本"}
    assert Output("c", True).emit(data, lambda out: out.print("never")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {
        "schema_version": 1, "command": "c", "ok": True, "exit_code": 0, "path": "/x", "text": "日本",
    }  # fmt: skip
    assert Output("c", False).emit(data, lambda out: out.print("words"), ExitCode.PROBLEMS) == 1
    assert capsys.readouterr().out == "words\n"
    assert Output("c", True).emit({}, lambda out: None, ExitCode.PROBLEMS) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_json_is_plain_ascii_whatever_the_locale(capsys: pytest.CaptureFixture[str]) -> None:
    Output("c", True).emit({"text": "日本\x1b"}, lambda out: None)
    out = capsys.readouterr().out
    assert out.isascii() and "\x1b" not in out


def test_an_error_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code = Output("c", False).error(TargetError("gone", path="a\x1b]0;title\x07", found="\x1b[2J"))
    err = capsys.readouterr().err
    assert code == ExitCode.TARGET
    assert "\x1b" not in err and "\x07" not in err
    assert err.splitlines() == ["error[target]: a\\x1b]0;title\\x07: gone", "  found: \\x1b[2J"]


@pytest.mark.parametrize(
    ("argv", "command", "as_json"),
    [
        ([], "", False),
        (["--json"], "", True),
        (["integrate", "--json"], "integrate", True),
        (["--no-color", "status"], "status", False),
        (["-h"], "", False),
    ],
)
def test_the_command_is_guessed_before_the_arguments_are_parsed(argv: list[str], command: str, as_json: bool) -> None:
    assert Output.for_argv(argv) == Output(command, as_json)
