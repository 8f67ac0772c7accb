"""``escha-oscar mapping``: the file table, and the state of each row in a given environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from escha_oscar.cli._render import Output, json_option
from escha_oscar.cli._table import line, table
from escha_oscar.mapping import PIN, ROWS
from escha_oscar.mapping.table import ALSO_MERGED, ARTICLE_NOTE
from escha_oscar.model import Action, Row, Symbol
from escha_oscar.target.search import no_such_folder
from escha_oscar.tree import DiskTree, Tree, first_existing

if TYPE_CHECKING:
    from rich.console import Console

_BELOW = "sglang/"
_SYMBOL_COLUMNS = ("name", "kind", "origin")


@dataclass(frozen=True)
class RowState:
    """How a row stands in a tree: the path that is used there and one word on it."""

    path: str | None
    state: str


@click.command()
@click.option(
    "--site-packages", type=click.Path(path_type=Path), metavar="DIR", help="Show the state of each row there."
)
@json_option
def mapping(site_packages: Path | None, as_json: bool) -> int:
    """Print which files of the pull request are copied, merged or skipped, with their symbols and reasons."""
    if site_packages is not None and not site_packages.is_dir():
        raise no_such_folder(site_packages)
    none: list[RowState | None] = [None for _ in ROWS]
    states = none if site_packages is None else row_states(DiskTree(site_packages))
    return Output("mapping", as_json).emit(_record(states), lambda console: _print(console, states))


def row_states(tree: Tree) -> list[RowState | None]:
    """Return how each row of the table stands in ``tree``, in the table's order."""
    from escha_oscar.verify.static import symbol_states

    present = {(s.row, s.symbol.name) for s in symbol_states(tree) if s.present}
    return [_state_of(row, tree, {name for owner, name in present if owner is row}) for row in ROWS]


def _state_of(row: Row, tree: Tree, present: set[str]) -> RowState:
    if row.action is Action.SKIP:
        path = first_existing(tree, row.pr_paths)
        return RowState(path, "not carried over" if path is None else "left as it is")
    path = first_existing(tree, row.wheel_paths)
    if path is None:
        return RowState(None, "absent" if row.action is Action.COPY else "missing")
    wanted = {symbol.name for symbol in row.symbols if symbol.public}
    there = present & wanted
    if not there:
        return RowState(path, "as the wheel ships it")
    return RowState(path, "done" if there == wanted else f"{len(there)} of {len(wanted)} symbols")


def _record(states: list[RowState | None]) -> dict[str, Any]:
    rows = []
    for row, state in zip(ROWS, states, strict=True):
        record: dict[str, Any] = {
            "action": row.action.value,
            "pr_paths": row.pr_paths,
            "wheel_paths": row.wheel_paths,
            "reason": row.reason,
            "in_article": row.in_article,
            "symbols": [_symbol(s) for s in row.symbols],
        }
        if state is not None:
            record["target"] = {"path": state.path, "state": state.state}
        rows.append(record)
    return {"pin": vars(PIN), "note": ARTICLE_NOTE, "also_merged": ALSO_MERGED, "rows": rows}


def _symbol(symbol: Symbol) -> dict[str, Any]:
    return {"name": symbol.name, "kind": symbol.kind.value, "origin": symbol.origin.value, "public": symbol.public}


def _print(console: Console, states: list[RowState | None]) -> None:
    line(console, f"sglang PR #{PIN.pull_request} at {PIN.commit}")
    print_files(console, states)
    rows = [
        (s.name, s.kind.value, s.origin.value + ("" if s.public else ", internal")) for row in ROWS for s in row.symbols
    ]
    table(console, "symbols (internal: required only where the pull request is the source)", _SYMBOL_COLUMNS, rows)
    also = [(path.removeprefix(_BELOW), what) for path, what in ALSO_MERGED.items()]
    table(console, f"also merged, below {_BELOW}", ("wheel", "what"), also)
    line(console, ARTICLE_NOTE)


def print_files(console: Console, states: list[RowState | None]) -> None:
    """Print one line for each file, with its state in a tree or the reason of its row."""
    columns = ("action", "pull request -> wheel", "state" if states[0] else "why")
    rows = [_cells(row, state) for row, state in zip(ROWS, states, strict=True)]
    table(console, f"files below {_BELOW}", columns, rows)


def _cells(row: Row, state: RowState | None) -> tuple[str, str, str]:
    paths = dict.fromkeys(path.removeprefix(_BELOW) for path in (row.pr_paths[0], *row.wheel_paths[:1]))
    beyond = "" if row.in_article else " (beyond the article)"
    return (row.action.value, " -> ".join(paths) + beyond, state.state if state else row.reason)
