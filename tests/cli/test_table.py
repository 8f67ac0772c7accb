from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from escha_oscar.cli._table import _widths, line, table

PATH = "sglang/srt/model_executor/model_runner_kv_cache_mixin.py"
COLUMNS = ("change", "path", "why", "+")
ROWS = (("merge", PATH, "the true size of a cell", "32"), ("copy", "日本.py", "", "5"))


def console(*, terminal: bool, width: int = 60) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=width,
        no_color=True,
        markup=False,
        emoji=False,
        highlight=False,
    )


def printed(out: Console, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], prefix: str = "") -> str:
    table(out, "Title", columns, rows, prefix=prefix)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_a_pipe_gets_aligned_plain_text() -> None:
    columns, rows = ("name", "size"), (("a[b]", "5"), ("日\x1b", "12.5"))
    assert printed(console(terminal=False), columns, rows) == "Title\n  name    size\n  a[b]       5\n  日\\x1b  12.5\n"
    assert printed(console(terminal=False), columns, rows, "# ").splitlines()[1] == "#   name    size"


def test_a_wide_terminal_gets_a_table_on_one_line_a_row() -> None:
    lines = printed(console(terminal=True, width=200), COLUMNS, ROWS, prefix="# ").splitlines()
    assert [text.split()[:1] for text in lines] == [["Title"], ["change"], [lines[2].strip()], ["merge"], ["copy"]]
    assert set(lines[2].strip()) == {"─"}
    assert lines[3].index("the") == lines[1].index("why")
    assert cell_len(lines[3].rstrip()) == cell_len(lines[4].rstrip()) == cell_len(lines[2].strip())


def test_a_table_breaks_its_lines_between_words_alone() -> None:
    text = printed(console(terminal=True, width=80), COLUMNS, ROWS)
    assert PATH in text and "the true size\n" not in text
    assert all(cell_len(row.rstrip()) <= 80 for row in text.splitlines())
    assert len(text.splitlines()) > 5


@pytest.mark.parametrize(
    ("least", "natural", "room", "widths"),
    [
        ([3, 5], [10, 20], 40, [10, 20]),
        ([3, 5], [10, 20], 20, [9, 11]),
        ([3, 5, 1], [15, 7, 100], 60, [15, 7, 38]),
        ([3, 5], [3, 5], 8, [3, 5]),
        ([], [], 80, []),
    ],
)
def test_room_goes_first_to_the_columns_that_need_little(
    least: list[int], natural: list[int], room: int, widths: list[int]
) -> None:
    assert _widths(least, natural, room) == widths


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_terminal_too_narrow_for_that_gets_one_block_a_row(width: int) -> None:
    assert printed(console(terminal=True, width=width), COLUMNS, ROWS).splitlines() == [
        "Title", "  change  merge", f"  path    {PATH}", "  why     the true size of a cell", "  +       32", "",
        "  change  copy", "  path    日本.py", "  +       5", "",
    ]  # fmt: skip


@pytest.mark.parametrize(("rows", "body"), [((), ""), ((("1", ""),), "  1\n")])
@pytest.mark.parametrize("terminal", [False, True])
def test_empty_tables_and_cells_are_fine(rows: tuple[tuple[str, ...], ...], body: str, terminal: bool) -> None:
    text = printed(console(terminal=terminal), ("a", "b"), rows)
    assert text.startswith("Title\n") if terminal else text == "Title\n  a  b\n" + body


def test_lines_are_never_wrapped() -> None:
    out = console(terminal=False, width=20)
    line(out, "word " * 30)
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue().count("\n") == 1
