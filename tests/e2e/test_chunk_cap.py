"""Chunk cap and floor in the real scheduler of the merged tree: who is prefilled, and in what pieces, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.rig import Rig

pytestmark = pytest.mark.network

CHUNK, CAP, FLOOR = 6144, 1536, 256
CAPPED = {"SGLANG_CHUNK_DECODE_CAP": str(CAP)}
FLOORED = {"SGLANG_CHUNK_FAIR_FLOOR": str(FLOOR)}

#: Two streams that decode for the whole run, a prefill of many chunks beside them, then a queue behind it.
STREAMS = [[0, "stream-1", 100, 50], [0, "stream-2", 20, 50]]
LONG = [1, "long", 14000, 20]
QUEUE = [[2, "short-1", 100, 20], [2, "second-long", 9000, 20], [2, "short-2", 30, 20]]

Steps = list[dict[str, Any]]


def scenario(
    arrivals: list[list[Any]], env: dict[str, str], *, page_size: int = 1, mixed: bool = False, steps: int = 14
) -> dict[str, Any]:
    return dict(env=env, page_size=page_size, chunk=CHUNK, mixed=mixed, steps=steps, arrivals=arrivals)


def tiny(cap: int) -> dict[str, Any]:
    return scenario([*STREAMS, LONG], {"SGLANG_CHUNK_DECODE_CAP": str(cap)}, page_size=16, mixed=True, steps=6)


BUSY = [*STREAMS, LONG, *QUEUE]
CAP_CASES = {
    f"page {page_size}, {'mixed with decode rows' if mixed else 'prefill alone'}": (page_size, mixed)
    for page_size in (1, 16)
    for mixed in (False, True)
}
SCENARIOS = {
    "off": scenario(BUSY, {}),
    **{name: scenario(BUSY, CAPPED, page_size=page, mixed=mixed) for name, (page, mixed) in CAP_CASES.items()},
    "idle": scenario([[0, "long", 14000, 20]], {**CAPPED, **FLOORED}, steps=3),
    "streams end": scenario([[0, "stream", 100, 3], [1, "long", 14000, 20]], CAPPED, mixed=True, steps=8),
    "cap and floor": scenario(BUSY, {**CAPPED, **FLOORED}),
    "floor alone": scenario([LONG, *QUEUE], FLOORED, steps=4),
    "long queue": scenario([*STREAMS, LONG, [2, "second-long", 9000, 20]], {**CAPPED, **FLOORED}),
    **{f"cap {cap}": tiny(cap) for cap in (1, 15, 17)},
}


@pytest.fixture(scope="module")
def ran(merged: Rig) -> dict[str, Steps]:
    """The steps of every scenario on one release, from one process."""
    answer = merged.run("scheduling", SCENARIOS)
    assert isinstance(answer, dict)
    return answer


def chunks(steps: Steps, name: str) -> list[int]:
    return [step["extend"][name] for step in steps if name in step["extend"]]


def prefill_rows(steps: Steps) -> list[int]:
    """The rows of each prefill batch, decode rows that were mixed in included."""
    return [sum(step["extend"].values()) + len(step["decode"]) for step in steps if step["extend"]]


def test_without_the_variables_chunks_are_as_stock(ran: dict[str, Steps]) -> None:
    assert chunks(ran["off"], "long") == [6144, 6144, 1712]
    assert chunks(ran["off"], "short-1") == [100]
    assert chunks(ran["off"], "second-long") == [4332, 4668]


@pytest.mark.parametrize("case", CAP_CASES)
def test_no_batch_exceeds_the_cap_while_streams_decode(ran: dict[str, Steps], case: str) -> None:
    page_size, mixed = CAP_CASES[case]
    prefills = prefill_rows(ran[case][1:])
    assert len(prefills) >= 10
    assert max(prefills) <= CAP
    assert min(prefills[:9]) > CAP - page_size - len(STREAMS)
    assert all(n % page_size == 0 for n in chunks(ran[case], "long")[:-1])
    assert mixed == any(step["decode"] for step in ran[case][1:] if step["extend"])


def test_an_idle_server_uses_full_chunks(ran: dict[str, Steps]) -> None:
    assert chunks(ran["idle"], "long") == [6144, 6144, 1712]


def test_full_chunks_return_once_the_streams_have_ended(ran: dict[str, Steps]) -> None:
    assert chunks(ran["streams end"], "long") == [1535, 1535, 6144, 4786]


def test_short_requests_are_admitted_beside_a_long_prefill(ran: dict[str, Steps]) -> None:
    steps = ran["cap and floor"]
    assert steps[2]["extend"] == {"long": CAP - FLOOR, "short-1": 100, "short-2": 30}
    assert steps[3]["extend"] == {"long": CAP}, "nothing is held back once no short request waits"
    assert max(prefill_rows(steps[1:])) <= CAP


def test_the_floor_works_without_the_cap(ran: dict[str, Steps]) -> None:
    assert ran["floor alone"][2]["extend"] == {"long": CHUNK - FLOOR, "short-1": 100, "short-2": 30}


def test_a_queue_of_long_requests_holds_nothing_back(ran: dict[str, Steps]) -> None:
    assert chunks(ran["long queue"], "long")[:9] == [CAP] * 9


@pytest.mark.parametrize("cap", [1, 15, 17], ids=["one token", "less than a page", "a page and a bit"])
def test_a_cap_below_two_pages_still_makes_progress(ran: dict[str, Steps], cap: int) -> None:
    assert chunks(ran[f"cap {cap}"], "long") == [16] * 5
