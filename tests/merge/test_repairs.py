"""Each named defect: mended, mended once, left alone where it is gone; and what Triton says before and after."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.merge import repairs
from escha_oscar.symbols.signatures import Signature
from tests.transforms.tools import edited

REBOUND = """\
import triton
import triton.language as tl


@triton.jit
def _kernel(Q, Out, FAST: tl.constexpr, D: tl.constexpr):
    # 一
    total = 0.0
    for start in range(0, 64, 32):
        if FAST:
            QUARTER: tl.constexpr = D // 4
            total += QUARTER
        else:
            QUARTER: tl.constexpr = D // 2
            total -= QUARTER
        if FAST:
            QUARTER: tl.constexpr = D // 8
            total += QUARTER * start  # QUARTER of V
        total += tl.load(Q + start)
    tl.store(Out, total)


def launcher():
    QUARTER: int = 1
    QUARTER: int = 2
    return QUARTER
"""
MENDED = edited(
    REBOUND,
    ("            QUARTER: tl.constexpr = D // 8\n", "            QUARTER_V: tl.constexpr = D // 8\n"),
    ("total += QUARTER * start  # QUARTER of V", "total += QUARTER_V * start  # QUARTER of V"),
)

TILE = '''\
def _decode_grouped_att_m_fwd_quant_int2(q, k_buffer):
    """Launch."""
    BLOCK_H = 16
    batch, head_num = q.shape[0], q.shape[1]
    kv_group_num = head_num // k_buffer.shape[1]
    if batch > 8:
        BLOCK_H = 4
    grid = (batch, head_num // min(BLOCK_H, kv_group_num))
    return grid
'''
CLAMP = "    BLOCK_H = _safe_block_h(BLOCK_H, kv_group_num)\n"
TILE_MENDED = edited(TILE, ("        BLOCK_H = 4\n", "        BLOCK_H = 4\n" + CLAMP))

ROWS = """\
def _vectorized_elems_per_thread(dtype):
    assert dtype == torch.bfloat16, dtype  # 表
    return 8


def other(dtype):
    return dtype == torch.bfloat16
"""
ROWS_MENDED = edited(ROWS, ("assert dtype == torch.bfloat16", "assert dtype in (torch.bfloat16, torch.float16)"))

LLOYD = '''\
def _launch_grouped_clip_int2(data, loc, clip_ratio):
    pass


def quantized_set_kv_int2_pretransformed_clip_triton(
    cache_k, loc, k_scales_zeros_buffer, v_scales_zeros_buffer, lloyd_max=False
):
    """Store."""
    # 分岐
    _launch_grouped_clip_int2(cache_k, loc, 0.9)
'''
GROUPS = ", ".join(f"_get_num_scale_groups({side}_scales_zeros_buffer)" for side in "kv")
CHECK = f"""\
    if lloyd_max and max({GROUPS}) > 1:
        raise ValueError("Lloyd-Max needs one quantisation group per head")
"""
LLOYD_MENDED = edited(LLOYD, ("    _launch_grouped_clip_int2(cache_k", CHECK + "    _launch_grouped_clip_int2(cache_k"))

HADAMARD = """\
import torch
from sglang.jit_kernel.hadamard import hadamard_transform
from sglang.srt.environ import envs

try:
    from fast import hadamard_x
except ImportError:
    from sglang.kernels.hadamard import hadamard_transform as slow, hadamard_n
"""
HADAMARD_MENDED = """\
import torch
try:
    from sglang.jit_kernel.hadamard import hadamard_transform
except ImportError:
    hadamard_transform = None
from sglang.srt.environ import envs

try:
    from fast import hadamard_x
except ImportError:
    try:
        from sglang.kernels.hadamard import hadamard_transform as slow, hadamard_n
    except ImportError:
        slow = hadamard_n = None
"""

SOFTMAX = '''\
def decode_attention_fwd_grouped_quant_int2(q, o, sinks=None, output_lse=None):
    """Run."""
    _stage1(q)
    _decode_softmax_reducev_fwd(
        q,
        o,  # 出力
        v_scale=1.0,
        sinks=sinks,
        output_lse=output_lse,
    )
'''
ASKED = """\
    if output_lse is not None:
        raise NotImplementedError("output_lse: this tree has no such output")
