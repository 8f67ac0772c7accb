"""The static level: good trees give nothing, each broken tree gives exactly its own finding."""

# ruff: noqa: E501 - snippets of Python are quoted whole

from __future__ import annotations

import pytest

from escha_oscar.model import Severity
from escha_oscar.tree import DiskTree, Layered, MemoryTree
from escha_oscar.verify.codes import CODES, Level
from escha_oscar.verify.static import check_tree, symbol_states
from tests.verify import mini_tree
from tests.verify.broken_trees import (
    BACKEND,
    BROKEN_BY_HAND,
    BROKEN_OURS,
    DECODE,
    ENVIRON,
    KV_QUANT,
    MIXIN,
    POOL,
    RUNNER,
    SERVER_ARGS,
    Edit,
    Files,
    append,
)

NEWER_DECODE = "sglang/kernels/ops/attention/decode_attention.py"


def memory(files: Files) -> MemoryTree:
    return MemoryTree({path: text.encode() for path, text in files.items()})


def codes(files: Files, **options: object) -> list[str]:
    return [f.code for f in check_tree(memory(files), **options).findings]  # type: ignore[arg-type]


def newer_layout(files: Files) -> None:
    files[NEWER_DECODE] = files.pop(DECODE)
    files[BACKEND] = files[BACKEND].replace("layers.attention.triton_ops", "kernels.ops.attention", 1)
    files[BACKEND] = files[BACKEND].replace("sglang.srt.kernels", "sglang.kernels")


def single_quotes(files: Files) -> None:
    for path in (SERVER_ARGS, RUNNER, MIXIN, POOL, BACKEND):
        files[path] = files[path].replace('"', "'").replace("'''", '"""')


