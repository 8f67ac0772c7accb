"""The cell size of int2 and the arguments of the two pools that can be int2, where the base builds them."""

from __future__ import annotations

import pytest

from escha_oscar.model import Context
from escha_oscar.transforms import kv_cache_mixin
from tests.support import forks
from tests.transforms.tools import check_already_applied, check_refuses, check_rewrites, chosen, edited

OWNER = kv_cache_mixin.OWNER
CONTEXT = Context(
    kv_cache_mixin.TARGET,
    chosen(
        {
            f"{OWNER}._int2_cell_size": "def _int2_cell_size(self, num_layers):\n    return 4\n",
            f"{OWNER}._int2_pool_kwargs": "def _int2_pool_kwargs(self):\n    return {}\n",
        }
    ),
)

HYBRID_END = (
    "                full_attention_layer_ids=list(self.mambaish_config.full_attention_layer_ids),\n"
    '                device="cuda",\n'
)
PLAIN_END = '                layer_num=self.model_config.num_hidden_layers,\n                device="cuda",\n'
POOL_EDITS = tuple((end, end + "                **self._int2_pool_kwargs(),\n") for end in (HYBRID_END, PLAIN_END))
METHODS = """
    def _int2_cell_size(self, num_layers):
        return 4

    def _int2_pool_kwargs(self):
        return {}
"""
SIZE = "        size = torch._utils._element_size(self.kv_cache_dtype)\n"
CELL = """\
        if self.kv_cache_dtype == "int2":
            return self._int2_cell_size(num_layers)
"""
OLD_AFTER = edited(forks.MIXIN_OLD, *POOL_EDITS, (SIZE, CELL + SIZE)) + METHODS
NEW_AFTER = edited(forks.MIXIN_NEW, *POOL_EDITS) + METHODS

#: Pools that must not get the arguments: another class, another dtype, no heads.
OTHERS = """\
        self.swa = SWAKVPool(dtype=self.kv_cache_dtype, head_num=1)
        self.draft = MHATokenToKVPool(dtype=self.dtype, head_num=1)
        self.mla = MHATokenToKVPool(dtype=self.kv_cache_dtype, kv_lora_rank=1)
        pool_cls = MHATokenToKVPool
"""


def with_others(text: str) -> str:
    return edited(text, ("        if self.mambaish_config", OTHERS + "        if self.mambaish_config"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(forks.MIXIN_OLD, OLD_AFTER, id="cell size and pools in the mixin"),
        pytest.param(forks.MIXIN_NEW, NEW_AFTER, id="pools in a method of their own, cell size elsewhere"),
        pytest.param(
            edited(forks.MIXIN_NEW, ("self.token_to_kv_pool = MHATokenToKVPool(", "self.token_to_kv_pool = pool_cls(")),
            edited(NEW_AFTER, ("self.token_to_kv_pool = MHATokenToKVPool(", "self.token_to_kv_pool = pool_cls(")),
            id="the plain pool through a local name",
        ),
        pytest.param(with_others(forks.MIXIN_OLD), with_others(OLD_AFTER), id="other pools stay as they are"),
    ],
)
def test_rewrites(before: str, after: str) -> None:
    check_rewrites(kv_cache_mixin, before, after, CONTEXT)


def test_rewrites_a_call_in_one_line_without_a_trailing_comma() -> None:
    call = "self.token_to_kv_pool = MHATokenToKVPool(1, dtype=self.kv_cache_dtype, head_num=2)"
    start = forks.MIXIN_NEW.index("self.token_to_kv_pool = MHATokenToKVPool(")
    before = forks.MIXIN_NEW[:start] + call + "\n"
    after = edited(before, POOL_EDITS[0], ("head_num=2)", "head_num=2, **self._int2_pool_kwargs())")) + METHODS
    check_rewrites(kv_cache_mixin, before, after, CONTEXT)


@pytest.mark.parametrize("text", [OLD_AFTER, NEW_AFTER], ids=["older", "newer"])
def test_already_applied(text: str) -> None:
    check_already_applied(kv_cache_mixin, text, CONTEXT)


@pytest.mark.parametrize(
    ("text", "sought", "found"),
    [
        pytest.param(
            edited(forks.MIXIN_OLD, (f"class {OWNER}", "class Mixin")), f"class {OWNER}", "nothing", id="no such class"
        ),
        pytest.param(
            edited(forks.MIXIN_OLD, ("def init_memory_pool", "def init_pool")),
            f"{OWNER}.init_memory_pool",
            "nothing",
            id="no method that builds pools",
        ),
        pytest.param(
            edited(forks.MIXIN_OLD, ("= HybridLinearKVPool(", "= hybrid_pool(")),
            "HybridLinearKVPool(...)",
            "nothing",
            id="the hybrid pool is built elsewhere",
        ),
        pytest.param(
            edited(forks.MIXIN_OLD, ("= MHATokenToKVPool(", "= EschaKVPool(")),
            "MHATokenToKVPool(...)",
            "nothing",
            id="the plain pool is of another class",
        ),
        pytest.param(
            edited(forks.MIXIN_OLD, ("= MHATokenToKVPool(", "= self.x = MHATokenToKVPool(")).replace(
                "        else:\n", "        elif self.y:\n            HybridLinearKVPool()\n        else:\n"
            ),
            "HybridLinearKVPool(...)",
            "2 matches",
            id="two hybrid pools",
        ),
    ],
)
def test_refuses(text: str, sought: str, found: str) -> None:
    check_refuses(kv_cache_mixin, text, CONTEXT, sought, found)
