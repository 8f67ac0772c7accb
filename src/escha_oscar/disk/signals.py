"""Signals wait while files change: they are noted, and the work asks for them between two steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
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


@contextlib.contextmanager
def deferred() -> Iterator[Deferred]:
    """Hold back SIGINT, SIGTERM and SIGHUP in the main thread; a signal that was ignored stays ignored."""
    caught = Deferred()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.getsignal(number) for number in _ERRORS}
    held = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in held:
        signal.signal(number, caught.note)
    try:
        yield caught
    finally:
        for number in held:
            signal.signal(number, before[number])
