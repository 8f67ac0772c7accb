"""The chunk cap and floor in ``PrefillAdder``: what the edit writes, when it does nothing, what it refuses."""

from __future__ import annotations

import textwrap
import zipfile

import libcst as cst
import pytest

from escha_oscar.errors import AnchorError
from escha_oscar.merge.blast import check_blast_radius
from escha_oscar.model import Context
from escha_oscar.transforms import schedule_policy
from tests.e2e import rig

CONTEXT = Context(schedule_policy.TARGET)

# As a fork has it: a marker of its own in each method, its own name for the decode rows.
ADDER = """\
# Fork notice: 公平性のための変更あり
from __future__ import annotations

import logging

from typing import List, Optional


class PrefillAdder:
    def __init__(self, page_size: int, running_batch, rem_chunk_tokens: Optional[int], decode_rows: int = 0):
        self.page_size = page_size
        self.running_batch = running_batch
        self.rem_chunk_tokens = rem_chunk_tokens
        if self.rem_chunk_tokens is not None:
            self.rem_chunk_tokens -= decode_rows
        self.new_chunked_req = None  # fork: kept

    def add_chunked_req(self, req):
        _rem_tokens = min(self.rem_chunk_tokens, int(self.rem_total_tokens))
        if _rem_tokens <= 0:
            _rem_tokens = self.rem_chunk_tokens
        return self.run(req, _rem_tokens)

    def add_one_req_ignore_eos(self, req):
        if self.rem_chunk_tokens is None or req.extend_input_len <= self.rem_chunk_tokens:
            self.can_run_list.append(req)
        else:
            self.new_chunked_req = req
        return self.budget_state()

    def add_one_req(self, req, has_chunked_req: bool):
        with self._lock_node(req.last_node):
            if self.rem_chunk_tokens is None or req.extend_input_len <= self.rem_chunk_tokens:
                self.can_run_list.append(req)
            else:
                # fork: at least one page
                self.new_chunked_req = req
        return self.budget_state()

    def untouched(self):
        return self.rem_chunk_tokens
"""

INITIALISED = """\
        self.new_chunked_req = None  # fork: kept
        self.waiting_queue = waiting_queue or []
        self.held_back_chunk_tokens = 0
        self._cap_chunk_beside_decode(decode_rows)
"""


def merged(source: str) -> str:
    return schedule_policy.transform(cst.parse_module(source), CONTEXT).code


def with_indent(text: str, prefix: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n") + "\n", prefix)


def test_rewrites_the_adder_and_nothing_else() -> None:
    expected = ADDER
    for old, new in (
        (
            "from typing import List, Optional\n",
            "from typing import List, Optional\nfrom sglang.srt.environ import envs\n",
        ),
        ("decode_rows: int = 0)", "decode_rows: int = 0, waiting_queue: Optional[List[Req]] = None)"),
        ("        self.new_chunked_req = None  # fork: kept\n", INITIALISED),
        ("min(self.rem_chunk_tokens, int", "min(self._long_prefill_budget(), int"),
        (
            "            _rem_tokens = self.rem_chunk_tokens\n",
            "            _rem_tokens = self._long_prefill_budget()\n",
        ),
        (
            "        else:\n            self.new",
            "        else:\n            if self.held_back_chunk_tokens > 0:\n"
            "                return AddReqResult.OTHER\n            self.new",
        ),
        (
            "            else:\n                # fork",
            "            else:\n                if has_chunked_req and self.held_back_chunk_tokens > 0:\n"
            "                    return AddReqResult.OTHER\n                # fork",
        ),
    ):
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    expected += "\n" + with_indent(schedule_policy._METHODS, "    ")
    assert merged(ADDER) == expected


def test_a_second_run_changes_nothing() -> None:
    once = merged(ADDER)
    assert merged(once) == once


def test_a_tree_with_a_floor_of_its_own_keeps_it_and_gets_the_cap() -> None:
    fork = ADDER.replace(
        "        _rem_tokens = min(self.rem_chunk_tokens,",
        '        floor = int(os.environ.get("SGLANG_CHUNK_FAIR_FLOOR", "256"))\n'
        "        _rem_tokens = min(self.rem_chunk_tokens - floor,",
    )
    after = merged(fork)
    assert "self._cap_chunk_beside_decode(decode_rows)\n" in after
    assert "min(self.rem_chunk_tokens - floor, int(self.rem_total_tokens))" in after
    assert "return AddReqResult.OTHER" not in after
    assert merged(after) == after


@pytest.mark.parametrize(
    ("old", "new", "sought"),
    [
        pytest.param("class PrefillAdder", "class Adder", "class PrefillAdder", id="no class of that name"),
        pytest.param("-= decode_rows", "-= 2 * decode_rows", "self.rem_chunk_tokens -= ...", id="another budget"),
        pytest.param(
            "self.rem_chunk_tokens -= decode_rows",
            "self.rem_chunk_tokens -= decode_rows; self.rem_chunk_tokens -= decode_rows",
            "self.rem_chunk_tokens -= ...",
            id="the budget is reduced twice",
        ),
        pytest.param("def add_chunked_req", "def add_chunk", "PrefillAdder.add_chunked_req", id="no such method"),
        pytest.param(
            "                self.new_chunked_req = req\n",
            "                self.start_chunk(req)\n",
            "self.new_chunked_req = req in PrefillAdder.add_one_req",
            id="a chunk starts elsewhere",
        ),
    ],
)
def test_refuses_a_tree_of_another_shape(old: str, new: str, sought: str) -> None:
    assert old in ADDER
    with pytest.raises(AnchorError) as caught:
        merged(ADDER.replace(old, new))
    assert sought in str(caught.value.sought)
    assert caught.value.path == schedule_policy.TARGET


def test_refuses_a_continuation_that_never_reads_the_budget() -> None:
    start, end = ADDER.index("    def add_chunked_req"), ADDER.index("    def add_one_req_ignore_eos")
    blind = ADDER[:start] + ADDER[start:end].replace("self.rem_chunk_tokens", "self.limit") + ADDER[end:]
    with pytest.raises(AnchorError, match="did not match") as caught:
        merged(blind)
    assert caught.value.sought == "self.rem_chunk_tokens in PrefillAdder.add_chunked_req"


@pytest.mark.network
@pytest.mark.parametrize("release", rig.BASES)
def test_a_stock_release_changes_inside_the_declared_radius_only(release: str) -> None:
    with zipfile.ZipFile(rig.stock_wheel(release)) as wheel:
        before = wheel.read(schedule_policy.TARGET)
    after = merged(before.decode()).encode()
    check_blast_radius(schedule_policy.TARGET, before, after, schedule_policy.TOUCHES)
    assert after.count(b"self._cap_chunk_beside_decode(") == 1
    assert after.count(b"self._long_prefill_budget()") == 2
    assert merged(after.decode()).encode() == after
