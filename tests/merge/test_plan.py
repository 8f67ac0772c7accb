"""A whole integration decided in memory: what is written, where it comes from, and what is refused."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import libcst as cst
import pytest

from escha_oscar.errors import AnchorError, SymbolError, TargetError
from escha_oscar.mapping import DECODE_PATHS, ROWS, copies, merges
from escha_oscar.mapping.wheels import KERNELS_DIR
from escha_oscar.merge import plan as planning
from escha_oscar.merge.files import Sources
from escha_oscar.merge.marker import marker
from escha_oscar.merge.plan import Options, build_plan, kernel_files
from escha_oscar.model import Change, Origin, Plan, SymbolKind, Target
from escha_oscar.source.bundled import Bundled
from escha_oscar.transforms import TRANSFORMS, environ
from escha_oscar.tree import MemoryTree, planned
from tests.support import forks, pr_tree
from tests.support.pr_tree import MemorySource
from tests.transforms.tools import edited

TARGET = Target(Path("/venv/site-packages"), "escha", "1.0.2+qwen3moe", Path("/venv/escha.dist-info"), "escha-moe")
INIT = "sglang/QuantKernel/__init__.py"
each_layout = pytest.mark.parametrize("layout", forks.LAYOUTS.values(), ids=forks.LAYOUTS)


def plan_of(
    files: Mapping[str, str | bytes],
    pr: MemorySource | None = None,
    options: Options | None = None,
    dependencies: frozenset[str] = frozenset(),
) -> Plan:
    tree = MemoryTree({path: data.encode() if isinstance(data, str) else data for path, data in files.items()})
    return build_plan(TARGET, tree, Sources(pr, Bundled.open()), options, dependencies=dependencies)


def text_of(plan: Plan, path: str) -> str:
    data = plan.after(path)
    assert data is not None
    return data.decode()


def where(plan: Plan, symbol: str) -> tuple[str, str]:
    (use,) = [use for use in plan.symbols if use.symbol == symbol]
    return use.taken_from, use.why


@pytest.fixture(scope="module", params=forks.LAYOUTS.values(), ids=list(forks.LAYOUTS))
def bundled(request: pytest.FixtureRequest) -> tuple[forks.Files, Plan]:
    return request.param, plan_of(request.param)


@pytest.fixture(scope="module", params=forks.LAYOUTS.values(), ids=list(forks.LAYOUTS))
def from_pr(request: pytest.FixtureRequest) -> tuple[forks.Files, Plan]:
    return request.param, plan_of(request.param, MemorySource())


class Only:
    """Merges the named files alone: a whole plan takes half a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def __call__(self, *paths: str) -> None:
        self.monkeypatch.setattr(planning, "TRANSFORMS", tuple(t for t in TRANSFORMS if t.TARGET in paths))


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Only:
    return Only(monkeypatch)


# -- what every plan holds


def test_every_file_of_the_mapping_arrives_and_nothing_else(bundled: tuple[forks.Files, Plan]) -> None:
    files, plan = bundled
    changes = {file.path: file.change for file in plan.files}
    assert {p for p, c in changes.items() if c is Change.PLACE} == {f"{KERNELS_DIR}/{name}" for name in kernel_files()}
    assert {p for p, c in changes.items() if c is Change.COPY} == {row.wheel_paths[0] for row in copies()}
    assert {p for p, c in changes.items() if c is Change.CREATE} == {INIT}
    merged = {row.wheel_paths[0] for row in merges()} | {forks.SCHEDULER, forks.POLICY}
    merged |= {forks.CONFIGURATOR} & files.keys()
    assert {p for p, c in changes.items() if c is Change.MERGE} == merged
    assert (plan.target, plan.kernels, plan.source.kind) == (TARGET, "native", "bundled")


def test_every_file_compiles_and_knows_what_it_replaces(bundled: tuple[forks.Files, Plan]) -> None:
    files, plan = bundled
    for file in plan.files:
        compile(file.after, file.path, "exec", dont_inherit=True)
        assert file.before == (files[file.path].encode() if file.path in files else None)


def test_every_merged_file_carries_one_marker_and_nothing_else_does(bundled: tuple[forks.Files, Plan]) -> None:
    line = marker("its bundled implementation").encode()
    for file in bundled[1].files:
        assert file.after.count(line) == (file.change is Change.MERGE), file.path


