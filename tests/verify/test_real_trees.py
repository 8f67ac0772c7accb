"""The levels on real releases with the integration in them: good as they are, and broken in one place each."""

# ruff: noqa: E501 - the edits quote whole lines of the trees

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from escha_oscar.cli import main
from escha_oscar.mapping import copies, merges
from escha_oscar.model import Report, Severity
from escha_oscar.target.unpack import unpack_wheel
from escha_oscar.tree import DiskTree, Layered, MemoryTree
from escha_oscar.verify.codes import Level
from escha_oscar.verify.imports import K_PATH, V_PATH
from escha_oscar.verify.run import Request, run, verdict
from escha_oscar.verify.static import check_tree
from escha_oscar.verify.subprocesses import Interpreter
from tests.e2e import rig

pytestmark = pytest.mark.network

Trees = Callable[[str, bool], Path]
RELEASES = ("0.5.9", "0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13", "0.5.15")
BACKEND = "sglang/srt/layers/attention/triton_backend.py"
DECODE = "sglang/srt/layers/attention/triton_ops/decode_attention.py"
POOL = "sglang/srt/mem_cache/memory_pool.py"
MIXIN = "sglang/srt/model_executor/model_runner_kv_cache_mixin.py"
RUNNER = "sglang/srt/model_executor/model_runner.py"
ENVIRON = "sglang/srt/environ.py"
PREFILL = "sglang/srt/layers/attention/quantized_kv_prefill.py"

#: The names that a merge by hand has no reason to use.
OURS = {
    "_configure_int2_kv_cache": "_use_packed_kv", "_int2_pool_kwargs": "_quant_group_arguments",
    "_set_int2_kv_buffer": "_write_packed", "_create_int2_buffers": "_packed_buffers",
    "_init_int2": "_load_rotations", "_check_int2_kv_cache": "_check_group_size",
    "_forward_decode_int2": "_decode_packed", "_forward_extend_int2": "_forward_extend_quantized_dense",
    "_int2_cell_size": "_packed_cell_size",
}  # fmt: skip


@pytest.fixture(scope="session")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """Return a maker of trees: release and whether it is integrated, each unpacked once."""
    made: dict[tuple[str, bool], Path] = {}

    def tree(release: str, integrated: bool) -> Path:
        if (release, integrated) not in made:
            place = tmp_path_factory.mktemp("tree")
            unpack_wheel(rig.stock_wheel(release), place)
            command = ["integrate", "--site-packages", str(place), "--source", "bundled", "--allow-upstream"]
            assert not integrated or main(command) == 0
            made[release, integrated] = place
        return made[release, integrated]

    return tree


def files_of(root: Path) -> list[str]:
    paths = [path for row in (*copies(), *merges()) for path in row.wheel_paths]
    paths.append("sglang/srt/model_executor/pool_configurator.py")
    return [path for path in paths if (root / path).is_file()]


def unmarked(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not (line.lstrip().startswith("#") and "escha-oscar" in line))


def over(root: Path, files: dict[str, str]) -> Layered:
    return Layered(MemoryTree({path: text.encode() for path, text in files.items()}), DiskTree(root))


@pytest.mark.parametrize("release", RELEASES)
def test_an_integrated_release_is_good_and_quickly_so(trees: Trees, release: str) -> None:
    root = trees(release, True)
    started = time.process_time()
    results = run(Request((Level.FILES, Level.STATIC), site_packages=root))
    assert verdict(results) == 0
    assert [f for result in results for f in result.report.findings if f.severity is not Severity.INFO] == []
    assert time.process_time() - started < 8


@pytest.mark.parametrize("release", RELEASES)
def test_a_stock_release_is_not_merged(trees: Trees, release: str) -> None:
    results = run(Request((Level.STATIC,), site_packages=trees(release, False)))
    assert [f.code for f in results[0].report.findings] == ["not-merged"]


@pytest.mark.parametrize("release", RELEASES)
def test_the_same_merge_as_a_hand_would_leave_it_is_good(trees: Trees, release: str) -> None:
    root = trees(release, True)
    files = {}
    for path in files_of(root):
        text = unmarked((root / path).read_text(encoding="utf-8"))
        for ours, theirs in OURS.items():
            text = text.replace(ours, theirs)
        files[path] = text
    assert check_tree(over(root, files)).findings == ()


