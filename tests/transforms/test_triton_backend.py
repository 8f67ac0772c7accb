"""The dispatch of int2 batches, and the width of V rows that must not be read from packed ones."""

from __future__ import annotations

import dataclasses

import pytest

from escha_oscar.model import Context
from escha_oscar.transforms import triton_backend
from tests.support import forks
from tests.transforms.tools import check_already_applied, check_refuses, check_rewrites, chosen, edited

EXTEND = """\
def _forward_extend_int2(self, q, k):
    return self.extend_attention_fwd(q, k, max_len_extend=1, k_scale=1.0, v_scale=1.0, sm_scale=2.0)
"""
CONTEXT = Context(
    triton_backend.TARGET,
    chosen(
        {
            "TritonAttnBackend._forward_extend_int2": EXTEND,
            "TritonAttnBackend._forward_decode_int2": "def _forward_decode_int2(self, q):\n    return q\n",
            "_is_int2_pool": "def _is_int2_pool(backend, forward_batch):\n    return _pool(backend)\n",
        },
        helpers={"_pool": "def _pool(backend):\n    return None\n"},
        imports=("import math",),
    ),
)


def dispatch(name: str) -> str:
    return (
        "        if _is_int2_pool(self, forward_batch):\n"
        f"            return self._forward_{name}_int2(\n"
        "                q, k, v, layer, forward_batch, save_kv_cache, sinks\n"
        "            )\n"
    )


ARM = (
    '        if getattr(model_runner.token_to_kv_pool, "dtype", None) == "int2":\n'
    "            self.v_head_dim = model_runner.token_to_kv_pool.get_v_head_dim()\n"
)
SWA_ARM = ARM + "            self.swa_v_head_dim = None\n"
METHODS = """
    def _forward_extend_int2(self, q, k):
        return self.extend_attention_fwd(q, k, max_len_extend=1, k_scale=1.0, v_scale=1.0, sm_scale=2.0)

    def _forward_decode_int2(self, q):
        return q
"""
FUNCTIONS = """\
def _pool(backend):
    return None


def _is_int2_pool(backend, forward_batch):
    return _pool(backend)


"""
COMMON = (
    ("import AttentionType\n", "import AttentionType\nimport math\n"),
    ("class TritonAttnBackend:", FUNCTIONS + "class TritonAttnBackend:"),
    ("        # Output of another width\n", dispatch("extend") + "        # Output of another width\n"),
    ("        q = q.reshape(", dispatch("decode") + "        q = q.reshape("),
)
HYBRID_CHOICE = "        if model_runner.mambaish_config is not None:\n"
SWA_CHOICE = "        if self.sliding_window_size is not None:\n"


def with_arm(text: str, choice: str, arm: str) -> str:
    return edited(text, (choice, arm + choice.replace("if ", "elif ", 1)))


OLD_AFTER = with_arm(edited(forks.BACKEND_OLD, *COMMON), HYBRID_CHOICE, ARM) + METHODS
NEW_AFTER = with_arm(edited(forks.BACKEND_NEW, *COMMON), SWA_CHOICE, SWA_ARM) + METHODS


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(forks.BACKEND_OLD, OLD_AFTER, id="two arms"),
        pytest.param(forks.BACKEND_NEW, NEW_AFTER, id="three arms and a second width"),
        pytest.param(
            edited(forks.BACKEND_OLD, ("        # Output of another width\n", '        """Extend."""\n')),
            edited(
                OLD_AFTER, ("        # Output of another width\n", ""),
                ("sinks=None):\n" + dispatch("extend"), 'sinks=None):\n        """Extend."""\n' + dispatch("extend")),
            ),
            id="a docstring stays first",
        ),
    ],
)  # fmt: skip
def test_rewrites(before: str, after: str) -> None:
    check_rewrites(triton_backend, before, after, CONTEXT)


def test_rewrites_without_scales_where_the_extend_kernel_takes_none() -> None:
    context = dataclasses.replace(CONTEXT, extend_takes_scales=False)
    after = edited(OLD_AFTER, ("k_scale=1.0, v_scale=1.0, ", ""))
    check_rewrites(triton_backend, forks.BACKEND_OLD, after, context)


@pytest.mark.parametrize("text", [OLD_AFTER, NEW_AFTER], ids=["older", "newer"])
def test_already_applied(text: str) -> None:
    check_already_applied(triton_backend, text, CONTEXT)


@pytest.mark.parametrize(
    ("old", "new", "sought", "found"),
    [
        pytest.param("class TritonAttnBackend", "class Triton", "class TritonAttnBackend", "nothing", id="no class"),
        pytest.param("def forward_extend", "def extend", "TritonAttnBackend.forward_extend", "nothing", id="no extend"),
        pytest.param("def forward_decode", "def decode", "TritonAttnBackend.forward_decode", "nothing", id="no decode"),
        pytest.param(
            "    def escha_plan(self):", "    def forward_decode(self):\n        pass\n\n    def escha_plan(self):",
            "TritonAttnBackend.forward_decode", "2 matches", id="decode is defined twice",
        ),
        pytest.param(
            "get_value_buffer(0).shape[\n                -1\n            ]", "escha_width()", "self.v_head_dim",
            "nothing", id="the width is read elsewhere",
        ),
        pytest.param(
            '        self.device = "cuda"\n',
            "        if skip_prefill:\n            self.v_head_dim = self.pool.get_value_buffer(0).shape[-1]\n",
            "self.v_head_dim", "2 matches", id="the width is read twice",
        ),
    ],
)  # fmt: skip
def test_refuses(old: str, new: str, sought: str, found: str) -> None:
    check_refuses(triton_backend, edited(forks.BACKEND_OLD, (old, new)), CONTEXT, sought, found)
