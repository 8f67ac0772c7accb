"""``escha-oscar mapping``: the table for people and programs, and how each row stands in a tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.cli import main
from escha_oscar.cli.mapping import RowState, row_states
from escha_oscar.mapping import DECODE_PATHS, PIN, ROWS
from escha_oscar.mapping.table import ARTICLE_NOTE
from escha_oscar.merge.files import Sources
from escha_oscar.merge.plan import build_plan
from escha_oscar.model import Action
from escha_oscar.source.bundled import Bundled
from escha_oscar.tree import MemoryTree, planned
from tests.merge.test_plan import TARGET
from tests.support import forks
from tests.support.wheels import make_site_packages


def test_the_table_shows_every_row_and_symbol(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mapping"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"sglang PR #32129 at {PIN.commit}\n")
    assert out.endswith(ARTICLE_NOTE + "\n")
    for row in ROWS:
        assert all(path.removeprefix("sglang/") in out for path in (row.pr_paths[0], *row.wheel_paths[:1]))
        assert all(symbol.name in out for symbol in row.symbols)
        assert row.action is not Action.SKIP or row.reason in out
    assert out.count("(beyond the article)") == sum(not row.in_article for row in ROWS)


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mapping", "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (answer["schema_version"], answer["command"], answer["ok"]) == (1, "mapping", True)
    assert answer["pin"]["commit"] == PIN.commit
    assert [r["pr_paths"][0] for r in answer["rows"]] == [r.pr_paths[0] for r in ROWS]
    decode = next(r for r in answer["rows"] if r["wheel_paths"] == list(DECODE_PATHS))
    assert {"name": "_safe_block_h", "kind": "function", "origin": "glue", "public": True} in decode["symbols"]
    assert all("target" not in r for r in answer["rows"])


def test_a_wheel_as_shipped_has_nothing_and_an_integrated_one_has_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = make_site_packages(tmp_path, forks.OLD)
    assert states_of(site, capsys) == {
        "copy": {"absent"}, "merge": {"as the wheel ships it"}, "skip": {"not carried over"},
    }  # fmt: skip
    assert main(["integrate", "--site-packages", str(site), "--source", "bundled", "--json"]) == 0
    capsys.readouterr()
    # The package file is made empty instead of carried over, and stands there then.
    assert states_of(site, capsys) == {
        "copy": {"done"}, "merge": {"done"}, "skip": {"not carried over", "left as it is"},
    }  # fmt: skip
    assert main(["mapping", "--site-packages", str(site)]) == 0
    assert "done" in capsys.readouterr().out


def states_of(site: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, set[str]]:
    assert main(["mapping", "--site-packages", str(site), "--json"]) == 0
    found: dict[str, set[str]] = {}
    for row in json.loads(capsys.readouterr().out)["rows"]:
        found.setdefault(row["action"], set()).add(row["target"]["state"])
    return found


def state_of(path: str, states: list[RowState | None]) -> RowState:
    (state,) = [s for row, s in zip(ROWS, states, strict=True) if path in row.wheel_paths and s is not None]
    return state


def test_half_a_merge_is_counted_and_a_missing_file_is_named() -> None:
    tree = MemoryTree(forks.encoded(forks.OLD))
    plan = build_plan(TARGET, tree, Sources(None, Bundled.open()))
    after = {**tree.files, **{f.path: f.after for f in plan.files}}
    text = after[forks.DECODE].decode()
    after[forks.DECODE] = text.replace("def _safe_block_h(", "def _block_h(").encode()
    del after[forks.SERVER_ARGS]
    states = row_states(MemoryTree(after))
    assert state_of(forks.DECODE, states) == RowState(forks.DECODE, "5 of 6 symbols")
    assert state_of(forks.SERVER_ARGS, states) == RowState(None, "missing")
    assert state_of(forks.POOL, states) == RowState(forks.POOL, "done")
    assert state_of(forks.POOL, row_states(planned(plan, tree))).state == "done"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mapping", "--site-packages", str(tmp_path / "none")]) == 3
    assert "no such directory" in capsys.readouterr().err


def test_a_folder_without_the_package_has_every_row_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert states_of(tmp_path, capsys) == {"copy": {"absent"}, "merge": {"missing"}, "skip": {"not carried over"}}
