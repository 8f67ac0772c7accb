"""Finding a place by structure: exactly once, or an error that says what was there."""

from __future__ import annotations

import libcst as cst
import pytest

from escha_oscar.errors import AnchorError
from escha_oscar.transforms import _anchors as anchors

MODULE = cst.parse_module(
    """\
if flag:
    def hidden(): pass
elif other:
    def second(): pass
else:
    class Third: pass
try:
    a = 1
except ImportError:
    a = 2


def f(): pass


class C:
    def m(self): return g.h(1, key="v")(x)

    def m2(self): pass
"""
)


def test_one_match_is_returned() -> None:
    assert anchors.function_def(MODULE, "f", "m").name.value == "f"
    assert anchors.class_def(MODULE, "C", "m").name.value == "C"
    assert anchors.method(anchors.class_def(MODULE, "C", "m"), "m", "m").name.value == "m"
    assert anchors.has_method(MODULE, "C", "m")
    assert not anchors.has_method(MODULE, "C", "m3")
    assert not anchors.has_method(MODULE, "D", "m")


@pytest.mark.parametrize(
    ("name", "found", "line"),
    [
        pytest.param("f", "2 matches", 13, id="twice"),
        pytest.param("hidden", "nothing", 2, id="only under a condition"),
        pytest.param("g", "nothing", None, id="not at all"),
    ],
)
def test_anything_else_is_refused(name: str, found: str, line: int | None) -> None:
    module = MODULE.with_changes(body=[*MODULE.body, *[s for s in anchors.definitions(MODULE, "f") if name == "f"]])
    with pytest.raises(AnchorError) as caught:
        anchors.function_def(module, name, "some/file.py")
    error = caught.value
    assert (error.path, error.sought, error.found, error.line) == ("some/file.py", f"def {name}", found, line)
    assert error.hint is not None and error.hint.startswith("escha-oscar ")


def test_a_class_is_no_function() -> None:
    with pytest.raises(AnchorError, match="did not match exactly once"):
        anchors.function_def(MODULE, "C", "m")
    with pytest.raises(AnchorError, match="did not match exactly once"):
        anchors.class_def(MODULE, "f", "m")


def test_nodes_come_in_source_order_and_calls_by_name() -> None:
    calls = anchors.find_all(MODULE, lambda node: isinstance(node, cst.Call))
    assert [anchors.code(call) for call in calls] == ['g.h(1, key="v")(x)', 'g.h(1, key="v")']
    outer, inner = calls
    assert anchors.is_call_to(inner, "h") and anchors.is_call_to(inner, "g.h")
    assert not anchors.is_call_to(inner, "other.h") and not anchors.is_call_to(outer, "h")
    assert isinstance(inner, cst.Call)
    value = anchors.keyword(inner, "key")
    assert value is not None and anchors.string_value(value.value) == "v"
    assert anchors.keyword(inner, "none") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("'a'", "a"), ('"""a"""', "a"), ("b'a'", None), ("'a' 'b'", None), ("f'a'", None), ("a", None)],
)
def test_only_a_plain_string_has_a_value(text: str, value: str | None) -> None:
    assert anchors.string_value(cst.parse_expression(text)) == value


@pytest.mark.parametrize(("text", "name"), [("a", "a"), ("a.b.c", "a.b.c"), ("a().b", None), ("a[0]", None)])
def test_only_a_chain_of_names_is_dotted(text: str, name: str | None) -> None:
    assert anchors.dotted(cst.parse_expression(text)) == name


def test_the_text_of_a_statement_is_free_of_its_comments() -> None:
    (line,) = cst.parse_module("\n\n# 注\na = f(\n    1,  # 一\n)  # 後\n").body
    assert anchors.code(line) == "a = f(\n    1,  # 一\n)"
