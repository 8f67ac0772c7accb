"""The numerics level: the probe finds wrong kernels head by head; the level turns its answer into findings."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import escha_oscar
from escha_oscar.errors import UsageError
from escha_oscar.mapping.wheels import KERNELS_DIR
from escha_oscar.serving.model_config import read_model_config
from escha_oscar.verify.codes import CODES, Level
from escha_oscar.verify.numerics import Shape, check_numerics, shape_of
from escha_oscar.verify.subprocesses import PROBES, Answered, Interpreter
from tests.support.checkpoints import DENSE, MOE, write_config

SOURCE = Path(escha_oscar.__file__).parent
SMALL = {"head_dim": 64, "v_head_dim": 64, "group_size": 32, "kv_group_num": 2}

PLAIN = '''
"""The package's interface over its own torch reference: fast to run, and easy to break."""

from . import reference


def store_kv(*args, **kwargs):
    reference.store_kv(*args, **kwargs)


def dequantize(codes, scales_zeros, slots, *, head_dim, dtype, out=None):
    return reference.dequantize(codes, scales_zeros, slots, head_dim=head_dim, dtype=dtype)


def decode_attention_fwd_quantized(q, kb, vb, ks, vs, o, indptr, indices, logits, lse, splits, most, sm_scale, dtype):
    o.copy_(reference.decode_attention(q, kb, vb, ks, vs, indptr, indices, sm_scale)[0])


def extend_attention(q, k, v, o, kb, vb, ks, vs, qo, kv, indices, *, max_len_extend, sm_scale):
    o.copy_(reference.extend_attention(q, k, v, kb, vb, ks, vs, qo, kv, indices, sm_scale=sm_scale))
