"""Progress on stderr: a live bar on a terminal, a few plain lines in a pipe or a log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from escha_oscar.cli._render import console, printable
from escha_oscar.progress import NoProgress, Progress

if TYPE_CHECKING:
    import rich.progress


@contextlib.contextmanager
def progress_sink(*, quiet: bool = False) -> Iterator[Progress]:
    """Yield a sink for the length of one piece of work; ``quiet`` (as with --json) yields one that says nothing."""
    if quiet:
        yield NoProgress()
    elif not sys.stderr.isatty():
        yield PlainProgress()
    else:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bars(*columns, console=console(stderr=True), transient=True) as bars:
            yield RichProgress(bars)


class PlainProgress:
    """One line per step, then one per tenth of it."""

    def __init__(self) -> None:
        self._tenths = 0

    def step(self, text: str) -> None:
        """Begin a named step."""
        self._tenths = 0
        self._line(text)

    def advance(self, done: int, total: int | None = None) -> None:
        """Print when another tenth is done."""
        if total and done * 10 // total > self._tenths:
            self._tenths = done * 10 // total
            self._line(f"  {done}/{total}")

    def _line(self, text: str) -> None:
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()


class RichProgress:
    """A live bar for the current step."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        self._task: rich.progress.TaskID | None = None

    def step(self, text: str) -> None:
        """Begin a named step; the bar of the last one goes away."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(printable(text), total=None)

    def advance(self, done: int, total: int | None = None) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total)