def test_what_only_the_fork_has_survives_in_every_file(from_pr: tuple[forks.Files, Plan]) -> None:
    _, plan = from_pr
    for path, marks in forks.MARKS.items():
        for mark in marks:
            assert mark in text_of(plan, path), (path, mark)


def test_nothing_of_the_fork_is_lost_but_the_lines_that_are_edited(from_pr: tuple[forks.Files, Plan]) -> None:
    files, plan = from_pr
    for path in forks.MARKS:
        lines = text_of(plan, path).splitlines()
        lost = [line for line in files[path].splitlines() if line not in lines]
        assert len(lost) <= 5, (path, lost)
        for line in lost:
            assert any(word in line for word in EDITED_LINES), (path, line)


#: The lines that an edit rewrites in place: lists, arguments, conditions and the adder's budget.
EDITED_LINES = (
    "fp4_e2m1", "float8_e5m2", "def set_kv_buffer", "if self.sliding_window_size is not None",
    "if model_runner.mambaish_config", "for req in self.waiting_queue", "mixed_decode_tokens: int", "_rem_tokens =",
)  # fmt: skip


def test_no_name_is_defined_twice(from_pr: tuple[forks.Files, Plan]) -> None:
    for file in from_pr[1].files:
        for scope in ast.walk(ast.parse(file.after)):
            if isinstance(scope, ast.Module | ast.ClassDef):
                names = [n.name for n in scope.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
                assert len(names) == len(set(names)), (file.path, names)


def test_every_symbol_of_the_mapping_is_accounted_for(from_pr: tuple[forks.Files, Plan]) -> None:
    reported = {use.symbol for use in from_pr[1].symbols}
    listed = [s for row in ROWS for s in row.symbols]
    kinds = (SymbolKind.CHOICE, SymbolKind.FLAG, SymbolKind.DATACLASS_FIELD)
    assert {s.name for s in listed if s.public and s.kind not in kinds} <= reported
    for symbol in listed:
        if symbol.origin is Origin.GLUE:
            assert where(from_pr[1], symbol.name) == ("glue", "")


@each_layout
def test_a_plan_over_its_own_result_is_refused(layout: forks.Files) -> None:
    tree = MemoryTree(forks.encoded(layout))
    plan = build_plan(TARGET, tree, Sources(None, Bundled.open()))
    after = planned(plan, tree)
    with pytest.raises(TargetError, match="INT2 code that this tool did not write"):
        build_plan(TARGET, after, Sources(None, Bundled.open()))


def test_the_same_input_gives_the_same_plan() -> None:
    assert plan_of(forks.OLD, MemorySource()) == plan_of(forks.OLD, MemorySource())


def test_warnings_of_the_target_reach_the_plan(only: Only) -> None:
    only()
    target = dataclasses.replace(TARGET, warnings=("unknown build 9.9",))
    tree = MemoryTree(forks.encoded(forks.OLD))
    assert build_plan(target, tree, Sources(None, Bundled.open())).warnings == ("unknown build 9.9",)


# -- where symbols come from


def test_copies_are_verbatim_where_no_defect_is_known(from_pr: tuple[forks.Files, Plan]) -> None:
    _, plan = from_pr
    assert plan.verbatim == (pr_tree.KV_QUANT,)
    assert text_of(plan, pr_tree.KV_QUANT) == pr_tree.KV_QUANT_TEXT


def test_defects_of_copies_and_grafts_are_mended_and_listed(from_pr: tuple[forks.Files, Plan]) -> None:
    _, plan = from_pr
    assert [(r.name, r.path.rpartition(":")[2]) for r in plan.repairs] == [
        ("quant-kernel-init", INIT),
        ("fp16-rows", pr_tree.CLIP),
        ("grouped-lloyd-max", pr_tree.CLIP),
        ("hadamard-import", pr_tree.PREFILL),
        ("softmax-keywords", "decode_attention_fwd_normal_quant_int2"),
        ("softmax-keywords", "decode_attention_fwd_grouped_quant_int2"),
        ("head-tile", "_decode_grouped_att_m_fwd_quant_int2"),
        ("rebound-constexpr", "_fwd_grouped_kernel_stage1_quant_int2"),
    ]
    assert all(r.detail for r in plan.repairs)


def test_each_symbol_says_where_it_came_from(from_pr: tuple[forks.Files, Plan]) -> None:
    _, plan = from_pr
    assert where(plan, "OscarRotationConfig") == ("pr", "")
    assert where(plan, "load_oscar_rotations") == ("bundled", "a call does not fit: unknown keyword layer_ids")
    assert where(plan, "MHATokenToKVPool._allocate_scales_zeros_buffers") == (
        "bundled", "reads self._hp_buffer, which nothing sets",
    )  # fmt: skip
    assert where(plan, "_fwd_grouped_kernel_stage1_quant_int2") == ("pr", "")
    assert where(plan, "SGLANG_LLOYD_MAX") == ("pr", "")
    assert where(plan, "SGLANG_OSCAR_K_CLIP_RATIO") == ("bundled", "the pull request has another default")
    assert where(plan, "SGLANG_OSCAR_KERNELS") == ("glue", "")


def test_decode_functions_land_in_the_wheels_place(from_pr: tuple[forks.Files, Plan]) -> None:
    _, plan = from_pr
    assert not any(file.path.startswith("sglang/kernels/") for file in plan.files)
    text = text_of(plan, DECODE_PATHS[0])
    for name in ("decode_attention_fwd_quantized", "_fwd_kernel_stage1_quant_int2", "_safe_block_h"):
        assert text.count(f"def {name}(") == 1
    assert text.count("def _decode_softmax_reducev_fwd(") == 1
    assert "_MIN_BLOCK_KV = 32\n" in text


def test_the_newer_place_serves_where_the_wheel_has_it(only: Only) -> None:
    only(forks.DECODE)
    files = {**forks.OLD, DECODE_PATHS[1]: forks.DECODE_TEXT}
    del files[DECODE_PATHS[0]]
    plan = plan_of(files, MemorySource())
    assert "def decode_attention_fwd_quantized(" in text_of(plan, DECODE_PATHS[1])
    assert plan.after(DECODE_PATHS[0]) is None


def test_environment_fields_that_transplanted_code_reads_are_registered(from_pr: tuple[forks.Files, Plan]) -> None:
    text = text_of(from_pr[1], forks.ENVIRON)
    assert text.count("    SGLANG_OSCAR_CHUNK = EnvInt(256)\n") == 1  # read by a copied file
    assert text.count("    SGLANG_OSCAR_TILE = EnvInt(16)\n") == 1  # read by a grafted function
    assert "SGLANG_NOT_READ" not in text
    names: dict[str, object] = {}
    exec(text, names)
    assert names["envs"].SGLANG_OSCAR_TILE.get() == 16  # type: ignore[attr-defined]


def test_the_bundled_source_needs_no_other_fields(bundled: tuple[forks.Files, Plan]) -> None:
    text = text_of(bundled[1], forks.ENVIRON)
    assert "SGLANG_OSCAR_CHUNK" not in text
    assert '    SGLANG_OSCAR_KERNELS = EnvStr("native")\n' in text


def test_the_default_kernels_are_written_into_the_tree(only: Only) -> None:
    only(forks.ENVIRON)
    plan = plan_of(forks.OLD, None, Options(kernels="pr"))
    assert plan.kernels == "pr"
    assert '    SGLANG_OSCAR_KERNELS = EnvStr("pr")\n' in text_of(plan, forks.ENVIRON)


def test_scales_are_handed_to_the_extend_kernel_that_takes_them(only: Only) -> None:
    only(forks.BACKEND)
    assert "k_scale=1.0, v_scale=1.0, " not in text_of(plan_of(forks.OLD), forks.BACKEND)
    assert "k_scale=1.0, v_scale=1.0, " in text_of(plan_of(forks.NEW), forks.BACKEND)


def pr_with(**changes: str | None) -> MemorySource:
    """Return the pull request with files of ``pr_tree`` (by constant name) replaced or, with None, left out."""
    files = {getattr(pr_tree, name): text for name, text in changes.items()}
    return MemorySource({path: text for path, text in {**pr_tree.FILES, **files}.items() if text is not None})


UNFIT_COPIES = {
    "not there": (None, "not in the pull request"),
    "a public symbol is gone": (
        pr_tree.KV_QUANT_TEXT.replace("def dequantize_kv_int2_triton", "def dequantize_int2"),
        "dequantize_kv_int2_triton is not in it",
    ),
    "a call of ours does not fit": (
        pr_tree.KV_QUANT_TEXT.replace("head_dim, model_dtype):", "head_dim, model_dtype, out):"),
        "a call of dequantize_kv_int2_triton does not fit: missing out",
    ),
    "an import that the wheel lacks": (
        pr_tree.KV_QUANT_TEXT.replace("import torch\n", "from sglang.absent import kernel\n"),
        "imports from sglang.absent import kernel, which the wheel's tree lacks",
    ),
    "a package that the wheel does not require": (
        pr_tree.KV_QUANT_TEXT.replace("import torch\n", "import sgl_kernel\n"),
        "imports import sgl_kernel, which the wheel's tree lacks",
    ),
}


@pytest.mark.parametrize(("text", "why"), UNFIT_COPIES.values(), ids=UNFIT_COPIES)
def test_a_file_that_does_not_fit_is_replaced_whole(text: str | None, why: str, only: Only) -> None:
    only()
    plan = plan_of(forks.OLD, pr_with(KV_QUANT=text))
    assert where(plan, "dequantize_kv_int2_triton") == ("bundled", why)
    assert text_of(plan, pr_tree.KV_QUANT).encode() == Bundled.open().read(pr_tree.KV_QUANT)
    assert pr_tree.KV_QUANT not in plan.verbatim


@pytest.mark.parametrize(("text", "why"), UNFIT_COPIES.values(), ids=UNFIT_COPIES)
def test_strict_refuses_a_file_that_does_not_fit(text: str | None, why: str) -> None:
    clip = pr_tree.CLIP_TEXT.replace("from sglang.srt.mem_cache.kv_quant_kernels import", "import torch as")
    with pytest.raises(SymbolError, match="cannot be copied") as caught:
        plan_of(forks.OLD, pr_with(KV_QUANT=text, CLIP=clip), Options(strict=True))
    assert (caught.value.path, caught.value.found) == (pr_tree.KV_QUANT, why)
    assert caught.value.hint == "escha-oscar integrate --source bundled"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("    SGLANG_LLOYD_MAX = EnvBool(True)\n", "the pull request has another default: EnvBool(True)"),
        ("", "not in the pull request's file"),
    ],
    ids=["another default", "absent"],
)
def test_strict_refuses_a_field_that_is_not_the_pull_requests(line: str, found: str, only: Only) -> None:
    only(environ.TARGET)
    text = edited(pr_tree.ENVIRON_TEXT, ("EnvFloat(0.96)", "EnvFloat(0.0)"), ("EnvFloat(0.92)", "EnvFloat(0.0)"))
    plan_of(forks.OLD, pr_with(ENVIRON=text), Options(strict=True))
    other = edited(text, ("    SGLANG_LLOYD_MAX = EnvBool(False)\n", line))
    plan = plan_of(forks.OLD, pr_with(ENVIRON=other))
    assert where(plan, "SGLANG_LLOYD_MAX") == ("bundled", found.partition(":")[0])
    with pytest.raises(SymbolError, match="SGLANG_LLOYD_MAX cannot be taken from the source") as caught:
        plan_of(forks.OLD, pr_with(ENVIRON=other), Options(strict=True))
    assert (caught.value.sought, caught.value.found) == ("SGLANG_LLOYD_MAX = EnvBool(False)", found)


