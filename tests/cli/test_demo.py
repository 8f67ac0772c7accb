"""``escha-oscar demo`` as typed, on a wheel file made by the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from escha_oscar import demo as library
from escha_oscar.cli import demo as command
from escha_oscar.cli import main
from escha_oscar.demo import Demo, Step
from escha_oscar.errors import SourceError
from escha_oscar.target import stock_wheel
from tests.support import forks
from tests.support.wheels import make_wheel
from tests.test_demo import STEPS


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path, forks.OLD, name="sglang", version="0.5.9")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[Demo]:
    """Replace the run itself, which has its own tests."""
    made: list[Demo] = []

    def run(self: Demo) -> list[Step]:
        made.append(self)
        return [Step("unpack", "a wheel", 0.25), Step("compare", "byte-identical", 0.5)]

    monkeypatch.setattr(Demo, "run", run)
    return made


def test_a_wheel_file_is_taken_through_every_step(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--wheel", str(wheel), "--source", "bundled"]) == 0
    out, err = capsys.readouterr()
    names = [line.split("  ")[1] for line in out.splitlines()[2:-1]]
    assert names == STEPS
    assert out.splitlines()[-1].startswith("done in ")
    assert "unpack" in err


def test_json_and_a_folder_that_is_kept(
    wheel: Path, tmp_path: Path, quick: list[Demo], capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "new/kept"
    assert main(["demo", "--wheel", str(wheel), "--source", "bundled", "--keep", str(kept), "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["wheel"], answer["kept"], answer["note"], err) == (wheel.name, str(kept), None, "")
    assert answer["steps"][0] == {"name": "unpack", "result": "a wheel", "seconds": 0.25}
    assert kept.is_dir() and quick[0].folder == kept


def test_the_folder_is_gone_afterwards(wheel: Path, quick: list[Demo]) -> None:
    assert main(["demo", "--wheel", str(wheel), "--source", "bundled", "--json"]) == 0
    assert not quick[0].folder.exists()


def test_a_release_is_downloaded_into_the_folder(
    wheel: Path, quick: list[Demo], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def download(version: str, folder: Path) -> Path:
        asked.append(version)
        assert folder.is_dir()
        return wheel

    monkeypatch.setattr(stock_wheel, "download_stock_wheel", download)
    assert main(["demo", "--base", "0.5.15", "--source", "bundled"]) == 0
    assert asked == ["0.5.15"]
    assert "downloading sglang 0.5.15" in capsys.readouterr().err


def test_the_bundled_source_stands_in_where_the_pull_request_cannot_be_had(
    wheel: Path, tmp_path: Path, quick: list[Demo], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["demo", "--wheel", str(wheel), "--offline"]) == 0
    note = capsys.readouterr().out.splitlines()[0]
    assert note.startswith("note: the pull request cannot be had (") and note.endswith("bundled source used")
    assert quick[0].sources.pr is None


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--wheel", "/nonexistent.whl"], 2, "no such wheel file"),
        (["--keep", "/tmp"], 2, "the folder to keep must be new"),
    ],
)
def test_bad_options_are_refused(
    options: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--source", "bundled", *options]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"text", b"PK\x05\x06" + bytes(18)], ids=["no archive", "an empty one"])
def test_a_file_that_is_no_wheel_is_refused_before_anything_is_fetched(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "sources_or_bundled", None)
    bad = tmp_path / "sglang-0.5.9-py3-none-any.whl"
    bad.write_bytes(data)
    kept = tmp_path / "kept"
    assert main(["demo", "--wheel", str(bad), "--keep", str(kept)]) == 3
    err = capsys.readouterr().err
    assert err.startswith(f"error[target]: {bad}: not a") and "--wheel" in err.splitlines()[-1]
    assert not kept.exists()


def test_a_download_that_fails_is_exit_5(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(version: str, folder: Path) -> Path:
        raise SourceError("cannot be downloaded")

    monkeypatch.setattr(stock_wheel, "download_stock_wheel", fail)
    assert main(["demo", "--source", "bundled"]) == 5
    assert "cannot be downloaded" in capsys.readouterr().err


def test_the_shown_model_has_ten_full_attention_layers() -> None:
    section = library.CONFIG["text_config"]
    assert isinstance(section, dict)
    assert section["num_hidden_layers"] // section["full_attention_interval"] == 10