'''

STRADDLE = """

def decode_attention_fwd_quantized(q, kb, vb, ks, vs, o, indptr, indices, logits, lse, splits, most, sm_scale, dtype):
    right = reference.decode_attention(q, kb, vb, ks, vs, indptr, indices, sm_scale)[0]
    flipped = [buffer.flip(1) for buffer in (kb, vb, ks, vs)]
    if q.shape[0] >= 16 and q.shape[1] // kb.shape[1] == 6:
        right[:, 6:8] = reference.decode_attention(q, *flipped, indptr, indices, sm_scale)[0][:, 6:8]
    o.copy_(right)
"""
NEIGHBOURS = """

def store_kv(k, v, loc, kb, vb, ks, vs):
    reference.store_kv(k, v, loc, kb, vb, ks, vs)
    kb.copy_(kb.flip(-1))
"""
UNWRITTEN = """

def extend_attention(*args, **kwargs):
    return None
"""
RAISES = """

def dequantize(*args, **kwargs):
    raise ValueError("NUM_GROUPS_QUARTER is already defined")
"""


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Load the probe into this process, where torch is imported once for all tests."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    spec = importlib.util.spec_from_file_location("numerics_probe", PROBES / "numerics_probe.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in [name for name in sys.modules if name.startswith("escha_oscar_probed_int2")]:
        del sys.modules[name]


def package(folder: Path, fault: str = "") -> Path:
    folder.mkdir(parents=True)
    for name in ("reference.py", "layout.py"):
        shutil.copy(SOURCE / "kernels" / name, folder / name)
    (folder / "__init__.py").write_text(PLAIN + fault)
    return folder


def outcome(probe: ModuleType, folder: Path) -> dict[str, Any]:
    answer = probe.main({"package": str(folder), **SMALL})
    assert "unusable" not in answer
    return answer


def test_right_kernels_pass_every_check(probe: ModuleType, tmp_path: Path) -> None:
    answer = outcome(probe, package(tmp_path / "p"))
    assert all(check["ok"] for check in answer["checks"])
    names = [check["name"] for check in answer["checks"]]
    assert "decode batch 16, 6 query heads per KV head" in names and "extend, 2 query heads per KV head" in names
    assert {"store K", "store V", "dequantise K", "dequantise V"} <= set(names)


def test_a_tile_over_two_kv_heads_is_found_with_its_heads(probe: ModuleType, tmp_path: Path) -> None:
    failed = [check for check in outcome(probe, package(tmp_path / "p", STRADDLE))["checks"] if not check["ok"]]
    assert [(check["name"], check["heads"]) for check in failed] == [
        ("decode batch 16, 6 query heads per KV head", [6, 7])
    ]


def test_another_packing_order_is_found(probe: ModuleType, tmp_path: Path) -> None:
    failed = [
        check["name"] for check in outcome(probe, package(tmp_path / "p", NEIGHBOURS))["checks"] if not check["ok"]
    ]
    assert failed == ["store K"]


def test_an_output_that_is_not_written_is_found(probe: ModuleType, tmp_path: Path) -> None:
    failed = [check for check in outcome(probe, package(tmp_path / "p", UNWRITTEN))["checks"] if not check["ok"]]
    assert [(check["name"], check["error"]) for check in failed] == [("extend, 2 query heads per KV head", "nan")]


def test_a_kernel_that_raises_is_a_failure(probe: ModuleType, tmp_path: Path) -> None:
    assert "already defined" in outcome(probe, package(tmp_path / "p", RAISES))["failure"]["message"]


def test_the_projects_own_kernels_pass_in_a_process_of_their_own(tmp_path: Path) -> None:
    target = tmp_path / KERNELS_DIR
    shutil.copytree(SOURCE / "kernels", target, ignore=shutil.ignore_patterns("__pycache__"))
    report = check_numerics(Interpreter(Path(sys.executable)), tmp_path, Shape(**SMALL))
    assert [f.code for f in report.findings] == ["numerics-ok"] and report.checks >= 7


class Scripted(Interpreter):
    """Gives a prepared answer."""

    def __init__(self, answered: Answered) -> None:
        super().__init__(Path(sys.executable))
        object.__setattr__(self, "answered", answered)

    def ask(self, probe: str, spec: Any, timeout: float) -> Answered:
        return self.answered  # type: ignore[attr-defined]


ANSWERS: dict[str, tuple[Answered, str]] = {
    "a wrong head": (
        Answered({"checks": [{"name": "decode", "ok": False, "heads": [6, 7], "error": 1.4, "bound": 0.01}]}),
        "numerics-wrong",
    ),
    "an exception": (
        Answered({"checks": [], "failure": {"message": "ValueError: x", "trace": "..."}}),
        "numerics-failed",
    ),
    "no triton": (Answered({"unusable": "ModuleNotFoundError: triton"}), "numerics-cannot-tell"),
    "no answer": (Answered(None, "no answer within 600 s"), "numerics-cannot-tell"),
    "all right": (Answered({"checks": [{"name": "x", "ok": True, "heads": [], "error": 0.0}]}), "numerics-ok"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_each_answer_has_its_finding(tmp_path: Path, name: str) -> None:
    answered, code = ANSWERS[name]
    package(tmp_path / KERNELS_DIR)
    report = check_numerics(Scripted(answered), tmp_path, Shape())
    assert [f.code for f in report.findings] == [code]
    if name == "a wrong head":
        assert "heads 6, 7" in report.findings[0].message


TREE = {
    "sglang/QuantKernel/oscar_rotation_clip_int2_kv.py": """
import torch
from sglang.srt.mem_cache.kv_quant_kernels import reference


@torch.cuda.nvtx.range(msg="store")
def quantized_set_kv_int2_pretransformed_clip_triton(k, v, loc, kb, vb, ks, vs, clip_k, clip_v):
    reference.store_kv(k, v, loc, kb, vb, ks, vs, clip_ratio_k=clip_k, clip_ratio_v=clip_v)
""",
    "sglang/srt/mem_cache/kv_quant_kernels.py": """
import torch
from sglang.QuantKernel.plain import reference


def dequantize_kv_int2_triton(codes, pairs, head_dim, dtype):
    slots = torch.arange(codes.shape[0], device=codes.device)
    return reference.dequantize(codes, pairs, slots, head_dim=head_dim, dtype=dtype)
""",
    "sglang/srt/layers/attention/triton_ops/decode_attention.py": """
from sglang.QuantKernel.plain import reference
from sglang.srt.utils import is_hip

BLOCK_H = 16 if is_hip() else 4
"""
    + STRADDLE,
    "sglang/__init__.py": "raise ImportError('libcuda.so.1')\n",
}


def test_the_trees_own_kernels_are_judged_without_importing_sglang(
    probe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path / "sglang/QuantKernel/plain")
    for path, text in TREE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda.nvtx, "range", torch.cuda.nvtx.range)
    before = set(sys.modules)
    try:
        decode = "sglang.srt.layers.attention.triton_ops.decode_attention"
        answer = probe.main({"tree": str(tmp_path), "decode": decode, **SMALL})
    finally:
        for name in [name for name in set(sys.modules) - before if name.partition(".")[0] == "sglang"]:
            del sys.modules[name]
    assert "failure" not in answer
    assert [check["heads"] for check in answer["checks"] if not check["ok"]] == [[6, 7]]
    assert not any(check["name"].startswith("extend") for check in answer["checks"])


def test_which_kernels_are_judged_follows_what_is_there(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    class Asked(Interpreter):
        def ask(self, probe: str, spec: Any, timeout: float) -> Answered:
            asked.append(dict(spec))
            return Answered(None, "only asked")

    package(tmp_path / KERNELS_DIR)
    for path in TREE:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    for own in (True, False):
        check_numerics(Asked(Path(sys.executable)), tmp_path, Shape(), own=own)
    assert asked[0]["package"] == str(tmp_path / KERNELS_DIR) and "tree" not in asked[0]
    assert asked[1]["tree"] == str(tmp_path) and asked[1]["decode"].endswith("triton_ops.decode_attention")


def test_a_tree_without_kernels_cannot_be_judged(tmp_path: Path) -> None:
    report = check_numerics(Interpreter(Path(sys.executable)), tmp_path, Shape())
    assert [f.code for f in report.findings] == ["numerics-no-kernels"]
    assert CODES["numerics-no-kernels"].cannot_tell


@pytest.mark.parametrize(
    ("config", "tp", "group", "expected"),
    [
        (MOE, 2, 32, Shape(256, 256, 32, 8)),
        (DENSE, 2, 64, Shape(256, 256, 64, 6)),
        (MOE, 4, None, Shape(256, 256, 256, 4)),
    ],
    ids=["moe", "dense", "replicated heads"],
)  # fmt: skip
def test_the_shape_follows_config_and_tp(
    tmp_path: Path, config: dict[str, Any], tp: int, group: Any, expected: Shape
) -> None:
    assert shape_of(read_model_config(write_config(tmp_path, config)), tp, group) == expected


def test_shapes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        shape_of(None, None, 48)
    with pytest.raises(UsageError):
        shape_of(read_model_config(write_config(tmp_path, MOE)), 3, 32)


def test_every_numerics_code_is_met_here() -> None:
    met = {code for _, code in ANSWERS.values()} | {"numerics-no-kernels"}
    assert met == {name for name, code in CODES.items() if code.level is Level.NUMERICS}
