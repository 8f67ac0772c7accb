"""Where each symbol comes from, and what comes along with it."""

from __future__ import annotations

import ast

import pytest

from escha_oscar.errors import AnchorError, SymbolError
from escha_oscar.merge.files import Base, SourceFile
from escha_oscar.merge.graft import Chooser, free_names, glue_calls
from escha_oscar.model import Action, Chosen, Origin, Row, Symbol, SymbolKind
from escha_oscar.symbols.index import Index
from escha_oscar.symbols.resolve import Resolver
from escha_oscar.tree import MemoryTree

PATH = "sglang/srt/pool.py"
F, K, M = SymbolKind.FUNCTION, SymbolKind.TRITON_KERNEL, SymbolKind.METHOD
STORE = Symbol("store", F)

DONOR = """\
import os


def store(rows, loc):
    return os.fspath(loc)
"""
BASE = """\
import torch


def stock(x):
    return x
"""
OTHER = {"sglang/srt/other.py": b"def there(): pass\n", "sglang/srt/__init__.py": b"", "sglang/__init__.py": b""}


def calls_of(text: str) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.setdefault(node.func.id, []).append(node)
    return found


def choose(
    pr: str | None,
    *symbols: Symbol,
    donor: str = DONOR,
    base: str = BASE,
    calls: str = "",
    glue: tuple[str, ...] = (),
    strict: bool = False,
    requirements: frozenset[str] = frozenset(),
) -> Chosen:
    tree = MemoryTree({**OTHER, PATH: base.encode()})
    return Chooser(
        Row(Action.MERGE, (PATH,), (PATH,), symbols or (STORE,)),
        None if pr is None else SourceFile(PATH, "pr", pr),
        SourceFile(PATH, "bundled", donor),
        Base(PATH, base, Resolver(Index(tree)), requirements),
        calls_of(calls),
        glue,
        strict,
    ).choose()


def origin(chosen: Chosen, symbol: str = "store") -> tuple[str, str]:
    (use,) = [use for use in chosen.uses if use.symbol == symbol]
    return use.taken_from, use.why


FITS = {
    "plain": "def store(rows, loc):\n    return torch.empty(rows)\n",
    "with a wider signature": "def store(rows, loc, clip=0.0, *, out=None):\n    return rows\n",
    "with collectors": "def store(*args, **kwargs):\n    return args\n",
    "with a name of the wheel": "def store(rows, loc):\n    return stock(rows)\n",
    "with a module of the wheel": "from sglang.srt.other import there\n\n\ndef store(rows, loc):\n    there()\n",
    "with an import inside": "def store(rows, loc):\n    from sglang.srt.other import there\n    there()\n",
    "with a standard module": "import math\n\n\ndef store(rows, loc):\n    return math.pi\n",
    "with a helper": "def _h():\n    return 1\n\n\ndef store(rows, loc):\n    return _h()\n",
    "behind a decorator": "from functools import wraps\n@wraps(1)\ndef store(a):\n    return a\n",
    "with itself": "def store(rows, loc):\n    return store(rows, loc)\n",
}


@pytest.mark.parametrize("pr", FITS.values(), ids=FITS)
def test_a_definition_that_fits_comes_from_the_pull_request(pr: str) -> None:
    chosen = choose(pr, calls="store(1, loc=2)")
    assert origin(chosen) == ("pr", "")
    assert chosen.text("store").rstrip() in pr


