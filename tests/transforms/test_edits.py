"""The small edits that transforms are made of: what they write, where, and that they write it once."""

from __future__ import annotations

import libcst as cst
import pytest

from escha_oscar.transforms import _edits as edits
from escha_oscar.transforms._anchors import class_def, code, function_def, methods
from tests.transforms.tools import edited

NEW = ("import os", "from a.b import c")
MERGED = "import os\nfrom a.b import c\n"
FUTURE = """\
\"\"\"Doc.\"\"\"
from __future__ import annotations
from __future__ import division

import re
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("x = 1\n", MERGED + "x = 1\n", id="no import at all"),
        pytest.param('"""Doc."""\nx = 1\n', '"""Doc."""\n' + MERGED + "x = 1\n", id="after the docstring"),
        pytest.param(
            FUTURE + '\n"文"\nx = 1\n',
            FUTURE + MERGED + '\n"文"\nx = 1\n',
            id="after the future imports and before a bare string",
        ),
        pytest.param(
            "from __future__ import annotations\nx = 1\nimport re\n",
            "from __future__ import annotations\n" + MERGED + "x = 1\nimport re\n",
            id="before the first use, not after a late import",
        ),
        pytest.param("import re; import sys\nx = 1\n", "import re; import sys\n" + MERGED + "x = 1\n", id="two a line"),
        pytest.param("import os\nx = 1\n", "import os\nfrom a.b import c\nx = 1\n", id="one is there"),
        pytest.param("import os  # 環境\nx = 1\n", "import os  # 環境\nfrom a.b import c\nx = 1\n", id="commented"),
        pytest.param(
            "import os.path\nfrom a.b import (\n    c,\n    d,\n)\n",
            "import os.path\nfrom a.b import (\n    c,\n    d,\n)\n",
            id="both are there in other forms",
        ),
        pytest.param(
            "from a.b import c as d\n", "from a.b import c as d\nimport os\nfrom a.b import c\n", id="another name"
        ),
        pytest.param(
            "from a.b import *\n", "from a.b import *\nimport os\nfrom a.b import c\n", id="a star promises nothing"
        ),
        pytest.param("from .b import c\n", "from .b import c\nimport os\nfrom a.b import c\n", id="a relative one"),
    ],
)  # fmt: skip
def test_imports_land_after_the_head_and_once(before: str, after: str) -> None:
    once = edits.ensure_imports(cst.parse_module(before), NEW)
    assert once.code == after
    assert edits.ensure_imports(cst.parse_module(after), NEW).code == after
    compile(after, "m", "exec", dont_inherit=True)


def test_no_import_is_added_for_nothing() -> None:
    module = cst.parse_module("x = 1\n")
    assert edits.ensure_imports(module, ()) is module


CALL = "f(a, b=1)"


@pytest.mark.parametrize(
    ("call", "after"),
    [
        pytest.param("f()", "f(**x, y=2)", id="no arguments"),
        pytest.param("f(a, b=1)", "f(a, b=1, **x, y=2)", id="one line"),
        pytest.param("f(a, b=1,)", "f(a, b=1, **x, y=2,)", id="a trailing comma"),
        pytest.param("f(\n    a,\n    b=1,\n)", "f(\n    a,\n    b=1,\n    **x,\n    y=2,\n)", id="one a line"),
        pytest.param("f(\n    a,\n    b=1\n)", "f(\n    a,\n    b=1,\n    **x,\n    y=2\n)", id="no trailing comma"),
        pytest.param(
            "f(\n    a,  # 一\n    b=1,  # 二\n)",
            "f(\n    a,  # 一\n    b=1,  # 二\n    **x,\n    y=2,\n)",
            id="comments stay beside their arguments",
        ),
        pytest.param(
            "f(\n    a,\n    b=1  # 二\n)",
            "f(\n    a,\n    b=1,  # 二\n    **x,\n    y=2\n)",
            id="a comment after an argument without a comma",
        ),
        pytest.param(
            "f(\n    # 前\n    a,\n    # 中\n    b=1,\n    # 後\n)",
            "f(\n    # 前\n    a,\n    # 中\n    b=1,\n    **x,\n    y=2,\n    # 後\n)",
            id="comments on lines of their own",
        ),
        pytest.param("f(\n    a,\n)", "f(\n    a, **x, y=2,\n)", id="one argument says nothing about lines"),
    ],
)
def test_arguments_take_the_layout_of_their_list(call: str, after: str) -> None:
    node = cst.parse_expression(call)
    assert isinstance(node, cst.Call)
    assert code(edits.add_arguments(node, ["**x", "y=2"])) == after


@pytest.mark.parametrize(
    ("array", "after"),
    [
        pytest.param('["a", "b"]', '["a", "b", "int2"]', id="one line"),
        pytest.param('["a"]', '["a", "int2"]', id="one element"),
        pytest.param('[\n    "a",\n    "b",\n]', '[\n    "a",\n    "b",\n    "int2",\n]', id="one a line"),
        pytest.param(
            '[\n    "a",\n    "b"  # 末\n]', '[\n    "a",\n    "b",\n    "int2"  # 末\n]', id="no trailing comma"
        ),
        pytest.param("[]", '["int2"]', id="empty"),
        pytest.param('["a", "int2"]', '["a", "int2"]', id="there already"),
        pytest.param("['a', 'int2']", "['a', 'int2']", id="there in other quotes"),
    ],
)
def test_an_element_takes_the_layout_of_its_list(array: str, after: str) -> None:
    node = cst.parse_expression(array)
    assert isinstance(node, cst.List)
    assert code(edits.add_element(node, '"int2"')) == after


@pytest.mark.parametrize(
    ("head", "after"),
    [
        pytest.param("def f(a, b=1):", "def f(a, b=1, c: int = 2, d=None):", id="one line"),
        pytest.param("def f(\n    a,\n    b=1,\n):", "def f(\n    a,\n    b=1,\n    c: int = 2,\n    d=None,\n):",
            id="one a line",
        ),
        pytest.param("def f(a, d=0):", "def f(a, d=0, c: int = 2):", id="one is there"),
        pytest.param("def f(a, *, d=0):", "def f(a, c: int = 2, *, d=0):", id="one is there by keyword"),
        pytest.param("def f(a, **kwargs):", "def f(a, c: int = 2, d=None, **kwargs):", id="before keyword collectors"),
        pytest.param("def f(a, c=0, d=0):", "def f(a, c=0, d=0):", id="both are there"),
    ],
)  # fmt: skip
def test_parameters_take_the_layout_of_their_list(head: str, after: str) -> None:
    module = cst.parse_module(f"{head}\n    pass\n")
    changed = edits.add_parameters(function_def(module, "f", "m"), ["c: int = 2", "d=None"])
    assert cst.Module([changed]).code == f"{after}\n    pass\n"


CLASS = '''\
# 頭
@register  # 装飾
class Pool(Base):
    """Doc."""

    # 前
    @property
    @cached
    def size(self):
        # 中
        return 1

    def other(self): return 2
'''


def test_replacing_a_decorated_method_keeps_decorators_comments_and_neighbours() -> None:
    module = cst.parse_module(CLASS)
    (new,) = edits.parse_body("return 3", module)

    def edit(owner: cst.ClassDef) -> cst.ClassDef:
        return edits.edit_method(owner, "size", "m", lambda f: edits.prepend(f, [new]))

    after = edits.edit_class(module, "Pool", "m", edit).code
    assert after == edited(CLASS, ("        # 中\n", "        return 3\n        # 中\n"))


def test_a_method_in_one_line_is_found_by_name_only() -> None:
    owner = class_def(cst.parse_module(CLASS), "Pool", "m")
    assert [m.name.value for name in ("size", "other", "none") for m in methods(owner, name)] == ["size", "other"]


def test_statements_go_before_and_after_an_anchor_and_keep_its_comments() -> None:
    module = cst.parse_module("def f():\n    a()\n\n    # 注\n    b()\n    c()\n")
    function = function_def(module, "f", "m")
    anchor = edits.body_of(function)[1]
    new = edits.parse_body("x()\ny()", module)
    assert cst.Module([edits.insert_before(function, anchor, new)]).code == (
        "def f():\n    a()\n\n    # 注\n    x()\n    y()\n    b()\n    c()\n"
    )
    assert cst.Module([edits.insert_after(function, anchor, new)]).code == (
        "def f():\n    a()\n\n    # 注\n    b()\n    x()\n    y()\n    c()\n"
    )


def test_new_statements_take_the_modules_indentation_and_line_ends() -> None:
    module = cst.parse_module("if a:\r\n  b()\r\n")
    body = edits.parse_body("# 注\nif c:\n    d()\n", module)
    assert module.with_changes(body=[*module.body, *body]).code == "if a:\r\n  b()\r\n# 注\r\nif c:\r\n  d()\r\n"


def test_a_function_is_edited_among_others() -> None:
    module = cst.parse_module("def f():\n    a()\n\n\ndef g():\n    b()\n")
    after = edits.edit_function(
        module, function_def(module, "g", "m"), lambda f: edits.with_body(f, edits.body_of(f) * 2)
    )
    assert after.code == "def f():\n    a()\n\n\ndef g():\n    b()\n    b()\n"


def test_a_method_is_added_after_the_last_one() -> None:
    module = cst.parse_module("class A:\n    def f(self):\n        pass\n\n\nx = 1\n")
    new = edits.parse_body("def g(self):\n    pass\n", module)
    after = edits.edit_class(module, "A", "m", lambda owner: edits.add_methods(owner, new)).code
    assert after == "class A:\n    def f(self):\n        pass\n\n    def g(self):\n        pass\n\n\nx = 1\n"


def test_blank_lines_inside_strings_keep_their_spaces() -> None:
    module = cst.parse_module("x = 1\n")
    text = 'def f():\n    return """a\n    \nb"""\n'
    assert module.with_changes(body=edits.parse_body(text, module)).code == text
