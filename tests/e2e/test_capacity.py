"""The KV budget: what the runner counts a token at is what the pool allocates for it, scales and zeros included."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.e2e.rig import Rig

pytestmark = pytest.mark.network

GIB = 1 << 30
TOKENS = 65536


def case(layers: list[int], kv_heads: int, group_size: int | None, **more: Any) -> dict[str, Any]:
    base = dict(hybrid=True, layers=layers, total_kv_heads=kv_heads, tp=1, rank=0, head_dim=256, tokens=TOKENS)
    return {**base, "group_size": group_size, "per_head": False, **more}


MOE, DENSE = list(range(3, 40, 4)), list(range(3, 64, 4))
#: Bytes a token: layers x heads of the rank x (codes and scale-zero pairs of K and V).
CASES: dict[str, tuple[dict[str, Any], int, list[int]]] = {
    "MoE at TP2, groups of 32": (case(MOE, 2, 32, tp=2), 10 * 1 * (128 + 128), [-1]),
    "dense at TP2, groups of 64": (case(DENSE, 4, 64, tp=2, tokens=16384), 16 * 2 * (128 + 64), [-1]),
    "plain pool, whole heads": (case([4, 5], 8, None, hybrid=False, head_dim=128), 2 * 8 * (64 + 16), [-1]),
    "heads of rank 1": (case([3], 4, 64, tp=2, rank=1, per_head=True, tokens=64), 2 * (128 + 64), [2, 3]),
    "more ranks than heads": (case([3], 2, 64, tp=4, rank=3, per_head=True, tokens=64), 1 * (128 + 64), [1]),
}


@pytest.fixture(scope="module")
def built(merged: Rig) -> dict[str, Any]:
    answer = merged.run("capacity", {name: made for name, (made, _, _) in CASES.items()})
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("name", CASES)
def test_a_token_is_budgeted_at_what_it_takes(built: dict[str, Any], name: str) -> None:
    made, expected, _ = CASES[name]
    assert built[name]["cell"] == expected
    assert built[name]["slots"] == made["tokens"] + 1
    assert built[name]["bytes"] == expected * built[name]["slots"]


@pytest.mark.parametrize("name", CASES)
def test_the_log_line_counts_scales_and_zeros(built: dict[str, Any], name: str) -> None:
    (line,) = built[name]["log"]
    k, v = re.findall(r"[KV] size: ([\d.]+) GB", line)
    assert k == v == f"{built[name]['k_bytes'] / GIB:.2f}"


@pytest.mark.parametrize("name", CASES)
def test_a_rank_keeps_the_rotations_of_its_own_heads(built: dict[str, Any], name: str) -> None:
    made, _, heads = CASES[name]
    assert built[name]["heads"] == [heads] * len(made["layers"])
    assert built[name]["pool"] == ("HybridLinearKVPool" if made["hybrid"] else "MHATokenToKVPool")