GOOD = {
    "merged by us, bundled source": (mini_tree.merged_by_us, None, {"source_kind": "bundled"}),
    "merged by us, nothing known": (mini_tree.merged_by_us, None, {}),
    "merged by us, pull request": (mini_tree.merged_by_us_from_pr, None, {"source_kind": "pr"}),
    "merged by us, an escha wheel": (mini_tree.merged_by_us, None, {"escha": True}),
    "merged by hand": (mini_tree.merged_by_hand, None, {}),
    "merged by hand, newer layout": (mini_tree.merged_by_hand, newer_layout, {}),
    "merged by hand, single quotes": (mini_tree.merged_by_hand, single_quotes, {}),
    "merged by us, single quotes": (mini_tree.merged_by_us, single_quotes, {}),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_tree_gives_nothing(name: str) -> None:
    make, change, options = GOOD[name]
    files = make()
    if change is not None:
        change(files)
    report = check_tree(memory(files), **options)
    assert report.findings == ()
    assert report.ok and report.checks > 15 and not report.skipped


@pytest.mark.parametrize("name", BROKEN_OURS)
def test_a_broken_tree_gives_exactly_its_finding(name: str) -> None:
    expected, edit = BROKEN_OURS[name]
    files = mini_tree.merged_by_us_from_pr()
    edit(files)
    if name == "a pool method outside its class":
        append(POOL, "\n\ndef get_key_scales_zeros(self, layer_id):\n    return layer_id\n")(files)
    report = check_tree(memory(files), source_kind="pr", escha=True)
    assert [f.code for f in report.findings] == [expected]
    found = report.findings[0]
    assert found.severity is Severity.ERROR and not report.ok
    assert found.path in files or expected == "file-missing"
    assert found.message and found.expected and found.found and found.hint


@pytest.mark.parametrize("name", BROKEN_BY_HAND)
def test_a_hand_merge_is_told_by_name_what_it_lacks(name: str) -> None:
    expected, word, edit = BROKEN_BY_HAND[name]
    files = mini_tree.merged_by_hand()
    edit(files)
    report = check_tree(memory(files))
    assert [f.code for f in report.findings] == [expected]
    assert word in f"{report.findings[0].message} {report.findings[0].expected}"


def test_a_cell_size_without_scales_is_a_warning() -> None:
    files = mini_tree.merged_by_hand()
    edit = Edit(
        MIXIN,
        "        scale_bytes = 8 * self.groups\n        return num_layers * self.heads * (self.head_dim // 2 + 2 * scale_bytes)",
        "        return num_layers * self.heads * (self.head_dim // 2)",
    )
    edit(files)
    report = check_tree(memory(files))
    assert [(f.code, f.severity) for f in report.findings] == [("cell-size-without-scales", Severity.WARNING)]
    assert report.ok


@pytest.mark.parametrize(("later", "expected"), [("", ["pool-arguments"]), ("        pool_cls = Other\n", [])])
def test_a_pool_class_is_followed_through_local_names(later: str, expected: list[str]) -> None:
    files = mini_tree.merged_by_us()
    files[MIXIN] = files[MIXIN].replace(
        "            self.token_to_kv_pool = MHATokenToKVPool(self.size, self.kv_cache_dtype, **self._int2_pool_kwargs())\n",
        "            pass\n        plain = MHATokenToKVPool\n        pool_cls = plain if self.fast else Other\n"
        f"{later}        self.other_pool = pool_cls(self.size, self.kv_cache_dtype)\n\n\nclass Other:\n    pass\n",
    )
    assert codes(files) == expected


def test_a_stock_tree_is_said_to_be_not_merged() -> None:
    files = {path: "x = 1\n" for path in mini_tree.merged_by_us()}
    assert codes(files) == ["not-merged"]
    assert codes({}) == ["not-merged"]


def test_words_in_comments_and_strings_do_not_count() -> None:
    stock = {path: "'''" + text.replace("'''", "") + "'''\n" for path, text in mini_tree.merged_by_hand().items()}
    assert codes(stock) == ["not-merged"]


def test_half_a_merge_lists_every_missing_symbol() -> None:
    files = mini_tree.merged_by_us()
    files[ENVIRON] = "class EnvStr:\n    pass\n\n\nclass Envs:\n    OTHER = EnvStr()\n\n\nenvs = Envs()\n"
    report = check_tree(memory(files))
    named = {f.message.split()[0] for f in report.findings}
    assert {"SGLANG_OSCAR_K_ROTATION_PATH", "SGLANG_LLOYD_MAX"} <= named
    assert {f.code for f in report.findings} == {"symbol-missing"}


def test_internal_helpers_are_asked_for_only_where_they_are_due() -> None:
    files = mini_tree.merged_by_us()
    assert codes(files) == []
    assert set(codes(files, source_kind="pr")) == {"symbol-missing"}
    without_package = {path: text for path, text in files.items() if "oscar_int2/" not in path}
    assert set(codes(without_package)) == {"symbol-missing"}


def test_a_sibling_that_is_never_constructed_is_a_warning() -> None:
    files = mini_tree.merged_by_us()
    base = memory(files)
    files[POOL] += "\n\nclass RadixCache:\n    def evict(self):\n        return 1\n"
    patched = dict(files)
    patched[POOL] = patched[POOL].replace("return 1\n", "return 2\n")
    report = check_tree(memory(patched), base=memory(files), changed=[POOL])
    assert [(f.code, f.severity) for f in report.findings] == [("sibling-never-constructed", Severity.WARNING)]
    assert "RadixCache" in report.findings[0].message and "never constructed" in report.findings[0].message
    assert check_tree(memory(files), base=base).findings == ()


def test_what_the_base_already_has_does_not_count() -> None:
    files = mini_tree.merged_by_us()
    faults = (
        "\n\ndef twice():\n    return 1\n\n\ndef twice():\n    return gone\n"
        "\n\ndef late():\n    from sglang.srt.nowhere import x\n\n    return x, twice(1)\n"
    )
    files[KV_QUANT] += faults
    assert sorted(codes(files)) == ["call-signature", "duplicate-definition", "undefined-name", "unresolved-import"]
    assert codes(files, base=memory(files)) == []
    worse = dict(files)
    worse[KV_QUANT] += "\n\ndef more():\n    return gone\n"
    assert codes(worse, base=memory(files)) == ["undefined-name"]


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    @property\n    def x(self):\n        return 1\n\n    @x.setter\n    def x(self, value):\n        pass\n",
        "from typing import overload\n\n\n@overload\ndef f(a: int) -> int: ...\n@overload\ndef f(a: str) -> str: ...\ndef f(a):\n    return a\n",
        "import sys\n\nif sys.platform == 'x':\n    def f():\n        return 1\nelse:\n    def f():\n        return 2\n",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from sglang.nowhere import T\n\n\ndef f(a: 'T'):\n    return a\n",
        "try:\n    from sglang.nowhere import f\nexcept ImportError:\n    def f():\n        return 1\n",
        "from functools import singledispatch\n\n\n@singledispatch\ndef f(a):\n    return a\n\n\n@f.register(int)\ndef _(a):\n    return a\n\n\n@f.register(str)\ndef _(a):\n    return a\n",
        "def outer(f, *args, **kwargs):\n    return f(*args, **kwargs)\n",
        "from sglang.srt.environ import envs as e\n\n\ndef f():\n    return e\n",
    ],
    ids=["property", "overload", "conditional", "type checking", "fallback", "singledispatch", "stars", "alias"],
)  # fmt: skip
def test_ordinary_python_is_left_alone(text: str) -> None:
    files = mini_tree.merged_by_us()
    files[KV_QUANT] += "\n\n" + text
    assert codes(files) == []


