"""Fixtures: an environment to integrate into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.environments import make_environment


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_environment(tmp_path)
