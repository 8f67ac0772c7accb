"""``escha-oscar verify``: arguments to exit code and output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.cli import main
from tests.support.checkpoints import MOE, write_config
from tests.support.wheels import make_site_packages
from tests.verify import mini_tree
from tests.verify.broken_trees import BACKEND, BROKEN_OURS, KV_QUANT

LINE = "KV Cache is allocated. #tokens: 350257, K size: {0} GB, V size: {0} GB\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site_packages(tmp_path, mini_tree.merged_by_us())


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["verify", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(capsys, *argv, "--json")
    return code, json.loads(out)


def test_a_good_tree_is_verified(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    code, out, err = run(capsys, "--site-packages", str(site), "--level", "static")
    assert (code, err) == (0, "")
    assert "verdict: verified (exit 0)" in out and "\x1b" not in out


def test_a_broken_tree_exits_1_and_says_what_where_and_what_next(
    capsys: pytest.CaptureFixture[str], site: Path
) -> None:
    BROKEN_OURS["a function pasted twice"][1](files := {KV_QUANT: (site / KV_QUANT).read_text()})
    (site / KV_QUANT).write_text(files[KV_QUANT])
    code, out, _ = run(capsys, "--site-packages", str(site), "--level", "static")
    assert code == 1
    line = len(files[KV_QUANT].splitlines()) - 1
    assert f"error[duplicate-definition] {KV_QUANT}:{line}: " in out
    assert "  expected: one definition" in out and "  next: escha-oscar revert" in out


def test_relative_paths_mean_the_folder_one_stands_in(
    capsys: pytest.CaptureFixture[str], site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(site.parent)
    python = os.path.relpath(sys.executable)
    relative = answer(capsys, "--site-packages", site.name, "--python", python, "--level", "imports")
    full = answer(capsys, "--site-packages", str(site), "--python", sys.executable, "--level", "imports")
    assert (relative[0], relative[1]["findings"]) == (full[0], full[1]["findings"])
    assert full[0] == 0


def test_default_levels_need_no_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = mini_tree.merged_by_us()
    root = tmp_path / "site-packages"
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    code, data = answer(capsys, "--site-packages", str(root))
    assert code == 0 and data["verdict"] == "verified"
    assert [level["level"] for level in data["levels"]] == ["files", "static"]
    assert {finding["code"] for finding in data["findings"]} == {"no-record", "owner-unclear"}
    assert data["schema_version"] == 1 and data["ok"] is True and data["exit_code"] == 0


def test_a_stock_wheel_stops_at_the_first_level(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    code, data = answer(capsys, "--site-packages", str(site), "--python", sys.executable)
    assert code == 1
    assert [(level["level"], level["ran"]) for level in data["levels"]] == [
        ("files", True), ("static", False), ("imports", False),
    ]  # fmt: skip
    assert [finding["code"] for finding in data["findings"]] == ["not-merged-yet"]


def test_errors_of_a_cheap_level_spare_the_dear_ones(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    (site / BACKEND).write_text((site / BACKEND).read_text().replace("prepare_quantized_extend_qkv(", "prepare_it(", 1))
    (site / KV_QUANT).write_text("")
    code, data = answer(
        capsys, "--site-packages", str(site), "--python", sys.executable, "--level", "static", "--level", "imports"
    )
    assert code == 1
    assert data["levels"][1] == {
        "level": "imports", "ran": False, "reason": "static found errors", "checks": 0, "skipped": [], "seconds": 0.0,
    }  # fmt: skip


def test_only_and_skip_choose_findings(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    (site / KV_QUANT).write_text(
        (site / KV_QUANT).read_text() + "\n\ndef f():\n    return gone\n\n\ndef f():\n    return 1\n"
    )
    both = ["--site-packages", str(site), "--level", "static"]
    assert {f["code"] for f in answer(capsys, *both)[1]["findings"]} == {"undefined-name", "duplicate-definition"}
    code, data = answer(capsys, *both, "--only", "undefined-name")
    assert code == 1 and [f["code"] for f in data["findings"]] == ["undefined-name"]
    code, data = answer(capsys, *both, "--skip", "undefined-name", "--skip", "duplicate-definition")
    assert code == 0 and data["findings"] == []


@pytest.mark.parametrize(
    ("size", "code", "verdict"), [("0.21", 0, "verified"), ("0.42", 0, "verified"), ("1.67", 1, "problems")]
)
def test_a_log_alone_needs_no_tree(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, size: str, code: int, verdict: str
) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE.format(size))
    config = write_config(tmp_path, MOE)
    got, data = answer(capsys, "--log", str(log), "--config", str(config), "--tp", "2", "--group-size", "32")
    assert (got, data["verdict"]) == (code, verdict)
    assert [level["level"] for level in data["levels"]] == ["log"]


def test_a_log_without_an_allocation_exits_8(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"nothing here\n\xff\xfe\n")))
    code, out, _ = run(capsys, "--log", "-")
    assert code == 8
    assert "verdict: cannot tell (exit 8)" in out and "warning[log-no-allocation]" in out


def test_a_server_that_is_not_there_exits_8(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = answer(capsys, "--url", "http://127.0.0.1:9")
    assert code == 8 and [f["code"] for f in data["findings"]] == ["live-unreachable"]


USAGE = {
    "no such level": ["--level", "deep"],
    "no such code": ["--level", "static", "--only", "no-such-code"],
    "level log without a log": ["--level", "log"],
    "level live without a server": ["--level", "live"],
    "no interpreter": ["--level", "imports"],
    "no such log": ["--level", "log", "--log", "/no/such/file.log"],
    "no address": ["--level", "live", "--url", "127.0.0.1"],
    "no config": ["--level", "static", "--config", "/no/such/config.json"],
}


@pytest.mark.parametrize("name", USAGE)
def test_bad_usage_exits_2(capsys: pytest.CaptureFixture[str], site: Path, name: str) -> None:
    code, data = answer(capsys, "--site-packages", str(site), *USAGE[name])
    assert code == 2 and data["ok"] is False and data["error"]["code"] == "usage"


def test_a_folder_that_is_none_exits_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, data = answer(capsys, "--site-packages", str(tmp_path / "nowhere"))
    assert code == 3 and data["error"]["code"] == "target"


def test_a_hostile_file_name_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "--log", str(tmp_path / "a\x1b[2Jb"))
    assert code == 2 and "\x1b" not in err


def test_files_static_and_log_never_import_torch(site: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE.format("0.21"))
    argv = ["verify", "--site-packages", str(site), "--level", "files", "--level", "static", "--log", str(log)]
    program = (
        f"import sys; from escha_oscar.cli import main; main({[*argv, '--level', 'log']!r}); "
        "sys.exit(bool({'torch', 'triton', 'sglang'} & set(sys.modules)))"
    )
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", program], env={**os.environ, **path}, check=False).returncode == 0


def test_the_table_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    from rich.console import Console

    from escha_oscar.cli import _render

    shown = io.StringIO()
    monkeypatch.setattr(_render, "console", lambda **_: Console(file=shown, force_terminal=True, width=100))
    assert main(["verify", "--site-packages", str(site), "--level", "static"]) == 0
    assert "Verification" in shown.getvalue() and "─" in shown.getvalue()
