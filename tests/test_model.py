"""The frozen records: what they refuse, what they derive."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from escha_oscar import model
from escha_oscar.model import Change, Finding, Pin, Plan, PlannedFile, Report, Severity, SourceId, Target

COMMIT = "0123456789abcdef" * 2 + "01234567"
RECORDS = [cls for cls in vars(model).values() if dataclasses.is_dataclass(cls)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda cls: cls.__name__)
def test_records_are_frozen_and_documented(record: type) -> None:
    assert record.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert record.__doc__


def test_a_pin_is_a_whole_commit() -> None:
    assert Pin("https://example.invalid/x", 1, COMMIT).prefix == "python"


@pytest.mark.parametrize(
    "commit", ["", "main", COMMIT[:12], COMMIT[:39], COMMIT + "0", COMMIT.upper(), "refs/pull/32129/head", "g" * 40]
)
def test_a_pin_refuses_what_can_move(commit: str) -> None:
    with pytest.raises(ValueError, match="full 40-hex commit id"):
        Pin("https://example.invalid/x", 1, commit)


def test_a_planned_file_knows_its_digests() -> None:
    file = PlannedFile("sglang/x.py", Change.MERGE, b"a", b"b")
    assert file.before_sha256 == hashlib.sha256(b"a").hexdigest()
    assert file.after_sha256 == hashlib.sha256(b"b").hexdigest()
    assert PlannedFile("sglang/x.py", Change.CREATE, None, b"").before_sha256 is None


def test_a_plan_finds_its_files() -> None:
    target = Target(Path("/x"), "escha", "1", Path("/x/i"), "escha-moe")
    plan = Plan(target, SourceId("pr", "it"), "native", (PlannedFile("sglang/x.py", Change.CREATE, None, b""),))
    assert plan.after("sglang/x.py") == b""
    assert plan.after("sglang/y.py") is None


@pytest.mark.parametrize(
    ("severities", "ok"),
    [((), True), ((Severity.WARNING, Severity.INFO), True), ((Severity.INFO, Severity.ERROR), False)],
)
def test_only_an_error_fails_a_report(severities: tuple[Severity, ...], ok: bool) -> None:
    assert Report(tuple(Finding(severity, "code", "words") for severity in severities)).ok is ok
