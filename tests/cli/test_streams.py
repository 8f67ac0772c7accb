"""What the surroundings do to a command: closed streams, other encodings, signals before and after a change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from escha_oscar import cli
from escha_oscar.disk.signals import deferred, immediate
from escha_oscar.errors import HungUpError, StoppedError, TerminatedError
from tests.support import forks
from tests.support.environments import snapshot
from tests.support.wheels import make_site_packages

SOURCE = Path(cli.__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": str(tmp_path / "cache")}


CLOSED = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-", "all": "<&- >&- 2>&-"}
COMMANDS = {
    "text": (["mapping"], 0),
    "json": (["mapping", "--json"], 0),
    "a failure": (["mapping", "--site-packages", "/nonexistent"], 3),
    "a failure as json": (["status", "--json", "--site-packages", "/nonexistent"], 3),
    "usage": (["mapping", "--nonsense"], 2),
    "help": (["mapping", "--help"], 0),
    "standard input": (["verify", "--log", "-"], 8),
}


@pytest.mark.parametrize("closed", CLOSED.values(), ids=CLOSED)
@pytest.mark.parametrize(("args", "code"), COMMANDS.values(), ids=COMMANDS)
def test_a_closed_stream_changes_no_exit_code(
    args: list[str], code: int, closed: str, environment: dict[str, str]
) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "escha_oscar", *args]
    done = subprocess.run(shell, stdin=subprocess.DEVNULL, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stdout + done.stderr and "Exception" not in done.stderr


FULL = {
    "text": (["mapping"], 3),
    "json": (["mapping", "--json"], 3),
    "a failure as json": (["verify", "--log", "/nonexistent", "--json"], 2),
    "usage as json": (["mapping", "--nonsense", "--json"], 2),
}


@pytest.mark.parametrize(("args", "code"), FULL.values(), ids=FULL)
def test_a_full_disk_is_said_and_never_taken_for_success(
    args: list[str], code: int, environment: dict[str, str]
) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "escha_oscar", *args]
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        silent = subprocess.run(command, env=environment, stdout=full, stderr=full, check=False)
    assert done.returncode == silent.returncode == code
    assert done.stderr == "error[target]: the output could not be written: No space left on device\n"


def test_with_closed_streams_no_output_goes_into_the_files_that_are_written(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    loud, closed = make_site_packages(tmp_path / "a", forks.OLD), make_site_packages(tmp_path / "b", forks.OLD)
    for site, redirection in ((loud, ""), (closed, ">&- 2>&-")):
        args = [sys.executable, "-m", "escha_oscar", "integrate", "--source", "bundled", "--site-packages", str(site)]
        shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *args]
        assert subprocess.run(shell, env=environment, capture_output=True, check=False).returncode == 0
    assert {path: data for path, data in snapshot(loud).items() if not path.startswith(".escha-oscar")} == {
        path: data for path, data in snapshot(closed).items() if not path.startswith(".escha-oscar")
    }


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("command", ["status", "mapping", "integrate"])
def test_no_encoding_makes_a_path_unprintable(
    command: str, encoding: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    site = make_site_packages(tmp_path / "日本語", forks.OLD)
    args = [command, "--site-packages", str(site), *(["--source", "bundled", "--dry-run"] * (command == "integrate"))]
    done = subprocess.run(
        [sys.executable, "-m", "escha_oscar", *args],
        env={**environment, "PYTHONIOENCODING": encoding, "LC_ALL": "C"}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    shown = "日本語" if encoding == "utf-8" else "\\u65e5\\u672c\\u8a9e"
    assert command == "mapping" or shown in done.stdout.decode("utf-8")


SLOW = """\
import sys
from escha_oscar.merge import plan
from escha_oscar.cli import main

def build_plan(*args):
    print("planning", file=sys.stderr, flush=True)
    sys.stdin.read()
plan.build_plan = build_plan
import escha_oscar.integrate
escha_oscar.integrate.build_plan = build_plan
sys.exit(main(sys.argv[1:]))
"""
SIGNALS = {
    signal.SIGINT: (130, "interrupted"),
    signal.SIGTERM: (143, "terminated"),
    signal.SIGHUP: (129, "hung-up"),
}


@pytest.mark.parametrize(("number", "code", "name"), [(n, *rest) for n, rest in SIGNALS.items()], ids=str)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_signal_while_planning_says_that_nothing_was_changed(
    number: signal.Signals, code: int, name: str, as_json: bool, tmp_path: Path, environment: dict[str, str]
) -> None:
    site = make_site_packages(tmp_path, forks.OLD)
    before = snapshot(site)
    args = ["integrate", "--site-packages", str(site), "--source", "bundled", *(["--json"] * as_json)]
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, *args], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        assert any(line == "planning\n" for line in running.stderr)
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert running.returncode == code
    sentence = f"stopped by {number.name}; no installed file was changed"
    if as_json:
        answer = json.loads(out)
        assert (answer["ok"], answer["exit_code"], answer["error"]["code"]) == (False, code, name)
        assert answer["error"]["message"] == sentence
    else:
        assert out == "" and f"error[{name}]: {sentence}\n" in err
    assert "Traceback" not in err
    assert snapshot(site) == before


def test_a_signal_after_a_change_does_not_say_that_there_was_none() -> None:
    with immediate() as stop:
        with deferred() as held:
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(TerminatedError, match="the tree was put back"):
                held.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGINT)  # the second is not heard
        error = stop.error()
    assert isinstance(error, HungUpError)
    assert error.message == "stopped by SIGHUP after the change had ended: the tree is whole"
    assert error.hint == "escha-oscar status"


def test_without_a_signal_an_interrupt_counts_as_sigint() -> None:
    with immediate() as stop:
        error = stop.error()
    assert type(error) is StoppedError and "SIGINT" in error.message


@pytest.mark.parametrize("section", [immediate, deferred])
def test_handlers_are_given_back_and_ignored_signals_stay_ignored(section: type[object]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        handlers = [signal.getsignal(number) for number in SIGNALS]
        with section():  # type: ignore[attr-defined]
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) not in handlers
        assert [signal.getsignal(number) for number in SIGNALS] == handlers
    finally:
        signal.signal(signal.SIGHUP, before)
