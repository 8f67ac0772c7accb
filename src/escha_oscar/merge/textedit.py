"""Editing source text at the places that ``ast`` reports, so that everything else keeps its bytes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Splice:
    """Replace the text from ``start`` to ``end`` (line from 1, column in UTF-8 bytes, as ``ast`` counts)."""

    start: tuple[int, int]
    end: tuple[int, int]
    new: str


def over(node: ast.expr | ast.stmt, new: str) -> Splice:
    """Return the splice that replaces a node."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return Splice((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), new)


def after(node: ast.stmt, new: str) -> Splice:
    """Return the splice that adds lines after a statement, indented as it is."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    place = (node.end_lineno, node.end_col_offset)
    indent = " " * node.col_offset
    return Splice(place, place, "".join(f"\n{indent}{line}" for line in new.splitlines()))


def before(node: ast.stmt, new: str) -> Splice:
    """Return the splice that adds lines before a statement, indented as it is."""
    place = (node.lineno, node.col_offset)
    indent = " " * node.col_offset
    return Splice(place, place, "".join(f"{line}\n{indent}" for line in new.splitlines()))


def splice(text: str, splices: Iterable[Splice]) -> str:
    """Return ``text`` with non-overlapping splices applied, last place first."""
    data = text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for item in sorted(splices, key=lambda s: s.start, reverse=True):
        low, high = (starts[line - 1] + column for line, column in (item.start, item.end))
        data = data[:low] + item.new.encode() + data[high:]
    return data.decode()
