"""Without int2 the merged tree computes what the stock tree computes, bit for bit."""

from __future__ import annotations

import pytest

from tests.e2e import rig
from tests.e2e.cases import case

pytestmark = pytest.mark.network


@pytest.mark.parametrize("hybrid", [False, True], ids=["plain pool", "hybrid pool"])
def test_attention_over_an_fp16_cache_is_unchanged(merged: rig.Rig, hybrid: bool) -> None:
    asked = case(6, 1, 64, None, "float16", hybrid=hybrid, layers=[3, 7] if hybrid else [0])
    digests = merged.run("unpacked", asked)
    assert len(set(digests)) == len(digests) == 5
    assert digests == rig.stock(merged.release).run("unpacked", asked)
