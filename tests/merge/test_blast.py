"""The proof that a merge stayed inside its declared edits."""

from __future__ import annotations

import pytest

from escha_oscar.errors import AnchorError
from escha_oscar.merge.blast import check_blast_radius, units
from tests.transforms.tools import edited

BEFORE = """\
# 見出し
import os

LIMIT = 3
CHOICES = ["auto", "fp8"]
register(os)


# 前
@decorate
def f():
    return 1


class C(Base):
    size = 1

    @property
    def m(self):
        def inner():
            return 2
        return inner

    async def n(self):
        pass
"""

CHANGED = {
    "a function": ("    return 1\n", "    return 2\n", "f"),
    "a decorator": ("@decorate\n", "@decorated\n", "f"),
    "a method": ("            return 2\n", "            return 3\n", "C.m"),
    "an async method": ("        pass\n", "        ...\n", "C.n"),
    "a class header": ("class C(Base):", "class C(Other):", "C.<loose>"),
    "a class attribute": ("    size = 1\n", "    size = 2\n", "C.<loose>"),
    "a module statement": ("register(os)\n", "register(re)\n", "<loose>"),
    "a module constant": ("LIMIT = 3\n", "LIMIT = 4\n", "LIMIT"),
    "a comment": ("# 前\n", "# 後\n", "<loose>"),
    "an import": ("import os\n", "import re\n", "<loose>"),
    "a white space": ("    return 1\n", "    return 1 \n", "f"),
}


@pytest.mark.parametrize(("old", "new", "unit"), CHANGED.values(), ids=CHANGED)
def test_a_change_outside_the_declared_edits_is_refused(old: str, new: str, unit: str) -> None:
    after = edited(BEFORE, (old, new))
    with pytest.raises(AnchorError) as caught:
        check_blast_radius("sglang/x.py", BEFORE.encode(), after.encode(), ("<imports>", "<added>", "g"))
    assert caught.value.path == "sglang/x.py"
    assert unit in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "touches"),
    [
        pytest.param("    return 1\n", "    return 2\n", ("f",), id="a function"),
        pytest.param("            return 2\n", "            return 3\n", ("C.m",), id="a method"),
        pytest.param("    size = 1\n", "    size = 2\n", ("C",), id="the loose lines of a class"),
        pytest.param("    async def n", "    def k(self):\n        pass\n\n    async def n", ("C",), id="a new method"),
        pytest.param("    async def n", "    def k(self): ...\n\n    async def n", ("C.k",), id="a named method"),
        pytest.param("import os\n", "import os\nfrom a import b\n\n", ("<imports>",), id="an import"),
        pytest.param("# 見出し\n", "# 見出し\n# Changed by us\n", (), id="a comment between loose lines"),
        pytest.param("# 前\n", "def g():\n    pass\n\n\n# 前\n", ("<added>",), id="a new function"),
        pytest.param("LIMIT = 3\n", "LIMIT = 3\nMORE = 4\n", ("<added>",), id="a new constant"),
        pytest.param('"fp8"]', '"fp8", "int2"]', ("<choice>",), id="int2 among choices"),
        pytest.param('"fp8"]', '"fp8",\n    "int2",\n]', ("<choice>",), id="int2 on a line of its own"),
    ],
)  # fmt: skip
def test_a_declared_edit_passes(old: str, new: str, touches: tuple[str, ...]) -> None:
    check_blast_radius("x.py", BEFORE.encode(), edited(BEFORE, (old, new)).encode(), touches)


@pytest.mark.parametrize(
    ("old", "new", "touches", "what"),
    [
        pytest.param("# 前\n@decorate\ndef f():\n    return 1\n", "", ("<added>",), "removed f", id="a lost function"),
        pytest.param("register(os)\n", "", ("<imports>",), "changed <loose>", id="a lost statement"),
        pytest.param("# 前\n", "def g():\n    pass\n\n\n# 前\n", ("f",), "added g", id="an undeclared function"),
        pytest.param("import os\n", "import os\nimport re\n", ("f",), "changed <loose>", id="an undeclared import"),
        pytest.param("register(os)\n", "register(os)\nrun()\n", ("<imports>",), "changed <loose>", id="a new call"),
        pytest.param('["auto", "fp8"]', '["fp8", "auto", "int2"]', ("<choice>",), "CHOICES", id="another order"),
        pytest.param('["auto", "fp8"]', '["auto", "fp8", "int4"]', ("<choice>",), "CHOICES", id="another choice"),
        pytest.param('["auto", "fp8"]', "tuple()", ("<choice>",), "CHOICES", id="no list any more"),
        pytest.param("LIMIT = 3\n", "LIMIT = [int2]\n", ("<choice>",), "LIMIT", id="no list before"),
        pytest.param("LIMIT = 3\n", "", ("<choice>",), "removed LIMIT", id="a lost constant"),
        pytest.param("LIMIT = 3\n", "LIMIT = 3\nLIMIT = 4\n", ("<added>",), "added LIMIT'", id="a second value"),
        pytest.param("# 前\n", "def f():\n    pass\n\n\n# 前\n", ("<added>", "f"), "added f'", id="a second function"),
    ],
)  # fmt: skip
def test_what_was_not_declared_is_refused(old: str, new: str, touches: tuple[str, ...], what: str) -> None:
    with pytest.raises(AnchorError, match="outside its declared edits") as caught:
        check_blast_radius("x.py", BEFORE.encode(), edited(BEFORE, (old, new)).encode(), touches)
    assert what in caught.value.message
    assert caught.value.hint == "escha-oscar integrate --dry-run --diff"


def test_loose_lines_may_not_change_places() -> None:
    before = b"a()\nb()\n"
    with pytest.raises(AnchorError):
        check_blast_radius("x.py", before, b"b()\na()\n", ("<imports>",))


def test_units_hold_every_line_and_number_repeated_names() -> None:
    text = "if x:\n    pass\n\n\ndef f():\n    pass\n\n\ndef f():\n    return 1\n\n\nX = 1\nX = 2\n"
    found = units(text.encode())
    assert found["f"] == [b"def f():\n", b"    pass\n"]
    assert found["f'"] == [b"def f():\n", b"    return 1\n"]
    assert found["X"] == [b"X = 1\n"] and found["X'"] == [b"X = 2\n"]
    assert sum(map(len, found.values())) == text.count("\n")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_newline_that_the_file_lacked_is_no_change(end: str) -> None:
    before = end.join(["def f():", "    return 1"]).encode()
    after = before + end.join(["", "def g():", "    pass", ""]).encode()
    check_blast_radius("x.py", before, after, ("<added>",))


def test_an_empty_file_has_no_units() -> None:
    assert units(b"") == {}
