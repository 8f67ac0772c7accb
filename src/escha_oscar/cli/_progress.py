"""Progress on stderr: a live line on a terminal, a few plain lines in a pipe or a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from escha_oscar.cli._render import console, printable
from escha_oscar.progress import NoProgress, Progress

if TYPE_CHECKING:
    import rich.progress

_LONG_S = 5.0


@contextlib.contextmanager
def progress_sink(*, quiet: bool = False) -> Iterator[Progress]:
    """Yield a sink for the length of one piece of work; ``quiet`` (as with --json) yields one that says nothing."""
    if quiet:
        yield NoProgress()
    elif not sys.stderr.isatty():
        plain = PlainProgress()
        yield plain
        plain.end()
    else:
        from rich.progress import Progress as Bars
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description} {task.fields[count]}"))
        with Bars(*columns, console=console(stderr=True), transient=True) as bars:
            yield RichProgress(bars)


class PlainProgress:
    """One line when a step begins, and one when it ends after a while."""

    def __init__(self) -> None:
        self._began: float | None = None

    def step(self, text: str) -> None:
        """Begin a named step."""
        self.end()
        self._began = time.monotonic()
        self._line(text)

    def advance(self, done: int, total: int | None = None) -> None:
        """Ignore the advance: a log wants no counters."""

    def end(self) -> None:
        """End the last step."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        if seconds >= _LONG_S:
            self._line(f"  took {seconds:.0f} s")
        self._began = None

    def _line(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more: no reason to undo the work
            sys.stderr.write(printable(text) + "\n")
            sys.stderr.flush()


class RichProgress:
    """A live line for the current step."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        self._task: rich.progress.TaskID | None = None

    def step(self, text: str) -> None:
        """Begin a named step; the line of the last one goes away."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(printable(text), total=None, count="")

    def advance(self, done: int, total: int | None = None) -> None:
        """Show the count."""
        if self._task is not None:
            self._bars.update(self._task, count=f"{done}/{total}" if total else f"{done:,}")
