"""The registry of codes: unique, documented, and nothing documented that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from escha_oscar.model import Severity
from escha_oscar.verify.codes import CODES, Level, finding

DOCUMENT = (Path(__file__).parents[2] / "docs/verify.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| ([a-z ]+) \| (.+) \|$", re.M)


def documented() -> dict[str, tuple[str, str, str]]:
    """Return code -> (level, severity, meaning) as docs/verify.md has them."""
    found = {}
    for section in re.split(r"^### ", DOCUMENT, flags=re.M)[1:]:
        level = section.splitlines()[0].strip()
        for name, severity, meaning in ROW.findall(section):
            found[name] = (level, severity, meaning)
    return found


def test_the_document_and_the_registry_say_the_same() -> None:
    registry = {
        code.name: (code.level.value, "cannot tell" if code.cannot_tell else code.severity.value, code.meaning)
        for code in CODES.values()
    }
    assert documented() == registry


def test_codes_are_kebab_case_and_each_level_has_some() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in CODES)
    assert {code.level for code in CODES.values()} == set(Level)


def test_an_open_question_is_never_an_error() -> None:
    assert all(code.severity is Severity.WARNING for code in CODES.values() if code.cannot_tell)


def test_a_code_that_is_not_registered_cannot_be_reported() -> None:
    with pytest.raises(KeyError):
        finding("no-such-code", "x")