GUARDED = (
    "try:\n    import sgl_kernel\nexcept ImportError:\n    sgl_kernel = None\n",
    "try:\n    import torch\nexcept Exception:\n    import torch\nfinally:\n    pass\n",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sglang.absent import X\n",
    "def f():\n    import torch\n",
    "try:\n    import sgl_kernel\nexcept:\n    pass\n",
)


def test_a_file_that_needs_a_replaced_one_falls_with_it(only: Only) -> None:
    only()
    plan = plan_of(forks.OLD, pr_with(KV_QUANT=None))
    taken, why = where(plan, "quantized_set_kv_int2_pretransformed_clip_triton")
    assert taken == "bundled"
    assert "kv_quant_kernels import _get_num_scale_groups" in why


@pytest.mark.parametrize("text", GUARDED, ids=["try", "handler", "typing", "inside", "bare"])
def test_guarded_imports_of_a_copied_file_are_no_obstacle(text: str, only: Only) -> None:
    only()
    plan = plan_of(forks.OLD, pr_with(KV_QUANT=pr_tree.KV_QUANT_TEXT + text))
    assert pr_tree.KV_QUANT in plan.verbatim


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import sgl_kernel\nfinally:\n    pass\n",
        "try:\n    import torch\nexcept ImportError:\n    import sgl_kernel\n",
        "try:\n    import sgl_kernel\nexcept KeyError:\n    pass\n",
        "try:\n    pass\nexcept ImportError:\n    pass\nelse:\n    import sgl_kernel\n",
    ],
    ids=["finally", "handler", "another error", "else"],
)
def test_imports_that_nothing_guards_are_an_obstacle(text: str, only: Only) -> None:
    only()
    plan = plan_of(forks.OLD, pr_with(KV_QUANT=pr_tree.KV_QUANT_TEXT + text))
    assert where(plan, "_get_num_scale_groups")[0] == "bundled"


