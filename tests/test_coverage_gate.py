"""The coverage gate: it lets through what it should, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.coverage_gate import main


def report(tmp_path: Path, covered: int, branches: int) -> str:
    summary = {"covered_branches": covered, "num_branches": branches, "missing_branches": branches - covered}
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps({"totals": summary, "files": {"a.py": {"summary": summary}}}), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("covered", "code"), [(100, 0), (95, 0), (94, 1), (0, 1)])
def test_the_gate_is_95_percent_of_the_branches(
    tmp_path: Path, covered: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(report(tmp_path, covered, 100)) == code
    assert f"branches taken: {covered:.1f}%" in capsys.readouterr().out


def test_a_report_without_branches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no branches"):
        main(report(tmp_path, 0, 0))
