"""A progress sink: library code reports steps, the command line decides how they look."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the steps of long work; ``total`` is None where the length is unknown."""

    def step(self, text: str) -> None:
        """Begin a named step."""

    def advance(self, done: int, total: int | None = None) -> None:
        """Report how much of the current step is done."""


class NoProgress:
    """The default sink: says nothing."""

    def step(self, text: str) -> None:
        """Ignore the step."""

    def advance(self, done: int, total: int | None = None) -> None:
        """Ignore the advance."""
