from __future__ import annotations

import io

import pytest
from rich.console import Console

from escha_oscar.cli._table import line, table


def printed(*, terminal: bool, prefix: str = "") -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=60, no_color=True, markup=False, emoji=False)
    table(console, "Title", ("name", "size"), (("a[b]", "5"), ("x\x1b", "12.5")), prefix=prefix)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_gets_aligned_plain_text() -> None:
    assert printed(terminal=False) == "Title\n  name   size\n  a[b]      5\n  x\\x1b  12.5\n"
    assert printed(terminal=False, prefix="# ").splitlines()[1] == "#   name   size"


def test_a_terminal_gets_a_rich_table() -> None:
    text = printed(terminal=True, prefix="# ")
    assert "─" in text
    assert "#" not in text
    assert "a[b]" in text


@pytest.mark.parametrize(("rows", "body"), [((), ""), ((("1", ""),), "  1\n")])
def test_empty_tables_and_cells_are_fine(rows: tuple[tuple[str, ...], ...], body: str) -> None:
    console = Console(file=io.StringIO(), width=60)
    table(console, "T", ("a", "b"), rows)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "T\n  a  b\n" + body


def test_lines_are_never_wrapped() -> None:
    console = Console(file=io.StringIO(), width=20)
    line(console, "word " * 30)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("\n") == 1
