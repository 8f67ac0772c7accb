"""Signals wait while files change, and stop everything else at once.

Within a change they are noted, and the work asks for them between two steps; outside they raise KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from escha_oscar.errors import HungUpError, StoppedError, TerminatedError

_ERRORS: dict[int, type[StoppedError]] = {
    signal.SIGINT: StoppedError,
    signal.SIGTERM: TerminatedError,
    signal.SIGHUP: HungUpError,
}


class Deferred:
    """Remembers the first signal; ``check`` raises it as an error."""

    def __init__(self) -> None:
        self._caught: int | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal (the handler)."""
        self._caught = self._caught or number

    def check(self) -> None:
        """Raise StoppedError, TerminatedError or HungUpError where a signal came."""
        if self._caught is not None:
            raise _ERRORS[self._caught](f"stopped by {signal.Signals(self._caught).name}; the tree was put back")


class Immediate:
    """A handler that raises KeyboardInterrupt at the first signal; ``error`` says afterwards how the tree stands."""

    def __init__(self) -> None:
        self._caught: int | None = None
        self.changed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Stop (the handler); a second signal does not disturb the clean-up of the first."""
        if self._caught is None:
            self._caught = number
            raise KeyboardInterrupt

    def error(self) -> StoppedError:
        """Return the error to report; ``changed`` tells that a change had ended before, done or undone."""
        number = self._caught or signal.SIGINT
        name = signal.Signals(number).name
        if self.changed:
            message = f"stopped by {name} after the change had ended: the tree is whole"
            return _ERRORS[number](message, hint="escha-oscar status")
        return _ERRORS[number](f"stopped by {name}; no installed file was changed", hint="run the same command again")


@contextlib.contextmanager
def immediate() -> Iterator[Immediate]:
    """Let SIGINT, SIGTERM and SIGHUP stop what is outside of changes."""
    handler = Immediate()
    with _handled(handler):
        yield handler


@contextlib.contextmanager
def deferred() -> Iterator[Deferred]:
    """Hold back SIGINT, SIGTERM and SIGHUP for the length of one change."""
    caught = Deferred()
    with _handled(caught.note) as before:
        try:
            yield caught
        finally:
            for handler in before:
                if isinstance(handler, Immediate):
                    handler.changed = True


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[list[object]]:
    """Handle the signals in the main thread, one that was ignored left so; yield the handlers that were there."""
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    before = {number: signal.getsignal(number) for number in _ERRORS}
    held = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    for number in held:
        signal.signal(number, handler)
    try:
        yield [*held.values()]
    finally:
        for number, old in held.items():
            signal.signal(number, old)
