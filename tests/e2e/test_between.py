"""The releases between the two that the wheels stand close to: a smaller look at each, all in one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import rig, test_capacity, test_chunk_cap, test_guards
from tests.e2e.cases import broken, case

pytestmark = pytest.mark.network

BETWEEN = [release for release in rig.BASES if release not in rig.RELEASES]
CASES = {
    "hybrid, 3 heads a group, fp16": case(6, 2, 64, 32, "float16", hybrid=True, per_head=True),
    "one head a group, fp32": case(4, 4, 64, None, "float32"),
}
POOLS = ("MoE at TP2, groups of 32", "plain pool, whole heads", "heads of rank 1")
SCENARIOS = ("off", "page 1, prefill alone", "cap and floor")


@pytest.fixture(scope="module", params=BETWEEN)
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    asked = {
        "attention": CASES,
        "capacity": {name: test_capacity.CASES[name][0] for name in POOLS},
        "scheduling": {name: test_chunk_cap.SCENARIOS[name] for name in SCENARIOS},
        "guards": {"options": test_guards.OPTIONS, "facts": test_guards.FACTS},
    }
    answer = rig.merged(request.param).run("together", asked)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("name", CASES)
def test_attention_is_right(seen: dict[str, Any], name: str) -> None:
    assert not broken(CASES[name], seen["attention"][name])


@pytest.mark.parametrize("name", POOLS)
def test_a_token_is_budgeted_at_what_it_takes(seen: dict[str, Any], name: str) -> None:
    _, expected, heads = test_capacity.CASES[name]
    built = seen["capacity"][name]
    assert built["cell"] == expected
    assert built["bytes"] == expected * built["slots"]
    assert built["heads"][0] == heads


def test_chunks_are_capped_and_shared(seen: dict[str, Any]) -> None:
    steps = seen["scheduling"]
    assert test_chunk_cap.chunks(steps["off"], "long")[0] == test_chunk_cap.CHUNK
    assert max(test_chunk_cap.prefill_rows(steps["page 1, prefill alone"][1:])) == test_chunk_cap.CAP
    assert steps["cap and floor"][2]["extend"]["short-2"] == 30


def test_what_does_not_suit_is_refused(seen: dict[str, Any]) -> None:
    guards = seen["guards"]
    assert guards["launch"] is None
    assert guards["layers"].pop("plain") is None
    assert [name for asked in ("options", "facts", "layers") for name, said in guards[asked].items() if not said] == []
