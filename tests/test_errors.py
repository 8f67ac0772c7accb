"""Every error has its exit code and its name; ``main`` turns each into a message, never into a traceback."""

from __future__ import annotations

import json

import click
import pytest

from escha_oscar import cli, errors
from escha_oscar.errors import EschaOscarError, ExitCode


def tree(cls: type[EschaOscarError]) -> list[type[EschaOscarError]]:
    return [cls, *(inner for sub in cls.__subclasses__() for inner in tree(sub))]


CODES = {
    "EschaOscarError": ("error", 1),
    "UsageError": ("usage", 2),
    "MissingExtraError": ("missing-extra", 2),
    "TargetError": ("target", 3),
    "DriftError": ("drift", 3),
    "LockedError": ("locked", 3),
    "UnreadableError": ("unreadable", 8),
    "AnchorError": ("anchor", 4),
    "SymbolError": ("symbol", 4),
    "SourceError": ("source", 5),
    "ApplyError": ("rolled-back", 6),
    "RecoveryError": ("recovery-needed", 7),
    "StoppedError": ("interrupted", 130),
    "TerminatedError": ("terminated", 143),
    "HungUpError": ("hung-up", 129),
}
ERRORS = [cls for cls in tree(EschaOscarError) if cls.__module__ == errors.__name__]
each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda cls: cls.__name__)


def test_the_table_is_the_tree() -> None:
    assert {cls.__name__: (cls.code, int(cls.exit_code)) for cls in ERRORS} == CODES


def test_exit_codes_are_distinct() -> None:
    assert len({int(code) for code in ExitCode}) == len(ExitCode)


def fail_with(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def broken(as_json: bool) -> int:
        raise failure

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, name: broken)


@each_error
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_main_prints_each_error_and_returns_its_code(
    error: type[EschaOscarError], as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, error("words", "some/file.py", 7, "this", "that", "escha-oscar status"))
    code = cli.main(["broken", *(["--json"] if as_json else [])])
    out, err = capsys.readouterr()
    assert code == int(error.exit_code)
    if as_json:
        answer = json.loads(out)
        assert (answer["ok"], answer["exit_code"], answer["schema_version"], answer["command"]) == (
            False, code, 1, "broken",
        )  # fmt: skip
        assert answer["error"] == {
            "code": error.code, "message": "words", "path": "some/file.py", "line": 7, "sought": "this",
            "found": "that", "hint": "escha-oscar status",
        }  # fmt: skip
        assert err == ""
    else:
        assert out == ""
        assert err.splitlines() == [
            f"error[{error.code}]: some/file.py:7: words", "  sought: this", "  found: that",
            "  next: escha-oscar status",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "line", "text"),
    [(None, None, "words"), ("a.py", None, "a.py: words"), ("a.py", 3, "a.py:3: words"), (None, 3, "words")],
)
def test_an_error_names_its_place(path: str | None, line: int | None, text: str) -> None:
    assert str(EschaOscarError("words", path, line)) == text


def test_an_error_of_the_program_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["broken"])
