from __future__ import annotations

import io
import sys

import pytest

from escha_oscar.cli._progress import progress_sink


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(quiet: bool = False) -> None:
    with progress_sink(quiet=quiet) as progress:
        progress.step("first\x1b[2J")
        for done in range(1, 41):
            progress.advance(done, 40)
        progress.step("second")
        progress.advance(5)


def test_a_pipe_gets_a_line_per_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    work()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["first\\x1b[2J", *(f"  {n}/40" for n in range(4, 41, 4)), "second"]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    work(quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_on_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    work()
    assert "second" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()
    assert capsys.readouterr().out == ""