def test_a_required_package_is_no_obstacle(only: Only) -> None:
    only()
    pr = pr_with(KV_QUANT=pr_tree.KV_QUANT_TEXT + "import sgl_kernel\n")
    assert pr_tree.KV_QUANT in plan_of(forks.OLD, pr, dependencies=frozenset({"sgl_kernel"})).verbatim


def test_a_pull_request_without_any_file_leaves_our_own() -> None:
    plan = plan_of(forks.OLD, MemorySource({}))
    assert {use.taken_from for use in plan.symbols} == {"bundled", "glue"}
    assert plan.source.kind == "pr"


def test_decode_is_also_found_where_the_authors_keep_it(only: Only) -> None:
    only(forks.DECODE)
    files = {**pr_tree.FILES, DECODE_PATHS[0]: pr_tree.DECODE_TEXT}
    del files[DECODE_PATHS[1]]
    assert where(plan_of(forks.OLD, MemorySource(files)), "decode_attention_fwd_quantized") == ("pr", "")


def test_progress_names_the_steps() -> None:
    class Steps:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def step(self, text: str) -> None:
            self.seen.append(text)

        def advance(self, done: int, total: int | None = None) -> None:
            raise AssertionError("nothing is counted here")

    steps = Steps()
    build_plan(TARGET, MemoryTree(forks.encoded(forks.OLD)), Sources(None, Bundled.open()), progress=steps)
    assert steps.seen[:2] == ["placing kernels", "copying files"]
    assert f"merging {forks.POOL}" in steps.seen