MISFITS = {
    "missing": ("def other():\n    pass\n", "not in the pull request's file"),
    "only named": ('"""store"""\nX = "def store(rows, loc)"\n', "not in the pull request's file"),
    "other keywords": ("def store(rows, slots):\n    pass\n", "a call does not fit: unknown keyword loc"),
    "one parameter more": ("def store(rows, loc, hp):\n    pass\n", "a call does not fit: missing hp"),
    "fewer parameters": ("def store(loc):\n    pass\n", "a call does not fit: loc is given twice"),
    "a module that the wheel lacks": (
        "from sglang.srt.absent import x\n\n\ndef store(rows, loc):\n    x()\n",
        "needs from sglang.srt.absent import x, which the wheel's tree lacks",
    ),
    "a name that the wheel's module lacks": (
        "from sglang.srt.other import absent\n\n\ndef store(rows, loc):\n    absent()\n",
        "needs from sglang.srt.other import absent, which the wheel's tree lacks",
    ),
    "a plain import of a module that the wheel lacks": (
        "import sglang.srt.absent as absent\n\n\ndef store(rows, loc):\n    absent.x()\n",
        "needs import sglang.srt.absent as absent, which the wheel's tree lacks",
    ),
    "a package that is not required": (
        "import sgl_kernel\n\n\ndef store(rows, loc):\n    sgl_kernel.x()\n",
        "needs import sgl_kernel, which the wheel's tree lacks",
    ),
    "an import inside that fails": (
        "def store(rows, loc):\n    from sglang.srt.absent import x\n",
        "needs sglang.srt.absent.x, which the wheel's tree lacks",
    ),
    "a plain import inside that fails": (
        "def store(rows, loc):\n    import sgl_kernel\n",
        "needs sgl_kernel, which the wheel's tree lacks",
    ),
    "a relative import inside": (
        "def store(rows, loc):\n    from .other import there\n",
        "needs other.there, which the wheel's tree lacks",
    ),
    "a name that nobody binds": ("def store(rows, loc):\n    return cdiv(rows)\n", "needs cdiv, "),
    "a helper that needs an absent module": (
        "from sglang.absent import y\n\n\ndef _h():\n    return y\n\n\ndef store(rows, loc):\n    return _h()\n",
        "needs from sglang.absent import y, ",
    ),
}