def test_imports_are_followed_through_packages_stars_and_conditions() -> None:
    files = mini_tree.merged_by_us()
    files["sglang/a/__init__.py"] = "from .inner import *\nfrom sglang.a import deep\n"
    files["sglang/a/inner.py"] = "if True:\n    def found():\n        return 1\n"
    files["sglang/a/deep.py"] = "def __getattr__(name):\n    return name\n"
    files["sglang/namespace/leaf.py"] = "x = 1\n"
    files[KV_QUANT] += (
        "\n\ndef f():\n    from sglang.a import deep, found\n    from sglang.a.deep import anything\n"
        "    from sglang.namespace import leaf\n    import sglang.namespace.leaf\n    return deep, found, anything, leaf\n"
    )
    assert codes(files) == []
    files["sglang/a/inner.py"] = "found_not = 1\n"
    assert codes(files) == ["unresolved-import"]


@pytest.mark.parametrize(
    "text",
    [
        "METHODS = {}\nMETHODS['escha'] = 1\n",
        "register_quantization('eschamoe')\n",
        "M = dict()\nM.update({'escha': 1})\n",
    ],
)
def test_escha_may_be_registered_in_other_ways(text: str) -> None:
    files = mini_tree.merged_by_us()
    files["sglang/srt/layers/quantization/__init__.py"] = text
    assert codes(files, escha=True) == []


def test_calls_are_followed_through_star_imports_and_base_classes() -> None:
    files = mini_tree.merged_by_us()
    files["sglang/srt/mem_cache/more.py"] = "from sglang.srt.mem_cache.kv_quant_kernels import *\n"
    files[BACKEND] += (
        "\n\nfrom sglang.srt.mem_cache.memory_pool import MHATokenToKVPool\n"
        "from sglang.srt.mem_cache.more import _get_num_scale_groups\n\n\n"
        "class SmallInt2Pool(MHATokenToKVPool):\n    pass\n\n\n"
        "def int2():\n    return SmallInt2Pool(1), _get_num_scale_groups()\n"
    )
    found = check_tree(memory(files)).findings
    assert [f.code for f in found] == ["call-signature", "call-signature"]
    assert "missing dtype" in found[0].message and "missing scales_zeros" in found[1].message


def test_choices_may_stand_in_a_constant() -> None:
    files = mini_tree.merged_by_us()
    files[SERVER_ARGS] = files[SERVER_ARGS].replace(
        'choices=["auto", "bf16", "fp4_e2m1", "int2"]', "choices=KV_CHOICES"
    )
    files[SERVER_ARGS] += '\n\nKV_CHOICES = ["auto"] + ["int2"]\n'
    assert codes(files) == []


def test_a_plan_in_memory_and_a_tree_on_disk_give_the_same(tmp_path) -> None:
    files = mini_tree.merged_by_us()
    del files[KV_QUANT]
    for path, text in files.items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    on_disk = check_tree(DiskTree(tmp_path))
    assert on_disk == check_tree(memory(files))
    assert {f.code for f in on_disk.findings} == {"file-missing", "unresolved-import"}
    added = Layered(MemoryTree({KV_QUANT: mini_tree.KV_QUANT.encode()}), DiskTree(tmp_path))
    assert check_tree(added).findings == ()


def test_a_tree_that_cannot_be_listed_skips_the_search_for_constructions() -> None:
    class Unlisted:
        def __init__(self, inner: MemoryTree) -> None:
            self.read, self.exists = inner.read, inner.exists

    report = check_tree(Unlisted(memory(mini_tree.merged_by_us())))
    assert report.findings == () and report.skipped == ("constructed",)


def test_every_static_code_has_a_broken_tree() -> None:
    covered = {code for code, _ in BROKEN_OURS.values()} | {code for code, _, _ in BROKEN_BY_HAND.values()}
    elsewhere = {"not-merged", "cell-size-without-scales", "sibling-never-constructed", "no-base"}
    assert {name for name, code in CODES.items() if code.level is Level.STATIC} == covered | elsewhere


def test_symbol_states_name_every_symbol_with_its_state() -> None:
    states = symbol_states(memory(mini_tree.merged_by_us_from_pr()))
    assert all(state.present for state in states) and len(states) > 40
