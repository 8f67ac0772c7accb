"""Tables: rich on a terminal, aligned plain text in a pipe; and lines that are never wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from escha_oscar.cli._render import printable

if TYPE_CHECKING:
    from rich.console import Console


def line(console: Console, text: str) -> None:
    """Print one line whole, whatever the width, so that a pipe can grep it."""
    console.print(printable(text), soft_wrap=True)


def table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, prefix: str = ""
) -> None:
    """Print a table; columns of numbers are right-aligned, ``prefix`` begins each line in a pipe (a shell comment)."""
    cells = [[printable(cell) for cell in row] for row in rows]
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(columns))]
    if console.is_terminal:
        _rich(console, title, columns, cells, right)
        return
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    line(console, prefix + title)
    for row in (list(columns), *cells):
        padded = (text.rjust(w) if r else text.ljust(w) for text, w, r in zip(row, widths, right, strict=True))
        line(console, (prefix + "  " + "  ".join(padded)).rstrip())


def _rich(
    console: Console, title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> None:
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name, is_right in zip(columns, right, strict=True):
        grid.add_column(name, justify="right" if is_right else "left", overflow="fold")
    for row in cells:
        grid.add_row(*row)
    console.print(grid)


def _is_number(text: str) -> bool:
    return not text or text.replace(".", "", 1).isdigit()