def cut(old: str, new: str = "", *, at: int = 0) -> Callable[[str], str]:
    """Return an edit that replaces the occurrence number ``at`` of ``old``, which must be there."""

    def edit(text: str) -> str:
        parts = text.split(old)
        assert len(parts) > at + 1, f"{old!r} is not there {at + 1} times"
        return old.join(parts[: at + 1]) + new + old.join(parts[at + 1 :])

    return edit


EXTEND = "        if _is_int2_pool(self, forward_batch):\n            return self._forward_extend_int2("
MUTATIONS: dict[str, tuple[str, Callable[[str], str], str]] = {
    "the backend reads a packed width": (
        BACKEND, cut('if getattr(model_runner.token_to_kv_pool, "dtype", None) == "int2":', "if False:"), "packed-head-dim",
    ),
    "extend is not dispatched": (BACKEND, cut(EXTEND, "        if False:\n            return self._forward_extend("), "backend-int2-missing"),
    "an accessor with an argument too many": (
        BACKEND, cut("pool.get_oscar_rotation(layer.layer_id)", "pool.get_oscar_rotation(layer.layer_id, 1)"), "call-signature",
    ),
    "a stock kernel called without an argument": (BACKEND, cut("custom_mask=None, "), "call-signature"),
    "a helper that was never imported": (BACKEND, cut("import extend_attention, rotate", "import extend_attention"), "undefined-name"),
    "the hybrid branch": (MIXIN, cut("**self._int2_pool_kwargs(),"), "hybrid-branch"),
    "the plain branch": (MIXIN, cut("**self._int2_pool_kwargs(),", at=1), "pool-arguments"),
    "nothing chooses int2": (RUNNER, cut('kv_cache_dtype == "int2"', 'kv_cache_dtype == "int4"'), "dtype-branch-missing"),
    "a variable": (ENVIRON, cut("SGLANG_LLOYD_MAX = ", "SGLANG_LLOYD_MAX: bool\n    SGLANG_OTHER = "), "symbol-kind"),
    "the clamp": (DECODE, cut("BLOCK_H = _safe_block_h(BLOCK_H, kv_group_num)", "pass"), "head-tile-clamp-missing"),
    "a doubled function": (POOL, lambda text: text + "\n\ndef load_oscar_rotation_config():\n    return None\n", "duplicate-definition"),
    "a global layer id": (
        POOL,
        cut("self.full_kv_pool.get_oscar_rotation(self._transfer_full_attention_id(layer_id))", "self.full_kv_pool.get_oscar_rotation(layer_id)"),
        "hybrid-forwarding",
    ),
    "an import from nowhere": (PREFILL, lambda text: text + "\nfrom sglang.srt.nowhere import x\n", "unresolved-import"),
    "half a file": (POOL, lambda text: text[: len(text) // 2] + "\n(", "syntax"),
}  # fmt: skip


@pytest.mark.parametrize("release", ["0.5.9", "0.5.15"])
@pytest.mark.parametrize("name", MUTATIONS)
def test_one_broken_place_gives_its_finding(trees: Trees, release: str, name: str) -> None:
    path, edit, code = MUTATIONS[name]
    root = trees(release, True)
    text = (root / path).read_text(encoding="utf-8")
    report: Report = check_tree(over(root, {path: edit(text)}), source_kind="bundled")
    assert not report.ok
    assert code in {f.code for f in report.findings}
    if name != "half a file":
        assert {f.code for f in report.findings if f.severity is Severity.ERROR} == {code}


STUBS = "import sys\nsys.path.insert(0, {place!r})\nfrom inside import stubs\nstubs.install()\n"


def test_the_servers_imports_on_a_real_tree_end_at_the_missing_variables(
    trees: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = trees("0.5.9", True)
    (tmp_path / "sitecustomize.py").write_text(STUBS.format(place=str(Path(rig.__file__).parent)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{rig.stock('0.5.9').deps}")
    for name in (K_PATH, V_PATH):
        monkeypatch.delenv(name, raising=False)
    python = Interpreter(Path(sys.executable), root)
    request = Request((Level.IMPORTS,), site_packages=root, interpreter=python)
    found = run(request)[0].report.findings
    assert [f.code for f in found] == ["not-configured"] and K_PATH in found[0].message
    monkeypatch.setenv(K_PATH, "/rotations/k.pt")
    found = run(request)[0].report.findings
    assert [f.code for f in found] == ["misconfigured"] and V_PATH in found[0].message
