"""Attention through the real pools, backend and layers of the merged tree against fp64 over the dequantised cache."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.cases import CASES, broken
from tests.e2e.rig import Rig

# One process measures all cases of a release; Triton's interpreter takes minutes on a busy machine.
pytestmark = [pytest.mark.network, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def measured(merged: Rig) -> dict[str, Any]:
    """Every case on one release, measured in one process."""
    answer = merged.run("attention", CASES)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("name", CASES)
def test_attention_over_the_int2_cache_is_right(measured: dict[str, Any], name: str) -> None:
    steps = [step for step in CASES[name]["steps"] if step[0] != "share"]
    assert len(measured[name]["outputs"]) == len(steps)
    assert not broken(CASES[name], measured[name])
