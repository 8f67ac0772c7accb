"""``escha-oscar integrate`` as typed: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.cli import integrate as command
from escha_oscar.cli import main
from escha_oscar.installed.status import Condition
from escha_oscar.integrate import Outcome
from escha_oscar.mapping import merges
from escha_oscar.model import Finding, Report, Severity
from tests.support import forks
from tests.support.environments import condition, snapshot, without_state
from tests.support.pr_tree import FILES
from tests.support.pull_request import make_pull_repository
from tests.support.wheels import make_site_packages

MERGED = {path for row in merges() for path in row.wheel_paths}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site_packages(tmp_path, forks.OLD)


Integrate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def integrate(site: Path, capsys: pytest.CaptureFixture[str]) -> Integrate:
    def run(*options: str, bundled: bool = True) -> tuple[int, str, str]:
        source = ["--source", "bundled"] if bundled else []
        code = main(["integrate", "--site-packages", str(site), *source, *options])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_run_says_what_it_did_and_what_comes_next(integrate: Integrate, site: Path) -> None:
    code, out, err = integrate()
    assert code == 0
    assert out.splitlines()[0] == f"target  escha 1.0.2+qwen3moe in {site}"
    assert "source  bundled with escha-oscar" in out
    for word in ("  merge ", "  copy ", "  place ", "  create", "symbols  ", "written as glue", "quant-kernel-init"):
        assert word in out
    assert "oscar_int2/ (" in out
    lines = out.splitlines()
    assert lines[-2].startswith("integrated: ") and lines[-2].endswith(" files written")
    assert lines[-1].startswith("next: restart the server")
    assert "merging sglang/srt/environ.py" in err and "verifying the plan" in err
    assert condition(site) is Condition.INTEGRATED


#: name -> a file of the wheel in another shape; ``patch`` and we must come to the same bytes.
SHAPES: dict[str, Callable[[str], bytes]] = {
    "utf-8": lambda text: f"{text}# Größe\n".encode(),
    "latin-1": lambda text: f"# -*- coding: latin-1 -*-\n{text}# Größe\n".encode("latin-1", errors="replace"),
    "carriage returns": lambda text: text.replace("\n", "\r\n").encode(),
    "no final newline": lambda text: text.rstrip("\n").encode(),
    "tabs": lambda text: text.replace("    ", "\t").encode(),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_diff_on_stdout_applied_by_patch_is_the_integration(
    shape: Callable[[str], bytes], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    shaped = {path: shape(text) if path in MERGED else text for path, text in forks.OLD.items()}
    site = make_site_packages(tmp_path / "integrated", shaped)
    patched = make_site_packages(tmp_path / "patched", shaped) / "sglang"
    words = ["integrate", "--source", "bundled", "--site-packages", str(site)]
    assert main([*words, "--dry-run", "--diff"]) == 0
    diff = capfdbinary.readouterr().out
    assert main(words) == 0
    subprocess.run(["patch", "-p1", "--silent", "--binary"], cwd=patched.parent, input=diff, check=True)
    assert {str(path.relative_to(patched)): path.read_bytes() for path in patched.rglob("*") if path.is_file()} == {
        str(path.relative_to(site / "sglang")): path.read_bytes()
        for path in (site / "sglang").rglob("*")
        if path.is_file()
    }


def test_a_second_run_has_nothing_to_do(integrate: Integrate, site: Path) -> None:
    integrate()
    before = snapshot(site)
    code, out, _ = integrate()
    assert (code, out) == (0, f"target  escha 1.0.2+qwen3moe in {site}\nalready integrated, nothing to do\n")
    assert snapshot(site) == before


def test_json_is_one_object_that_tells_all(integrate: Integrate, site: Path) -> None:
    code, out, err = integrate("--json")
    answer: dict[str, Any] = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["ok"], answer["written"], answer["already_integrated"], answer["dry_run"]) == (
        True,
        True,
        False,
        False,
    )
    assert answer["target"]["distribution"] == "escha" and answer["target"]["family"] == "escha-moe"
    assert answer["source"]["kind"] == "bundled"
    assert {f["path"]: f["change"] for f in answer["files"]}[forks.POOL] == "merge"
    for entry in answer["files"]:
        assert set(entry) == {"path", "change", "sha256", "lines"}
    assert {s["symbol"]: s["taken_from"] for s in answer["symbols"]}["_safe_block_h"] == "glue"
    assert answer["repairs"][0]["name"] == "quant-kernel-init"
    assert answer["findings"] == [] and answer["overlay"] is None and "diff" not in answer
    assert json.loads(integrate("--json")[1])["already_integrated"] is True


def test_a_dry_run_does_everything_but_write(integrate: Integrate, site: Path) -> None:
    before = snapshot(site)
    code, out, _ = integrate("--dry-run")
    assert code == 0
    assert "dry run: " in out.splitlines()[-1] and out.endswith("files would be written, verification passed\n")
    answer = json.loads(integrate("--dry-run", "--json")[1])
    assert (answer["dry_run"], answer["written"]) == (True, False)
    assert snapshot(site) == before


def test_the_diff_alone_is_on_stdout_and_makes_the_merged_tree(
    integrate: Integrate, site: Path, tmp_path: Path
) -> None:
    code, out, err = integrate("--dry-run", "--diff")
    assert code == 0
    assert err.splitlines()[-1].startswith("dry run: ")
    assert out.startswith("diff --git a/sglang/")
    copy = make_site_packages(tmp_path / "copy", forks.OLD)
    subprocess.run(["git", "apply"], cwd=copy, input=out.encode(), check=True)
    answer = json.loads(integrate("--diff", "--json")[1])
    assert answer["diff"] == out
    for entry in answer["files"]:
        assert (copy / entry["path"]).read_bytes() == (site / entry["path"]).read_bytes()


def test_an_overlay_prints_its_path_line_and_leaves_the_wheel_alone(
    integrate: Integrate, site: Path, tmp_path: Path
) -> None:
    before = snapshot(site)
    overlay = tmp_path / "overlay"
    code, out, _ = integrate("--overlay", str(overlay))
    assert code == 0
    assert out.splitlines()[-2:] == [f"overlay written to {overlay}", f"export PYTHONPATH={overlay}"]
    assert snapshot(site) == before
    assert (overlay / forks.SCHEDULER).is_file()


@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["for real", "dry run"])
@pytest.mark.parametrize("place", ["site-packages/inside", "taken"])
def test_an_overlay_that_cannot_be_there_is_refused_before_anything_is_planned(
    place: str, options: list[str], integrate: Integrate, tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    code, out, err = integrate("--overlay", str(tmp_path / place), *options)
    assert (code, out) == (2, "")
    assert err.startswith("error[usage]: ") and "  next: name a folder" in err


def test_the_path_line_of_an_overlay_holds_wherever_it_is_pasted(
    integrate: Integrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = integrate("--overlay", "an overlay")
    assert (code, out.splitlines()[-1]) == (0, f"export PYTHONPATH='{tmp_path}/an overlay'")


def test_a_local_repository_serves_as_the_pull_request(integrate: Integrate, site: Path, tmp_path: Path) -> None:
    pull = make_pull_repository(tmp_path / "pr.git", FILES)
    options = ("--pr-repo", str(pull.path), "--pr-commit", pull.pinned)
    before = snapshot(site)
    code, out, _ = integrate(*options, bundled=False)
    assert code == 0
    assert "from the pull request" in out
    assert "  load_oscar_rotations: bundled, because a call does not fit: unknown keyword layer_ids" in out
    assert "  byte-identical to the source: sglang/srt/mem_cache/kv_quant_kernels.py" in out
    assert "rebound-constexpr" in out and "head-tile" in out
    assert pull.pinned in (site / forks.DECODE).read_text(encoding="utf-8").splitlines()[0]
    answer = json.loads(integrate(*options, "--json", "--offline", bundled=False)[1])
    assert (answer["already_integrated"], answer["source"]["commit"]) == (True, pull.pinned)
    assert main(["revert", "--site-packages", str(site)]) == 0
    assert without_state(snapshot(site)) == before


def test_strict_fails_where_the_pull_request_does_not_serve(integrate: Integrate, site: Path, tmp_path: Path) -> None:
    pull = make_pull_repository(tmp_path / "pr.git", FILES)
    before = snapshot(site)
    options = ("--pr-repo", str(pull.path), "--pr-commit", pull.pinned, "--strict", "--json")
    code, out, _ = integrate(*options, bundled=False)
    error = json.loads(out)["error"]
    assert (code, error["code"], error["sought"]) == (4, "symbol", "load_oscar_rotations")
    assert error["found"] == "a call does not fit: unknown keyword layer_ids"
    assert error["hint"] == f"escha-oscar integrate --source bundled --site-packages {site}"
    assert snapshot(site) == before


IDLE = {
    "repository": ["--pr-repo", "https://host/r.git"],
    "commit": ["--pr-commit", "a" * 40],
    "prefix": ["--pr-prefix", "python"],
    "strict": ["--strict"],
}


@pytest.mark.parametrize("options", IDLE.values(), ids=IDLE)
def test_an_option_that_the_bundled_source_ignores_is_refused(
    options: list[str], integrate: Integrate, site: Path
) -> None:
    before = snapshot(site)
    code, out, err = integrate(*options)
    assert (code, out) == (2, "")
    assert options[0] in err and "--source bundled" in err and "  next: " in err
    assert snapshot(site) == before


def broken(files: forks.Files, path: str, text: str | None) -> forks.Files:
    return {name: data for name, data in {**files, path: text}.items() if data is not None}


NO_DECODE = broken(forks.OLD, forks.DECODE, None)
FAILURES: dict[str, tuple[forks.Files, list[str], int, str, str]] = {
    "a missing file": (broken(forks.OLD, forks.POLICY, None), [], 3, "target", forks.POLICY),
    "neither decode file": (NO_DECODE, [], 3, "target", "sglang/kernels/ops/attention/decode_attention.py"),
    "a renamed anchor": (
        broken(forks.OLD, forks.POOL, forks.POOL_TEXT.replace("class HybridLinearKVPool", "class HybridPool")),
        [], 4, "anchor", "class HybridLinearKVPool",
    ),
    "a file that does not parse": (broken(forks.OLD, forks.RUNNER, "def f(:\n"), [], 4, "anchor", forks.RUNNER),
    "a hand merge": (
        broken(forks.OLD, forks.DECODE, forks.DECODE_TEXT + "\n\ndef _safe_block_h(a, b):\n    return a\n"),
        [], 3, "target", "_safe_block_h",
    ),
    "a source that is not there": (
        forks.OLD, ["--source", "pr", "--offline"], 5, "source", "",
    ),
    "a commit that is none": (forks.OLD, ["--source", "pr", "--pr-commit", "main"], 2, "usage", ""),
}  # fmt: skip


@pytest.mark.parametrize(("files", "options", "code", "name", "word"), FAILURES.values(), ids=FAILURES)
def test_a_failure_writes_nothing_and_says_why(
    files: forks.Files, options: list[str], code: int, name: str, word: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    site = make_site_packages(tmp_path, files)
    before = snapshot(site)
    args = ["integrate", "--site-packages", str(site), *(options or ["--source", "bundled"])]
    assert main([*args, "--json"]) == code
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["code"] == name
    assert word in json.dumps(error)
    assert err == ""
    assert main(args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error[{name}]: " in err and "Traceback" not in err
    assert without_state(snapshot(site)) == before


def test_a_merge_that_somebody_edited_is_refused_by_name_and_never_doubled(integrate: Integrate, site: Path) -> None:
    integrate()
    path = site / forks.DECODE
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("def _safe_block_h(", "def _block_h("), encoding="utf-8")
    before = snapshot(site)
    code, out, err = integrate()
    assert (code, out) == (3, "")
    assert forks.DECODE in err and "  next: escha-oscar" in err
    assert snapshot(site) == before
    assert main(["revert", "--site-packages", str(site), "--force"]) == 0
    assert integrate()[0] == 0
    assert path.read_text(encoding="utf-8") == text


def test_a_read_only_leftover_of_another_tool_is_no_obstacle(integrate: Integrate, site: Path) -> None:
    leftover = site / f"{forks.POOL}.orig"
    leftover.write_text("theirs", encoding="utf-8")
    leftover.chmod(0o400)
    assert integrate()[0] == 0
    assert leftover.read_text(encoding="utf-8") == "theirs"


def test_stock_sglang_needs_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = make_site_packages(tmp_path, forks.OLD, name="sglang", version="0.5.9")
    args = ["integrate", "--site-packages", str(site), "--source", "bundled", "--dry-run"]
    assert main(args) == 3
    assert "--allow-upstream" in capsys.readouterr().err
    assert main([*args, "--allow-upstream"]) == 0


def test_findings_are_printed_and_nothing_is_written(
    integrate: Integrate, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from escha_oscar import integrate as library

    report = Report((Finding(Severity.ERROR, "undefined-name", "cdiv is not defined", "sglang/x.py", 7),))
    monkeypatch.setattr(library, "check_tree", lambda *args, **options: report)
    before = snapshot(site)
    code, out, _ = integrate()
    assert code == 1
    assert "error undefined-name: sglang/x.py:7: cdiv is not defined" in out
    assert out.splitlines()[-1] == "verification found problems; nothing was written"
    code, out, _ = integrate("--json")
    answer = json.loads(out)
    assert (code, answer["ok"], answer["written"]) == (1, False, False)
    assert answer["findings"][0]["severity"] == "error"
    assert snapshot(site) == before


def test_a_warning_of_the_target_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = make_site_packages(tmp_path, forks.OLD, version="9.9.9+qwen3moe")
    assert main(["integrate", "--site-packages", str(site), "--source", "bundled", "--dry-run"]) == 0
    assert any(line.startswith("warning ") and "9.9.9" in line for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("no_color", [False, True], ids=["coloured", "NO_COLOR"])
def test_a_diff_on_a_terminal_has_the_terminals_own_colours_and_no_background(site: Path, no_color: bool) -> None:
    import io

    from rich.console import Console

    from escha_oscar.model import Change, Plan, PlannedFile, SourceId, Target

    target = Target(site, "escha", "1", site, "escha-moe")
    file = PlannedFile("sglang/x.py", Change.MERGE, b"a\nsame\n", "b\x1b[2J [bold]日本\nsame\n".encode())
    plan = Plan(target, SourceId("pr", "it"), "native", (file,))
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, color_system="standard", width=20, no_color=no_color)
    command.print_diff(terminal, plan)
    lines = stream.getvalue().splitlines()
    for text, color in (("-a", 31), ("+b\\x1b[2J [bold]日本", 32), ("@@ -1,2 +1,2 @@", 36)):
        assert (text if no_color else f"\x1b[{color}m{text}\x1b[0m") in lines
    assert " same" in lines
    assert not any("\x1b[4" in line or ";4" in line for line in lines)


def test_an_outcome_that_only_was_prepared_says_nothing_to_do(site: Path) -> None:
    from escha_oscar.model import Plan, SourceId, Target

    plan = Plan(Target(site, "escha", "1", site, "escha-moe"), SourceId("pr", "it"), "native", ())
    assert command._verdict(Outcome(plan, Report()), dry_run=False) == "nothing to do"
