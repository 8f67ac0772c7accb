"""The rig itself: the stock trees import without a GPU, from where they should."""

from __future__ import annotations

import pytest

from tests.e2e import rig

pytestmark = pytest.mark.network

MODULES = [
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.layers.radix_attention",
    "sglang.srt.managers.schedule_policy",
    "sglang.srt.managers.scheduler",
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.model_executor.forward_batch_info",
]


@pytest.mark.parametrize("release", rig.RELEASES)
def test_the_stock_modules_import_from_the_rigs_own_tree(release: str) -> None:
    stock = rig.stock(release)
    places = stock.run("imports", MODULES)
    assert sorted(places) == MODULES
    assert all(place.startswith(f"{stock.tree}/sglang/") for place in places.values())


def test_a_failing_program_reports_its_traceback() -> None:
    stock = rig.stock(rig.RELEASES[0])
    with pytest.raises(AssertionError, match=r"No module named 'sglang\.absent'"):
        stock.run("imports", ["sglang.absent"])
