"""Fixtures: the merged trees, built once and cached."""

from __future__ import annotations

import pytest

from tests.e2e import rig


@pytest.fixture(scope="session", params=rig.RELEASES)
def merged(request: pytest.FixtureRequest) -> rig.Rig:
    """A rig over each release that the tool has integrated."""
    return rig.merged(request.param)