# -- what is refused


@pytest.mark.parametrize("path", sorted(forks.MARKS))
def test_a_missing_file_is_refused_by_name(path: str, only: Only) -> None:
    only(path)
    files = {name: text for name, text in forks.OLD.items() if name != path}
    with pytest.raises(TargetError, match="the tree lacks a file") as caught:
        plan_of(files)
    assert path in str(caught.value.sought)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("escha-oscar mapping --site-packages /")


def test_a_missing_decode_file_is_refused_naming_both_places(only: Only) -> None:
    only(forks.DECODE)
    files = {name: text for name, text in forks.OLD.items() if name != forks.DECODE}
    with pytest.raises(TargetError) as caught:
        plan_of(files)
    assert caught.value.sought == " or ".join(DECODE_PATHS)


FOREIGN = {
    "a copied file": (pr_tree.PREFILL, "# from somewhere\n", None, "the file itself"),
    "a grafted function": (
        forks.DECODE,
        forks.DECODE_TEXT + "\n\ndef decode_attention_fwd_quantized(q):\n    pass\n",
        forks.DECODE_TEXT.count("\n") + 3,
        "decode_attention_fwd_quantized",
    ),
    "a grafted method": (
        forks.POOL,
        edited(
            forks.POOL_TEXT, ("    def escha_stats", "    def get_oscar_rotation(self, i): ...\n\n    def escha_stats")
        ),
        None,
        "MHATokenToKVPool.get_oscar_rotation",
    ),
    "a kernel of the pull request": (
        forks.DECODE,
        forks.DECODE_TEXT + "\n\ndef _fwd_kernel_stage1_quant_int2(q):\n    pass\n",
        None,
        "_fwd_kernel_stage1_quant_int2",
    ),
    "our own marker": (forks.SCHEDULER, marker("commit 1") + "\n" + forks.SCHEDULER_TEXT, None, "the file itself"),
}


@pytest.mark.parametrize(("path", "text", "line", "found"), FOREIGN.values(), ids=FOREIGN)
def test_a_tree_that_holds_int2_code_already_is_refused(
    path: str, text: str, line: int | None, found: str, only: Only
) -> None:
    only(path)
    with pytest.raises(TargetError, match="did not write") as caught:
        plan_of({**forks.OLD, path: text})
    error = caught.value
    assert (error.path, error.found) == (path, found)
    assert line is None or error.line == line
    assert error.hint is not None and "--force-reinstall" in error.hint


def test_an_own_quant_kernel_package_is_kept(only: Only) -> None:
    only()
    plan = plan_of({**forks.OLD, INIT: "# フォーク\n"})
    assert plan.after(INIT) is None
    assert "quant-kernel-init" not in [r.name for r in plan.repairs]


