"""The INT2 entry points come after the base's own kernels, and the stock launcher's head tile is clamped."""

from __future__ import annotations

import pytest

from escha_oscar.model import Context
from escha_oscar.transforms import decode_attention
from tests.support import forks
from tests.transforms.tools import check_already_applied, check_refuses, check_rewrites, chosen, edited

ENTRY = "def decode_attention_fwd_quantized(q):\n    return _kernel_int2(q)\n"
TILE = "def _safe_block_h(block_h, kv_group_num):\n    return block_h\n"
KERNEL = "# INT2\n@triton.jit\ndef _kernel_int2(Q, D: tl.constexpr):\n    tl.store(Q, 0)\n"
CONTEXT = Context(
    decode_attention.TARGET,
    chosen(
        {"decode_attention_fwd_quantized": ENTRY, "_safe_block_h": TILE},
        helpers={"_kernel_int2": KERNEL},
        imports=("import torch", "import triton"),
    ),
)

BEFORE = forks.DECODE_TEXT
CLAMP = "    BLOCK_H = _safe_block_h(BLOCK_H, kv_group_num)\n"
AFTER = (
    edited(
        BEFORE,
        ("import triton.language as tl\n", "import triton.language as tl\nimport torch\n"),
        ("    BLOCK_H = 16\n", "    BLOCK_H = 16\n" + CLAMP),
    )
    + f"\n\n{KERNEL}\n\n{ENTRY}\n\n{TILE}"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(BEFORE, AFTER, id="a fixed tile"),
        pytest.param(
            edited(BEFORE, ("    BLOCK_H = 16\n", "    # 表\n    BLOCK_H = min(16, head)  # 列\n")),
            edited(AFTER, ("    BLOCK_H = 16\n", "    # 表\n    BLOCK_H = min(16, head)  # 列\n")),
            id="a computed tile with comments",
        ),
    ],
)
def test_rewrites(before: str, after: str) -> None:
    check_rewrites(decode_attention, before, after, CONTEXT)


def test_already_applied() -> None:
    check_already_applied(decode_attention, AFTER, CONTEXT)


@pytest.mark.parametrize(
    ("old", "new", "sought", "found"),
    [
        pytest.param(
            "def _decode_grouped_att_m_fwd", "def _grouped", "def _decode_grouped_att_m_fwd", "nothing",
            id="no launcher",
        ),
        pytest.param(
            "def escha_decode(q):", "def _decode_grouped_att_m_fwd(q):", "def _decode_grouped_att_m_fwd", "2 matches",
            id="two launchers",
        ),
        pytest.param("    BLOCK_H = 16\n", "    BLOCK_H, W = 16, 4\n", "BLOCK_H = ...", "nothing", id="no tile"),
        pytest.param(
            "    BLOCK_H = 16\n", "    BLOCK_H = 16\n    BLOCK_H = BLOCK_H * 2\n", "BLOCK_H = ...", "2 matches",
            id="the tile is set twice",
        ),
    ],
)  # fmt: skip
def test_refuses(old: str, new: str, sought: str, found: str) -> None:
    text = edited(BEFORE, (old, new))
    if old.startswith("def _decode_grouped"):
        text = text.replace("    _decode_grouped_att_m_fwd(q, k", "    _grouped(q, k")
    check_refuses(decode_attention, text, CONTEXT, sought, found)
