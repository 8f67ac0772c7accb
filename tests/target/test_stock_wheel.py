"""Downloading a stock wheel through pip: the command, the answer, and every way to fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.errors import SourceError
from escha_oscar.target.stock_wheel import download_stock_wheel

Run = subprocess.CompletedProcess[str]


class Pip:
    """Stands in for pip; notes the command and leaves ``wheels`` in the destination."""

    def __init__(self, *wheels: str, code: int = 0, errors: str = "") -> None:
        self.wheels, self.code, self.errors = wheels, code, errors
        self.command: list[str] = []
        self.env: dict[str, str] = {}

    def __call__(self, command: list[str], **options: Any) -> Run:
        self.command, self.env = command, options["env"]
        folder = Path(command[command.index("--dest") + 1])
        for name in self.wheels:
            (folder / name).write_bytes(b"wheel")
        return subprocess.CompletedProcess(command, self.code, "", self.errors)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pip]:
    def install(*wheels: str, **options: Any) -> Pip:
        stand_in = Pip(*wheels, **options)
        monkeypatch.setattr(subprocess, "run", stand_in)
        return stand_in

    return install


def test_the_wheel_of_the_release_is_returned(pip: Callable[..., Pip], tmp_path: Path) -> None:
    pip("sglang-0.5.9-py3-none-any.whl", "sglang-0.5.90-py3-none-any.whl")
    assert download_stock_wheel("0.5.9", tmp_path).name == "sglang-0.5.9-py3-none-any.whl"


def test_the_interpreters_own_pip_fetches_one_file_for_a_fixed_platform(
    pip: Callable[..., Pip], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    stand_in = pip("sglang-0.5.15-cp311-cp311-manylinux_2_34_x86_64.whl")
    download_stock_wheel("0.5.15", tmp_path)
    assert stand_in.command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--no-input", "--only-binary=:all:", "sglang==0.5.15"} <= set(stand_in.command)
    assert any(word.startswith("--platform=manylinux") for word in stand_in.command)
    assert stand_in.env["PIP_REQUIRE_VIRTUALENV"] == "0"


FAILURES = {
    "no such release": (Pip(code=1, errors="\nERROR: No matching distribution found\n\n"), "No matching distribution"),
    "no words": (Pip(code=1), "pip failed"),
    "no file": (Pip(code=0), "pip failed"),
    "another release": (Pip("sglang-0.5.10-py3-none-any.whl"), "pip failed"),
}


@pytest.mark.parametrize(("stand_in", "found"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_error_of_the_source(
    stand_in: Pip, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", stand_in)
    with pytest.raises(SourceError, match=r"sglang 0\.5\.9 cannot be downloaded") as caught:
        download_stock_wheel("0.5.9", tmp_path)
    assert found in str(caught.value.found)
    assert caught.value.hint == "escha-oscar demo --wheel FILE"


def test_an_index_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **options: Any) -> Run:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(SourceError) as caught:
        download_stock_wheel("0.5.9", tmp_path)
    assert caught.value.found == "no answer in 600 s"
