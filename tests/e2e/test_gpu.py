"""The same numerics on a GPU: both half types, production shapes, long prefixes, and decode through CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.cases import GPU_CASES, broken
from tests.e2e.rig import Rig

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured(merged: Rig) -> dict[str, Any]:
    answer = merged.run("attention", GPU_CASES, {"ESCHA_OSCAR_E2E_DEVICE": "cuda"})
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("name", GPU_CASES)
def test_attention_on_a_gpu_is_right(measured: dict[str, Any], name: str) -> None:
    steps = [step for step in GPU_CASES[name]["steps"] if step[0] != "share"]
    assert len(measured[name]["outputs"]) == len(steps)
    assert not broken(GPU_CASES[name], measured[name])
