"""Tables: rich on a terminal, records on a narrow one, aligned plain text in a pipe; lines that are never wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from escha_oscar.cli._render import printable

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2
Cells = Sequence[Sequence[str]]


def line(console: Console, text: str) -> None:
    """Print one line whole, whatever the width, so that a pipe can grep it."""
    console.print(printable(text), soft_wrap=True)


def table(console: Console, title: str, columns: Sequence[str], rows: Cells, *, prefix: str = "") -> None:
    """Print a table; columns of numbers are right-aligned, ``prefix`` begins each line in a pipe (a shell comment)."""
    from rich.cells import cell_len

    cells = [[printable(cell) for cell in row] for row in rows]
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(columns))]
    natural = _widest(columns, cells, lambda text: [text])
    if not console.is_terminal:
        line(console, prefix + title)
        for row in (columns, *cells):
            padded = (
                " " * (w - cell_len(text)) * r + text + " " * (w - cell_len(text)) * (not r)
                for text, w, r in zip(row, natural, right, strict=True)
            )
            line(console, (prefix + "  " + "  ".join(padded)).rstrip())
        return
    console.print(title, style="bold", soft_wrap=True)
    room, least = console.width - _GAP * (len(columns) - 1), _widest(columns, cells, str.split)
    if sum(least) <= room:
        _grid(console, columns, cells, right, _widths(least, natural, room))
    else:
        _records(console, columns, cells)


def _widest(columns: Sequence[str], cells: Cells, parts: Callable[[str], list[str]]) -> list[int]:
    """Return the width of each column's widest part: its texts, or their words."""
    from rich.cells import cell_len

    by_column = zip(columns, *cells, strict=True)
    return [max((cell_len(part) for text in column for part in parts(text)), default=0) for column in by_column]


def _widths(least: Sequence[int], natural: Sequence[int], room: int) -> list[int]:
    """Share ``room`` out among columns: never less than the longest word, and whole texts where little is missing."""
    widths, spare = list(least), room - sum(least)
    by_need = sorted(range(len(least)), key=lambda i: natural[i] - least[i])
    for left, i in zip(range(len(least), 0, -1), by_need, strict=True):
        more = min(natural[i] - least[i], spare // left)
        widths[i], spare = widths[i] + more, spare - more
    return widths


def _grid(console: Console, columns: Sequence[str], cells: Cells, right: Sequence[bool], widths: Sequence[int]) -> None:
    """Print a table that breaks its lines between words alone."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for name, is_right, width in zip(columns, right, widths, strict=True):
        grid.add_column(name, justify="right" if is_right else "left", width=width)
    for row in cells:
        grid.add_row(*row)
    console.print(grid)


def _records(console: Console, columns: Sequence[str], cells: Cells) -> None:
    """Print a block of ``name  value`` lines for each row, which the terminal may wrap."""
    width = max(len(name) for name in columns)
    for row in cells:
        for name, text in zip(columns, row, strict=True):
            if text:
                line(console, f"  {name.ljust(width)}  {text}")
        line(console, "")


def _is_number(text: str) -> bool:
    return not text or text.replace(".", "", 1).isdigit()