@pytest.mark.parametrize(("pr", "why"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_replaced_by_our_own_with_the_reason(pr: str, why: str) -> None:
    chosen = choose(pr, calls="store(1, loc=2)")
    taken, reason = origin(chosen)
    assert taken == "bundled"
    assert reason.startswith(why)
    assert chosen.text("store") == "def store(rows, loc):\n    return os.fspath(loc)\n"
    assert chosen.imports == ("import os",)


@pytest.mark.parametrize(("pr", "why"), MISFITS.values(), ids=MISFITS)
def test_strict_makes_the_replacement_an_error(pr: str, why: str) -> None:
    with pytest.raises(SymbolError, match="store cannot be taken") as caught:
        choose(pr, calls="store(1, loc=2)", strict=True)
    assert (caught.value.path, caught.value.sought) == (PATH, "store")
    assert str(caught.value.found).startswith(why)
    assert caught.value.hint == "escha-oscar integrate --source bundled"


def test_strict_asks_nothing_of_the_bundled_source_alone() -> None:
    assert origin(choose(None, strict=True)) == ("bundled", "")


def test_a_symbol_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(SymbolError, match="absent cannot be taken"):
        choose("x = 1\n", Symbol("absent", F))
    with pytest.raises(SymbolError, match="absent cannot be taken") as caught:
        choose(None, Symbol("absent", F))
    assert caught.value.path == PATH


def test_a_required_package_counts_as_there() -> None:
    pr = "import sgl_kernel\n\n\ndef store(rows, loc):\n    sgl_kernel.x()\n"
    chosen = choose(pr, requirements=frozenset({"sgl_kernel"}))
    assert origin(chosen) == ("pr", "")
    assert chosen.imports == ("import sgl_kernel",)


CLOSURE = """\
import math
import sglang.srt.other as other
from functools import partial as part
from sglang.srt.other import there

SCALE = 4


def _deep():
    return SCALE


def _first():
    return math.pi + _deep()


def _second():
    return _first() + _deep()


def store(rows, loc):
    return part(there, _first(), _second(), math, other.there, stock, torch.empty)


def load(rows):
    return _first()
"""


def test_helpers_and_imports_come_along_once() -> None:
    chosen = choose(CLOSURE, STORE, Symbol("load", F), donor=DONOR + "\n\ndef load(rows):\n    pass\n")
    assert [g.name for g in chosen.helpers] == ["SCALE", "_deep", "_first", "_second"]
    assert sorted(chosen.imports) == [
        "from functools import partial as part",
        "from sglang.srt.other import there",
        "import math",
        "import sglang.srt.other as other",
    ]
    assert chosen.helpers[0].text == "SCALE = 4\n"


def test_a_helper_comes_after_what_it_needs_when_the_module_loads() -> None:
    pr = """\
def store(rows, loc):
    return TABLE


TABLE = _make(_Kind)


@_mark
def _make(kind):
    return _again


def _again():
    return _make


class _Kind(_Base):
    pass


class _Base:
    pass


def _mark(f):
    return f
"""
    chosen = choose(pr)
    names: dict[str, object] = {}
    exec("".join(g.text for g in chosen.helpers) + chosen.text("store"), names)
    assert names["TABLE"] is names["_again"]


def test_a_name_that_our_own_tree_does_not_bind_is_left_to_the_verifier() -> None:
    chosen = choose(None, donor="def store(rows, loc):\n    return mystery(rows)\n")
    assert (chosen.helpers, chosen.imports) == ((), ())


def test_names_of_the_wheel_are_reused() -> None:
    base = BASE + "\n\ndef _first():\n    return 0\n\n\nSCALE = 3\n"
    chosen = choose(CLOSURE, base=base)
    assert [g.name for g in chosen.helpers] == ["_deep", "_second"]
    assert not any("torch" in line for line in chosen.imports)


def test_a_chosen_symbol_is_no_helper_of_another() -> None:
    pr = "def load(rows):\n    return store(rows, 1)\n\n\ndef store(rows, loc):\n    return rows\n"
    chosen = choose(pr, STORE, Symbol("load", F), donor=DONOR + "\n\ndef load(rows):\n    pass\n")
    assert set(chosen.grafts) == {"store", "load"}
    assert chosen.helpers == ()


def test_an_internal_symbol_is_reported_where_it_came_along_and_left_out_elsewhere() -> None:
    internal = Symbol("_kernel", K, public=False)
    pr = "def _kernel():\n    pass\n\n\ndef store(rows, loc):\n    _kernel()\n"
    assert origin(choose(pr, STORE, internal), "_kernel") == ("pr", "")
    assert [use.symbol for use in choose(None, STORE, internal).uses] == ["store"]
    assert [use.symbol for use in choose("def _kernel():\n    pass\n", STORE, internal).uses] == ["store"]


POOL_DONOR = """\
class Pool:
    def get_raw(self, layer):
        return self.buffer[layer]

    def _init_int2(self):
        self.scales = self._grouping()
        return _plain()

    def _grouping(self):
        return 1

    def stock_method(self):
        return 2

    def unused(self):
        return 3


def _plain():
    return 0


def _unused():
    return 0
"""
POOL_BASE = (
    "class Pool:\n    def __init__(self):\n        self.buffer = []\n\n    def stock_method(self):\n        pass\n"
)
GET_RAW, INIT = Symbol("Pool.get_raw", M), Symbol("Pool._init_int2", M, Origin.GLUE)


def test_glue_brings_its_own_private_methods_and_helpers_in_their_order() -> None:
    chosen = choose(None, INIT, donor=POOL_DONOR, base=POOL_BASE)
    assert list(chosen.grafts) == ["Pool._init_int2", "Pool._grouping", "_plain"]
    assert origin(chosen, "Pool._init_int2") == ("glue", "")
    assert [g.name for g in chosen.members("Pool")] == ["Pool._init_int2", "Pool._grouping"]
    assert chosen.text("Pool._grouping").startswith("def _grouping(self):")


def test_named_glue_arrives_beside_the_symbols_of_the_mapping() -> None:
    chosen = choose(None, GET_RAW, donor=POOL_DONOR, base=POOL_BASE, glue=("Pool.unused", "_plain"))
    assert list(chosen.grafts) == ["Pool.get_raw", "Pool.unused", "_plain"]
    assert {use.symbol: use.taken_from for use in chosen.uses} == {
        "Pool.get_raw": "bundled", "Pool.unused": "glue", "_plain": "glue",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "taken", "why"),
    [
        pytest.param("self.buffer[layer]", "pr", "", id="an attribute of the base"),
        pytest.param("self.scales", "pr", "", id="an attribute that our glue sets"),
        pytest.param("self.stock_method()", "pr", "", id="a method of the base"),
        pytest.param("self._grouping()", "pr", "", id="a method of ours"),
        pytest.param("self._R_k", "bundled", "reads self._R_k, which nothing sets", id="an attribute of another pool"),
    ],
)
def test_a_method_may_read_only_attributes_that_somebody_sets(body: str, taken: str, why: str) -> None:
    pr = f"class Pool:\n    def get_raw(self, layer):\n        return {body}\n"
    chosen = choose(pr, GET_RAW, INIT, donor=POOL_DONOR, base=POOL_BASE)
    assert origin(chosen, "Pool.get_raw") == (taken, why)


def test_a_bound_call_is_checked_without_self() -> None:
    pr = "class Pool:\n    def get_raw(self, layer):\n        return self.buffer\n"
    calls = calls_of("get_raw(1)")
    assert origin(choose(pr, GET_RAW, donor=POOL_DONOR, base=POOL_BASE, calls="get_raw(1)"), "Pool.get_raw")[0] == "pr"
    assert len(calls["get_raw"]) == 1
    taken, why = origin(choose(pr, GET_RAW, donor=POOL_DONOR, base=POOL_BASE, calls="get_raw(1, 2)"), "Pool.get_raw")
    assert (taken, why) == ("bundled", "a call does not fit: 2 positional arguments where 1 are taken")


def test_a_class_comes_whole_with_its_decorator() -> None:
    pr = "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Config:\n    # パス\n    path: str\n"
    chosen = choose(pr, Symbol("Config", SymbolKind.CLASS), donor="class Config:\n    pass\n")
    assert chosen.text("Config") == "@dataclass(frozen=True)\nclass Config:\n    # パス\n    path: str\n"
    assert chosen.imports == ("from dataclasses import dataclass",)


def test_fields_flags_and_choices_are_no_grafts() -> None:
    others = (Symbol("X", SymbolKind.ENV_FIELD), Symbol("int2", SymbolKind.CHOICE), Symbol("--x", SymbolKind.FLAG))
    assert choose("x = 1\n", *others).grafts == {}


REBOUND = """\
import triton
import triton.language as tl


@triton.jit
def _kernel(Q, G: tl.constexpr):
    QUARTER: tl.constexpr = G // 4
    tl.store(Q, QUARTER)
    QUARTER: tl.constexpr = G // 2
    tl.store(Q, QUARTER)


def store(rows, loc):
    _decode_softmax_reducev_fwd(rows, loc, v_scale=1.0)
    _kernel[(1,)](rows, G=4)
"""


def test_repairs_are_made_in_grafts_and_in_what_comes_along() -> None:
    base = BASE + "\n\ndef _decode_softmax_reducev_fwd(logits, lse):\n    pass\n"
    chosen = choose(REBOUND, base=base)
    assert {(r.name, r.path) for r in chosen.repairs} == {
        ("rebound-constexpr", f"{PATH}:_kernel"),
        ("softmax-keywords", f"{PATH}:store"),
    }
    assert "QUARTER_V: tl.constexpr" in chosen.helpers[0].text
    assert "v_scale" not in chosen.text("store")


def test_what_needs_no_repair_is_left_as_the_source_has_it() -> None:
    base = BASE + "\n\ndef _decode_softmax_reducev_fwd(logits, lse, v_scale):\n    pass\n"
    chosen = choose(REBOUND.replace("    QUARTER: tl.constexpr = G // 2\n", ""), base=base)
    assert chosen.repairs == ()
    assert chosen.text("store") in REBOUND


@pytest.mark.parametrize(
    ("text", "line"),
    [("def f(:\n", 1), ("x = 1\n  y = 2\n", 2), ("x = '\0'\n", None)],
    ids=["syntax", "indentation", "a NUL byte"],
)
def test_a_source_file_that_does_not_parse_is_named(text: str, line: int | None) -> None:
    with pytest.raises(AnchorError, match="a source file does not parse") as caught:
        _ = SourceFile(PATH, "pr", text).tree
    assert caught.value.path == PATH
    assert caught.value.line in (line, None)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("def f(a=DEFAULT) -> Kind:\n    return g(a)\n", ["DEFAULT", "Kind", "g"], id="a function"),
        pytest.param("@decorate(1)\ndef f():\n    global G\n    G = 1\n", ["G", "decorate"], id="globals"),
        pytest.param("class C(Base):\n    x: Kind = make()\n    def m(self): return self.y + h\n",
                     ["Base", "Kind", "h", "make"], id="a class"),
        pytest.param("def f(a):\n    b = len(a)\n    return [c for c in b if d]\n", ["d"], id="locals and builtins"),
        pytest.param("def f():\n    return lambda x: x + outer\n", ["outer"], id="a lambda"),
        pytest.param("def f():\n    return f()\n", [], id="itself"),
        pytest.param("X = 3 * Y\n", ["Y"], id="a constant"),
        pytest.param("def f(a: int, b: 'Later'):\n    pass\n", [], id="an annotation in quotes"),
    ],
)  # fmt: skip
def test_free_names(text: str, names: list[str]) -> None:
    assert free_names(text) == names


