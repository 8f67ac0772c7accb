"""``escha-oscar revert`` and ``escha-oscar recover``: put every original back; resolve an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from escha_oscar.cli._environment import environment, environment_options
from escha_oscar.cli._progress import progress_sink
from escha_oscar.cli._render import Output, json_option
from escha_oscar.cli._table import line
from escha_oscar.installed import recovery as recovering
from escha_oscar.installed import revert as reverting
from escha_oscar.installed.revert import Outcome, RevertSummary
from escha_oscar.target.record import is_record

if TYPE_CHECKING:
    from rich.console import Console

_RESTART = "restart servers that run from this environment: a running process keeps the modules it has loaded"


@click.command()
@environment_options
@click.option("--force", is_flag=True, help="Put files back that were edited since; a copy of each is kept.")
@json_option
def revert(site_packages: Path | None, python: Path | None, force: bool, as_json: bool) -> int:
    """Put every original byte, mode and link back; offline, and again is fine."""
    root = environment(site_packages, python, for_writing=True)
    with progress_sink(quiet=as_json) as progress:
        done = reverting.revert(root, force=force, progress=progress)
    data: dict[str, Any] = {"site_packages": str(root), **_record(done)}
    return Output("revert", as_json).emit(data, lambda console: _print(console, root, done))


@click.command()
@environment_options
@click.option("--force", is_flag=True, help="Put files back that were edited since; a copy of each is kept.")
@json_option
def recover(site_packages: Path | None, python: Path | None, force: bool, as_json: bool) -> int:
    """Undo a run that was cut off, or finish its clean-up; afterwards the tree is all old or all new."""
    root = environment(site_packages, python, for_writing=True)
    with progress_sink(quiet=as_json) as progress:
        done = recovering.recover(root, force=force, progress=progress)
    data: dict[str, Any] = {"site_packages": str(root), "recovered": _recovery(done)}
    return Output("recover", as_json).emit(data, lambda console: _print_recovery(console, root, done))


def _record(done: RevertSummary) -> dict[str, Any]:
    return {
        "outcome": done.outcome.value,
        "restored": list(done.restored),
        "removed": list(done.removed),
        "saved": list(done.saved),
        "left": list(done.left),
        "recovered": _recovery(done.recovered),
    }


def _recovery(done: recovering.Recovery | None) -> dict[str, Any] | None:
    if done is None:
        return None
    return {"operation": done.operation, "outcome": done.outcome, "left": list(done.left), "saved": list(done.saved)}


def _print(console: Console, root: Path, done: RevertSummary) -> None:
    if done.recovered is not None:
        _print_recovery(console, root, done.recovered)
    if done.outcome is Outcome.NOTHING:
        line(console, f"nothing to do: {root} holds no integration")
        return
    if done.outcome is Outcome.REINSTALLED:
        line(console, "the wheel was installed anew since: its files were left alone, what this tool added was removed")
    restored = [path for path in done.restored if not is_record(path)]
    line(console, f"put back {len(restored)} files, removed {len(done.removed)}")
    for path in done.saved:
        line(console, f"edited copy kept: {root / path}")
    line(console, _RESTART)


def _print_recovery(console: Console, root: Path, done: recovering.Recovery | None) -> None:
    if done is None:
        line(console, "nothing to do: no run was interrupted")
        return
    line(console, f"an interrupted {done.operation} was {done.outcome}")
    for path in done.left:
        line(console, f"left as found, changed by another program: {path}")
    for path in done.saved:
        line(console, f"edited copy kept: {root / path}")
