"""Which levels run, what spares them, and what the verdict is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from escha_oscar.errors import ExitCode, UsageError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.model import Report, Severity, sha256
from escha_oscar.verify import run as runner
from escha_oscar.verify.codes import Level, finding
from escha_oscar.verify.run import LevelResult, Request, run, verdict
from escha_oscar.verify.subprocesses import Interpreter
from tests.support.environments import ENVIRON, make_environment, make_plan

TREE = (Level.FILES, Level.STATIC, Level.IMPORTS, Level.NUMERICS)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[Level, str]:
    """Let each level report the one code that the test puts here, or nothing."""
    script: dict[Level, str] = {}
    levels = {
        level: lambda _, level=level: Report((finding(script[level], "x"),) if level in script else ())
        for level in Level
    }
    monkeypatch.setattr(runner, "_LEVELS", levels)
    return script


def ran(results: tuple[LevelResult, ...]) -> list[str]:
    return [result.level.value for result in results if not result.spared]


def test_levels_run_cheapest_first_whatever_the_order_asked(scripted: dict[Level, str]) -> None:
    seen: list[Level] = []
    results = run(Request(tuple(reversed(list(Level)))), seen.append)
    assert seen == list(Level) == [result.level for result in results]
    assert verdict(results) is ExitCode.OK


@pytest.mark.parametrize("code", ["not-merged-yet", "shadowed", "interrupted"])
def test_a_tree_that_is_not_in_place_spares_the_rest(scripted: dict[Level, str], code: str) -> None:
    scripted[Level.FILES] = code
    results = run(Request((*TREE, Level.LOG)))
    assert ran(results) == ["files", "log"] and code in results[1].spared


def test_an_edited_file_still_lets_static_speak(scripted: dict[Level, str]) -> None:
    scripted[Level.FILES] = "file-edited"
    assert ran(run(Request(TREE))) == ["files", "static"]


def test_a_warning_spares_nothing(scripted: dict[Level, str]) -> None:
    scripted[Level.FILES], scripted[Level.STATIC] = "leftover", "cell-size-without-scales"
    results = run(Request(TREE))
    assert ran(results) == [level.value for level in TREE] and verdict(results) is ExitCode.OK


def test_an_error_outweighs_an_open_question(scripted: dict[Level, str]) -> None:
    scripted[Level.LOG] = "log-no-allocation"
    assert verdict(run(Request((Level.LOG,)))) is ExitCode.CANNOT_TELL
    scripted[Level.LIVE] = "live-size"
    assert verdict(run(Request((Level.LOG, Level.LIVE)))) is ExitCode.PROBLEMS


def test_a_finding_that_is_left_out_spares_nothing(scripted: dict[Level, str]) -> None:
    scripted[Level.FILES] = "shadowed"
    assert ran(run(Request(TREE, skip=frozenset({"shadowed"})))) == [level.value for level in TREE]


@pytest.mark.parametrize("level", [Level.FILES, Level.STATIC, Level.IMPORTS, Level.NUMERICS, Level.LIVE])
def test_a_level_says_what_it_lacks(level: Level) -> None:
    with pytest.raises(UsageError, match=r"no tree|no interpreter|needs a server"):
        run(Request((level,)))


def test_imports_and_numerics_need_an_interpreter_and_a_tree(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no interpreter"):
        run(Request((Level.NUMERICS,), site_packages=tmp_path))
    results = run(Request((Level.NUMERICS,), site_packages=tmp_path, interpreter=Interpreter(Path(sys.executable))))
    assert [f.code for f in results[0].report.findings] == ["numerics-no-kernels"]
    results = run(Request((Level.IMPORTS,), site_packages=tmp_path, interpreter=Interpreter(tmp_path / "none")))
    assert [f.code for f in results[0].report.findings] == ["imports-cannot-tell"]


def test_static_judges_without_the_tree_before_and_says_so(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    original = (site / ENVIRON).read_bytes()
    apply_plan(make_plan(site))
    request = Request((Level.STATIC,), site)
    assert "no-base" not in {found.code for found in run(request)[0].report.findings}
    backup = site / ".escha-oscar/originals" / sha256(original)
    backup.write_bytes(b"altered")
    notes = [found for found in run(request)[0].report.findings if found.code == "no-base"]
    assert [(note.severity, note.path) for note in notes] == [(Severity.INFO, str(backup))]
    assert "missing or was altered" in str(notes[0].found)
