from __future__ import annotations

import io
import os
import sys

import pytest

from escha_oscar.cli import _progress
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


def test_a_pipe_gets_a_line_per_step_and_no_counters(capsys: pytest.CaptureFixture[str]) -> None:
    work()
    assert capsys.readouterr().err.splitlines() == ["first\\x1b[2J", "second"]


def test_a_step_that_took_long_says_so_at_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 104.9, 104.9, 140.0])
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(clock))
    work()
    assert capsys.readouterr().err.splitlines() == ["first\\x1b[2J", "second", "  took 35 s"]


def test_a_reader_that_has_gone_stops_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb", buffering=0) as raw:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, write_through=True))
        work()


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