BAD_BYTES = {
    "a lone byte in a comment": (b"# \x80\n", 1, "byte 0x80 at offset 2"),
    "on a later line": (b"# \xe6\x97\xa5\nx = 1\n# a\xff\n", 3, "byte 0xff at offset 15"),
    "after a mark, on a later line": (b"\xef\xbb\xbf# a\n\n\n# \x80\n", 4, "byte 0x80 at offset 11"),
    "under a codec that is not there": (b"# coding: no-such-codec\n# \x80\n", 2, "byte 0x80 at offset 26"),
    "after a byte order mark": (b"\xef\xbb\xbf# \x80\n", 1, "byte 0x80 at offset 5"),
}


@pytest.mark.parametrize(("head", "line", "found"), BAD_BYTES.values(), ids=BAD_BYTES)
@pytest.mark.parametrize("path", [forks.SCHEDULER, forks.DECODE])
def test_undecodable_bytes_are_named_with_line_and_offset(
    head: bytes, line: int, found: str, path: str, only: Only
) -> None:
    only(path)
    with pytest.raises(AnchorError, match="not valid text") as caught:
        plan_of({**forks.OLD, path: head + forks.OLD[path].encode()})
    assert (caught.value.path, caught.value.line, caught.value.found) == (path, line, found)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"# coding: no-such-codec\n", "no usable encoding"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "no usable encoding"),
    ],
    ids=["an unknown codec", "a byte order mark against the cookie"],
)
def test_an_unusable_encoding_is_refused(head: bytes, message: str, only: Only) -> None:
    only(forks.SCHEDULER)
    with pytest.raises(AnchorError, match=message) as caught:
        plan_of({**forks.OLD, forks.SCHEDULER: head + forks.OLD[forks.SCHEDULER].encode()})
    assert (caught.value.path, caught.value.line) == (forks.SCHEDULER, 1)


@pytest.mark.parametrize("path", [forks.SCHEDULER, forks.DECODE, forks.ENVIRON])
def test_a_file_of_the_wheel_that_does_not_parse_is_refused(path: str, only: Only) -> None:
    only(path)
    with pytest.raises(AnchorError, match="does not parse") as caught:
        plan_of({**forks.OLD, path: forks.OLD[path] + "def broken(:\n"})
    assert caught.value.path == path
    assert caught.value.line == forks.OLD[path].count("\n") + 1


def test_a_file_of_the_source_that_does_not_parse_is_refused_by_its_own_path(only: Only) -> None:
    only(forks.POOL)
    with pytest.raises(AnchorError, match="a source file does not parse") as caught:
        plan_of(forks.OLD, pr_with(POOL="def broken(:\n"))
    assert caught.value.path == pr_tree.POOL


def test_a_file_of_many_megabytes_is_refused_before_it_is_parsed() -> None:
    data = b"x = 1  # " + b"x" * (5 << 20)
    with pytest.raises(AnchorError) as refused:
        plan_of({**forks.OLD, forks.POOL: data})
    assert (refused.value.path, refused.value.found) == (forks.POOL, str(len(data)))


def test_a_file_that_does_not_come_back_byte_for_byte_is_left_alone(only: Only) -> None:
    only(forks.SCHEDULER)
    text = edited(forks.SCHEDULER_TEXT, ("\nclass Scheduler", "\n\x0cclass Scheduler"))
    with pytest.raises(AnchorError, match="does not survive parsing byte for byte") as caught:
        plan_of({**forks.OLD, forks.SCHEDULER: text})
    assert caught.value.path == forks.SCHEDULER


def test_a_transform_that_leaves_its_radius_is_stopped(monkeypatch: pytest.MonkeyPatch, only: Only) -> None:
    only(forks.SCHEDULER)
    from escha_oscar.transforms import scheduler

    def careless(module: cst.Module, context: object) -> cst.Module:
        return module.with_changes(body=module.body[1:])

    monkeypatch.setattr(scheduler, "transform", careless)
    with pytest.raises(AnchorError, match="outside its declared edits") as caught:
        plan_of(forks.OLD)
    assert caught.value.path == forks.SCHEDULER


def test_the_placed_kernels_are_the_shipped_ones(only: Only) -> None:
    only()
    files = kernel_files()
    assert "__init__.py" in files and "decode.py" in files
    plan = plan_of(forks.OLD)
    assert {name: plan.after(f"{KERNELS_DIR}/{name}") for name in files} == files
