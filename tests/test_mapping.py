"""The table: what the article lists, what else the pull request touches, and that it is consistent."""

from __future__ import annotations

import re

import pytest

from escha_oscar.mapping import DECODE_PATHS, FAMILIES, PIN, ROWS, copies, merges, row_for
from escha_oscar.mapping.table import ARTICLE_NOTE
from escha_oscar.model import Action, Origin, Row, SymbolKind
from escha_oscar.source.bundled import Bundled

SKIPPED = {
    "kv_cache_dtype", "unified_kv_pool", "qwen3", "glm4_moe", "utils", "gpu_flush_int2",
}  # fmt: skip
MERGED = [
    "environ", "server_args", "model_runner", "model_runner_kv_cache_mixin", "memory_pool", "triton_backend",
    "decode_attention",
]  # fmt: skip


def stem(row: Row) -> str:
    return row.pr_paths[0].rpartition("/")[2].removesuffix(".py")


def test_the_pin_is_the_commit_of_the_article() -> None:
    assert PIN.commit == "4b28b26bb4cca06984a97bacba25eb43cfd44145"
    assert PIN.pull_request == 32129


def test_the_counts_of_the_article_and_of_its_list_are_both_kept() -> None:
    assert len(copies()) == 3
    assert [stem(row) for row in merges()] == MERGED
    assert "6" in ARTICLE_NOTE and "7" in ARTICLE_NOTE
    assert {stem(r) for r in ROWS if r.action is Action.SKIP and r.in_article} == SKIPPED


def test_further_files_of_the_pull_request_are_listed_apart() -> None:
    beyond = {stem(row) for row in ROWS if not row.in_article}
    assert {"unified_kv_allocator", "fused_hadamard_int2_kv", "kv_cache_configurator", "pool_configurator",
            "flashattention_backend"} <= beyond  # fmt: skip
    assert all(row.action is Action.SKIP for row in ROWS if not row.in_article)


def test_decode_comes_from_the_newer_place_and_goes_to_the_wheels() -> None:
    (row,) = [row for row in merges() if stem(row) == "decode_attention"]
    assert row.pr_paths == (DECODE_PATHS[1], DECODE_PATHS[0])
    assert row.wheel_paths == DECODE_PATHS
    assert [s.name for s in row.symbols if s.origin is Origin.GLUE] == ["_safe_block_h"]
    assert len([s for s in row.symbols if s.origin is Origin.PR]) == 9


@pytest.mark.parametrize("row", ROWS, ids=stem)
def test_a_row_is_whole(row: Row) -> None:
    assert row.reason
    assert all(re.fullmatch(r"sglang/[\w/]+\.py", path) for path in (*row.pr_paths, *row.wheel_paths))
    assert bool(row.wheel_paths) == (row.action is not Action.SKIP)
    assert bool(row.symbols) == (row.action is not Action.SKIP)
    names = [(s.name, s.kind) for s in row.symbols]
    assert len(set(names)) == len(names)


def test_no_file_is_written_by_two_rows() -> None:
    written = [path for row in ROWS for path in row.wheel_paths]
    assert len(set(written)) == len(written)
    for row in ROWS:
        assert all(row_for(path) is row for path in row.wheel_paths)
    assert row_for("sglang/srt/models/qwen3.py") is None


@pytest.mark.parametrize("row", [*copies(), *merges()], ids=stem)
def test_the_bundled_tree_has_every_required_definition(row: Row) -> None:
    from escha_oscar.merge.files import SourceFile

    path = row.wheel_paths[0]
    data = Bundled.open().read(path)
    assert data is not None
    file = SourceFile(path, "bundled", data.decode())
    definitions = (SymbolKind.FUNCTION, SymbolKind.METHOD, SymbolKind.CLASS, SymbolKind.TRITON_KERNEL)
    for symbol in row.symbols:
        if symbol.kind in definitions and symbol.public:
            assert file.find(symbol.name) is not None, symbol.name
        elif symbol.kind is SymbolKind.ENV_FIELD:
            assert file.find(f"Envs.{symbol.name}") is not None, symbol.name


def test_methods_and_fields_are_dotted_and_nothing_else_is() -> None:
    for symbol in (s for row in ROWS for s in row.symbols):
        dotted = symbol.kind in (SymbolKind.METHOD, SymbolKind.DATACLASS_FIELD)
        assert ("." in symbol.name) == dotted, symbol


def test_glue_is_never_internal() -> None:
    assert all(s.public for row in ROWS for s in row.symbols if s.origin is Origin.GLUE)


def test_the_known_builds_are_told_apart_by_their_local_version() -> None:
    assert [(f.name, f.distribution, f.local, f.tree) for f in FAMILIES] == [
        ("escha-moe", "escha", "qwen3moe", "0.5.9"),
        ("escha-dense", "escha", "qwen3dense", "0.5.15"),
        ("upstream", "sglang", None, "itself"),
    ]
    assert all(family.versions for family in FAMILIES)
