"""The scheduler hands its waiting queue to the prefill adder: what the edit writes and what it refuses."""

from __future__ import annotations

import zipfile

import libcst as cst
import pytest

from escha_oscar.errors import AnchorError
from escha_oscar.merge.blast import check_blast_radius
from escha_oscar.model import Context
from escha_oscar.transforms import scheduler
from tests.e2e import rig

CONTEXT = Context(scheduler.TARGET)

SCHEDULER = """\
class Scheduler(Mixin):
    def abort(self):
        for req in self.waiting_queue:
            req.abort()

    def _get_new_batch_prefill_raw(self):
        # fork: 優先度
        adder = PrefillAdder(
            self.page_size,
            self.running_batch,
            dllm_config=self.dllm_config,
        )
        if self.chunked_req is not None:
            self.chunked_req = adder.add_chunked_req(self.chunked_req)
        for req in self.waiting_queue:
            res = adder.add_one_req(req, has_chunked_req=(self.chunked_req is not None))
            if res != AddReqResult.CONTINUE:
                break
        return adder.can_run_list
"""


def merged(source: str) -> str:
    return scheduler.transform(cst.parse_module(source), CONTEXT).code


def test_rewrites_the_call_and_the_loop() -> None:
    keyword = "            dllm_config=self.dllm_config,\n"
    loop = "        for req in self.waiting_queue:\n            res"
    expected = SCHEDULER.replace(keyword, f"{keyword}            waiting_queue=self.waiting_queue,\n").replace(
        loop, loop.replace("self.waiting_queue", "adder.admission_order(self.waiting_queue)")
    )
    assert merged(SCHEDULER) == expected


def test_a_second_run_changes_nothing() -> None:
    once = merged(SCHEDULER)
    assert merged(once) == once


@pytest.mark.parametrize(
    ("old", "new", "sought"),
    [
        pytest.param("class Scheduler", "class Engine", "class Scheduler", id="no class of that name"),
        pytest.param("PrefillAdder(", "make_adder(", "PrefillAdder(...)", id="the adder is made elsewhere"),
        pytest.param(
            "adder = PrefillAdder(", "x = PrefillAdder(); adder = PrefillAdder(", "PrefillAdder", id="made twice"
        ),
        pytest.param("adder.add_one_req(", "self.offer(adder, ", "adder.add_one_req(...)", id="offered by a helper"),
    ],
)
def test_refuses_a_tree_of_another_shape(old: str, new: str, sought: str) -> None:
    assert old in SCHEDULER
    with pytest.raises(AnchorError) as caught:
        merged(SCHEDULER.replace(old, new))
    assert sought in str(caught.value.sought)
    assert caught.value.path == scheduler.TARGET


@pytest.mark.network
@pytest.mark.parametrize("release", rig.BASES)
def test_a_stock_release_changes_inside_the_declared_radius_only(release: str) -> None:
    with zipfile.ZipFile(rig.stock_wheel(release)) as wheel:
        before = wheel.read(scheduler.TARGET)
    after = merged(before.decode()).encode()
    check_blast_radius(scheduler.TARGET, before, after, scheduler.TOUCHES)
    assert after.count(b"waiting_queue=self.waiting_queue,") == 1
    assert after.count(b"in adder.admission_order(self.waiting_queue):") == 1
    assert merged(after.decode()).encode() == after
