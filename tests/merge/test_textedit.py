"""Editing text at the places that ``ast`` reports: columns are bytes, everything else keeps its bytes."""

from __future__ import annotations

import ast

import pytest

from escha_oscar.merge import textedit

TEXT = 'x = "日本"; y = f(x)\nif y:\n    z = 1  # 注\n'


def statement(text: str, index: int) -> ast.stmt:
    return ast.parse(text).body[index]


def test_a_node_after_wide_characters_is_replaced_at_its_place() -> None:
    node = statement(TEXT, 1)
    assert isinstance(node, ast.Assign)
    assert textedit.splice(TEXT, [textedit.over(node.value, "g(漢, 1)")]) == TEXT.replace("f(x)", "g(漢, 1)")


def test_lines_are_added_before_and_after_with_the_indentation_of_the_statement() -> None:
    inner = statement(TEXT, 2)
    assert isinstance(inner, ast.If)
    edits = [textedit.before(inner.body[0], "a\nb"), textedit.after(inner.body[0], "c\nd")]
    assert textedit.splice(TEXT, edits) == 'x = "日本"; y = f(x)\nif y:\n    a\n    b\n    z = 1\n    c\n    d  # 注\n'


def test_several_edits_do_not_move_each_other() -> None:
    names = [node for node in ast.walk(ast.parse("a + a + a\n")) if isinstance(node, ast.Name)]
    assert textedit.splice("a + a + a\n", [textedit.over(name, "long") for name in names]) == "long + long + long\n"


@pytest.mark.parametrize("text", ["", "a = 1", "a = 1\r\nb = 2\r\n", "s = '''\n  x\n'''\n"])
def test_no_edit_changes_nothing(text: str) -> None:
    assert textedit.splice(text, []) == text


def test_a_node_over_several_lines_goes_whole() -> None:
    text = "f(\n    1,\n    2,\n)\ng()\n"
    assert textedit.splice(text, [textedit.over(statement(text, 0), "h()")]) == "h()\ng()\n"


def test_line_ends_of_the_text_survive() -> None:
    text = "a = 1\r\nb = 2\r\n"
    assert textedit.splice(text, [textedit.over(statement(text, 1), "c = 3")]) == "a = 1\r\nc = 3\r\n"
