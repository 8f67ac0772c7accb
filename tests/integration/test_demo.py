"""The demo as a new user types it, download included."""

from __future__ import annotations

import pytest

from tests.integration.conftest import typed
from tests.test_demo import STEPS


@pytest.mark.network
def test_the_demo_downloads_a_release_and_puts_every_byte_back() -> None:
    ran = typed("demo", "--base", "0.5.15", "--source", "bundled")
    assert (ran.code, ran.answer["ok"]) == (0, True), ran.answer
    assert ran.answer["wheel"].startswith("sglang-0.5.15-")
    assert [step["name"] for step in ran.answer["steps"]] == STEPS
    assert ran.answer["steps"][-1]["result"].startswith("byte-identical to the wheel")
