"""The end-to-end checks notice when one thing in the merged tree is broken: each mutation must make them fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e import rig
from tests.e2e.cases import broken, case
from tests.e2e.test_capacity import CASES as POOLS

pytestmark = pytest.mark.network

BACKEND = "sglang/srt/layers/attention/triton_backend.py"
POOL = "sglang/srt/mem_cache/memory_pool.py"
MIXIN = "sglang/srt/model_executor/model_runner_kv_cache_mixin.py"
DECODE = "sglang/srt/layers/attention/oscar_int2/decode.py"

#: Small, and still with everything that a mutation can hit: two layers, per-head rotations, groups of six heads.
PROBE = case(12, 2, 64, 32, "float16", hybrid=True, per_head=True)


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


MUTATIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "the inverse V rotation is dropped": (BACKEND, swap("rotate_inverse(rotated, R_v, group)", "rotated")),
    "the output is rotated on instead of back": (BACKEND, swap("(rotated, R_v, group)", "(rotated, R_v.mT, group)")),
    "R is taken for its transpose": (POOL, swap("return self._R_k[index],", "return self._R_k[index].mT,")),
    "K scales are read from the next slot": (
        BACKEND,
        swap("pool.get_key_scales_zeros(layer.layer_id)", "pool.get_key_scales_zeros(layer.layer_id)[1:]"),
    ),
    "V scales are read from the next slot": (
        BACKEND,
        swap("pool.get_value_scales_zeros(layer.layer_id)", "pool.get_value_scales_zeros(layer.layer_id)[1:]"),
    ),
    "a head tile of four serves groups of six": (
        DECODE,
        swap('triton.cdiv(group, config["BLOCK_H"])', "group // (config.update(BLOCK_H=4) or 4)"),
    ),
    "the hybrid pool forgets to translate layer ids": (
        POOL,
        swap(
            "self.full_kv_pool.get_oscar_rotation(self._transfer_full_attention_id(layer_id))",
            "self.full_kv_pool.get_oscar_rotation(layer_id % self.full_layer_nums)",
        ),
    ),
}


@pytest.fixture(scope="module")
def tree() -> rig.Rig:
    return rig.merged("0.5.9")


def failures(tree: rig.Rig) -> list[str]:
    return broken(PROBE, tree.run("attention", {"probe": PROBE})["probe"])


def test_the_unbroken_tree_passes(tree: rig.Rig) -> None:
    assert not failures(tree)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_tree_is_noticed(tree: rig.Rig, tmp_path: Path, mutation: str) -> None:
    path, edit = MUTATIONS[mutation]
    assert failures(tree.mutated(tmp_path, path, edit))


def test_a_cell_counted_as_int8_is_noticed(tree: rig.Rig, tmp_path: Path) -> None:
    name = "MoE at TP2, groups of 32"
    made, expected, _ = POOLS[name]
    mutant = tree.mutated(tmp_path, MIXIN, swap("per_head += head_dim // 4", "per_head += head_dim"))
    built = mutant.run("capacity", {name: made})[name]
    assert built["cell"] != expected
    assert built["cell"] * built["slots"] != built["bytes"]