"""
SOFTMAX_MENDED = '''\
def decode_attention_fwd_grouped_quant_int2(q, o, sinks=None, output_lse=None):
    """Run."""
    if output_lse is not None:
        raise NotImplementedError("output_lse: this tree has no such output")
    _stage1(q)
    _decode_softmax_reducev_fwd(
        q,
        o,
        sinks=sinks,
    )
'''
PLAIN = Signature(("q", "o", "sinks"), frozenset(), frozenset(), frozenset({"q", "o"}), False, False)


def mend_softmax(text: str) -> str:
    return repairs.fit_softmax_call(text, PLAIN)


def mend_imports(text: str) -> str:
    return repairs.unresolved_import(lambda node: node.module == "sglang.srt.environ").mend(text)


Mend = Callable[[str], str]
#: name of the defect -> the step, the text with the defect, the text without it.
DEFECTS: dict[str, tuple[Mend, str, str]] = {
    "rebound-constexpr": (repairs.REBOUND_CONSTEXPR.mend, REBOUND, MENDED),
    "head-tile": (repairs.HEAD_TILE.mend, TILE, TILE_MENDED),
    "fp16-rows": (repairs.FP16_ROWS.mend, ROWS, ROWS_MENDED),
    "grouped-lloyd-max": (repairs.GROUPED_LLOYD_MAX.mend, LLOYD, LLOYD_MENDED),
    "hadamard-import": (mend_imports, HADAMARD, HADAMARD_MENDED),
    "softmax-keywords": (mend_softmax, SOFTMAX, SOFTMAX_MENDED),
}
each_defect = pytest.mark.parametrize(("mend", "before", "after"), DEFECTS.values(), ids=DEFECTS)


@each_defect
def test_the_defect_is_mended(mend: Mend, before: str, after: str) -> None:
    assert mend(before) == after
    ast.parse(after)


@each_defect
def test_a_mended_text_is_left_alone(mend: Mend, before: str, after: str) -> None:
    assert mend(after) == after


@each_defect
def test_a_text_without_the_place_is_left_alone(mend: Mend, before: str, after: str) -> None:
    text = "# 注\ndef store(dtype):\n    BLOCK_H = 16\n    return dtype == torch.bfloat16\n"
    assert mend(text) == text
    assert mend("") == ""


def test_every_named_defect_is_tabled() -> None:
    named = {d.name for d in (*repairs.DECODE_DEFECTS, *repairs.COPY_DEFECTS)}
    assert named <= set(DEFECTS)
    assert all(d.detail for d in (*repairs.DECODE_DEFECTS, *repairs.COPY_DEFECTS))


#: The step, and a text that looks like the defect and is none.
INNOCENT: dict[str, tuple[Mend, str]] = {
    "two arms of one condition": (
        repairs.REBOUND_CONSTEXPR.mend,
        "@triton.jit\ndef k(A):\n    if A:\n        X: tl.constexpr = 1\n    else:\n        X: tl.constexpr = 2\n",
    ),
    "a constexpr in each of two kernels": (
        repairs.REBOUND_CONSTEXPR.mend,
        "@triton.jit\ndef a():\n    X: tl.constexpr = 1\n\n\n@triton.jit\ndef b():\n    X: tl.constexpr = 2\n",
    ),
    "an annotated local": (repairs.REBOUND_CONSTEXPR.mend, "@triton.jit\ndef a():\n    x: int = 1\n    x: int = 2\n"),
    "a host function": (repairs.REBOUND_CONSTEXPR.mend, "def a():\n    X: tl.constexpr = 1\n    X: tl.constexpr = 2\n"),
    "a tile that is clamped already": (repairs.HEAD_TILE.mend, TILE_MENDED),
    "a tile that another function knows": (repairs.HEAD_TILE.mend, TILE.replace("_quant_int2", "")),
    "a launcher without a group": (
        repairs.HEAD_TILE.mend,
        "def _decode_grouped_att_m_fwd_quant_int2(q):\n    BLOCK_H = 16\n    return BLOCK_H\n",
    ),
    "rows of both widths": (repairs.FP16_ROWS.mend, ROWS_MENDED),
    "another dtype": (repairs.FP16_ROWS.mend, "def _vectorized_elems_per_thread(d):\n    return d == torch.float32\n"),
    "a store without the switch": (repairs.GROUPED_LLOYD_MAX.mend, LLOYD.replace(", lloyd_max=False", "")),
    "a grouped launcher that knows the switch": (
        repairs.GROUPED_LLOYD_MAX.mend,
        LLOYD.replace("loc, clip_ratio)", "loc, clip_ratio, lloyd_max)"),
    ),
    "no grouped launcher": (repairs.GROUPED_LLOYD_MAX.mend, LLOYD[LLOYD.index("def quantized") :]),
    "an import that resolves": (mend_imports, "from sglang.srt.environ import hadamard\n"),
    "an import of something else": (mend_imports, "from sglang.absent import kernel, hadamard\n"),
    "an import under a condition": (mend_imports, "if x:\n    from sglang.absent import hadamard\n"),
    "an import that is guarded": (mend_imports, HADAMARD_MENDED),
    "keywords that the base takes": (mend_softmax, "def f():\n    _decode_softmax_reducev_fwd(q, o, sinks=1)\n"),
    "a keyword that is not neutral": (
        mend_softmax,
        "def f(s):\n    _decode_softmax_reducev_fwd(q, o, v_scale=s, output_lse=output_lse)\n",
    ),
}


@pytest.mark.parametrize(("mend", "text"), INNOCENT.values(), ids=INNOCENT)
def test_what_only_looks_like_a_defect_is_left_alone(mend: Mend, text: str) -> None:
    assert mend(text) == text


def test_a_neutral_scale_alone_goes_without_a_check() -> None:
    text = "def f(q, o):\n    x = _decode_softmax_reducev_fwd(q, o, v_scale=1.0)\n"
    expected = "def f(q, o):\n    x = _decode_softmax_reducev_fwd(\n        q,\n        o,\n    )\n"
    assert mend_softmax(text).replace("            ", "        ").replace("        )", "    )") == expected
    assert "NotImplementedError" not in mend_softmax(text)


def test_the_mended_call_runs_and_refuses_the_output_that_is_not_there() -> None:
    calls: list[dict[str, Any]] = []
    names: dict[str, Any] = {"_stage1": lambda q: None, "_decode_softmax_reducev_fwd": lambda *a, **k: calls.append(k)}
    exec(mend_softmax(SOFTMAX), names)
    run = names["decode_attention_fwd_grouped_quant_int2"]
    run(1, 2, sinks=3)
    assert calls == [{"sinks": 3}]
    with pytest.raises(NotImplementedError, match="output_lse"):
        run(1, 2, output_lse=object())


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 8, 12, 16])
@pytest.mark.parametrize("batch", [1, 16])
def test_the_mended_tile_never_straddles_two_heads(group: int, batch: int) -> None:
    from escha_oscar.source.bundled import Bundled

    donor = Bundled.open().read("sglang/srt/layers/attention/triton_ops/decode_attention.py")
    assert donor is not None
    names: dict[str, Any] = {}
    exec(donor, names)
    exec(TILE_MENDED.replace("return grid", "return BLOCK_H"), names)
    tile = names["_decode_grouped_att_m_fwd_quant_int2"](_Shaped(batch, group * 2), _Shaped(1, 2))
    assert tile >= group or group % tile == 0


class _Shaped:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


@pytest.mark.parametrize(("lloyd_max", "groups", "refused"), [(True, 1, False), (True, 4, True), (False, 4, False)])
def test_the_mended_store_refuses_lloyd_max_with_groups(lloyd_max: bool, groups: int, refused: bool) -> None:
    names: dict[str, Any] = {"_get_num_scale_groups": lambda buffer: buffer}
    exec(LLOYD_MENDED, names)
    store = names["quantized_set_kv_int2_pretransformed_clip_triton"]
    if refused:
        with pytest.raises(ValueError, match="one quantisation group"):
            store(None, None, groups, groups, lloyd_max=lloyd_max)
    else:
        store(None, None, groups, groups, lloyd_max=lloyd_max)


def test_the_guarded_import_leaves_the_name_unset() -> None:
    names: dict[str, Any] = {}
    text = mend_imports("from sglang_absent.hadamard import hadamard_transform\n")
    exec(text, names)
    assert names["hadamard_transform"] is None


COMPILE = """
import sys, triton, kernel
from triton.backends.compiler import GPUTarget
source = triton.compiler.ASTSource(
    fn=kernel._kernel,
    signature={"Q": "*fp32", "Out": "*fp32", "FAST": "constexpr", "D": "constexpr"},
    constexprs={"FAST": True, "D": 64},
)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"])
"""


def compile_kernel(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile a kernel ahead of time, for a device that need not be there, where nothing has been interpreted yet."""
    folder.mkdir()
    (folder / "kernel.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", COMPILE]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)


def test_triton_refuses_the_rebound_constexpr_and_takes_the_mended_kernel(tmp_path: Path) -> None:
    refused = compile_kernel(REBOUND, tmp_path / "rebound")
    assert refused.returncode and "QUARTER is already defined" in refused.stderr
    taken = compile_kernel(MENDED, tmp_path / "mended")
    assert taken.returncode == 0, taken.stderr
    assert "tt.store" in taken.stdout