@pytest.mark.parametrize(
    ("body", "segment"),
    [
        pytest.param(
            '    """A.\n\n      b\n    """\n', '"""A.\n\n      b\n    """\n', id="a docstring keeps its lines"
        ),
        pytest.param('    x = f"""\n{a}\n  """\n', 'x = f"""\n{a}\n  """\n', id="a formatted string"),
        pytest.param(
            "    x = (\n        'a'\n        'b'\n    )\n", "x = (\n    'a'\n    'b'\n)\n", id="joined strings"
        ),
        pytest.param("    x = '\x0c'\n    \x0c\n", "x = '\x0c'\n", id="a form feed is no line end"),
        pytest.param("    if a:\n  # 注\n        b()\n", "if a:\n  # 注\n    b()\n", id="a comment further left"),
    ],
)
def test_a_segment_leaves_the_content_of_strings_alone(body: str, segment: str) -> None:
    file = SourceFile(PATH, "pr", f"class C:\n    y = 0\n{body}")
    holder = file.find("C")
    assert isinstance(holder, ast.ClassDef)
    assert file.segment(holder.body[1]) == segment


def test_calls_of_glue_are_collected_by_the_called_name() -> None:
    rows = (Row(Action.MERGE, (PATH,), (PATH,), (STORE, Symbol("Pool.get_raw", M), Symbol("glue", F, Origin.GLUE))),)
    donor = """\
def glue(pool):
    store(1, 2)
    pool.get_raw(3)
    oscar_int2.store(4)
    other(5)


def store(rows, loc):
    store(6)


class Pool:
    def more(self):
        self.inner.get_raw(7)
        (lambda: 0)()

    def get_raw(self, layer):
        self.get_raw(8)
"""
    found = glue_calls([SourceFile(PATH, "bundled", donor)], rows)
    texts = {name: [ast.unparse(call) for call in calls] for name, calls in found.items()}
    assert texts == {"store": ["store(1, 2)"], "get_raw": ["pool.get_raw(3)", "self.inner.get_raw(7)"]}


def test_a_segment_is_dedented_and_carries_its_decorators() -> None:
    text = "class C:\n    # 前\n    @a\n    @b(\n        1,\n    )\n    def m(self):\n        return '''\n  x\n'''\n"
    file = SourceFile(PATH, "pr", text)
    node = file.find("C.m")
    assert node is not None
    assert file.segment(node) == "@a\n@b(\n    1,\n)\ndef m(self):\n    return '''\n  x\n'''\n"
    assert file.find("C.none") is None and file.find("D.m") is None and file.find("none") is None
