"""What commands print: one JSON object or rich text on stdout, words for people on stderr."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from escha_oscar.errors import EschaOscarError, ExitCode

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1
#: What newer click raises for a group without a command; its message is the whole help.
_NO_ARGUMENTS: tuple[type[click.ClickException], ...] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])
)
_COLOR: bool | None = None


def set_color(enabled: bool | None) -> None:
    """Force colour on or off for this process; None follows the terminal and NO_COLOR."""
    global _COLOR
    _COLOR = enabled


def open_streams() -> None:
    """Give closed standard streams the null device, and let no character fail to print.

    Without it a file that is opened for writing takes the number of a closed stdout, and the output goes into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False) -> Console:
    """Return a rich console for stdout or stderr; plain when piped or when NO_COLOR is set."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    piped_width = None if stream.isatty() else 100
    return Console(
        stderr=stderr,
        no_color=True if _COLOR is False else None,
        width=piped_width,
        highlight=False,
        soft_wrap=False,
        emoji=False,
        markup=False,
    )


def printable(text: str) -> str:
    """Escape control characters, so that a hostile path cannot drive the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json`` to a command (parameter ``as_json``)."""
    option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, also on failure.")
    return option(command)


@dataclass(frozen=True)
class Output:
    """Where a command's result goes: ``emit`` for data, ``say`` for people, ``error`` for failures."""

    command: str
    as_json: bool

    @classmethod
    def for_argv(cls, argv: Sequence[str]) -> Output:
        """Guess command and ``--json`` from raw arguments, for failures before click has parsed them."""
        words = [word for word in argv if not word.startswith("-")]
        return cls(words[0] if words else "", "--json" in argv)

    def emit(self, data: dict[str, Any], text: Callable[[Console], None], code: ExitCode = ExitCode.OK) -> int:
        """Print ``data`` as JSON or call ``text`` with a stdout console; return the exit code for click."""
        if self.as_json:
            whole = self._object({"ok": code == ExitCode.OK, "exit_code": int(code), **data})
        else:
            whole = self._data(lambda: text(console()))
        return int(code if whole or code else ExitCode.TARGET)

    def say(self, text: str) -> None:
        """Print one line for people on stderr."""
        _to_reader(sys.stderr, lambda: click.echo(printable(text), err=True))

    def error(self, error: EschaOscarError) -> ExitCode:
        """Print a failure and return its exit code."""
        if self.as_json:
            self._object({"ok": False, "exit_code": int(error.exit_code), "error": _error_record(error)})
        else:
            self.say("\n".join(_error_lines(error)))
        return error.exit_code

    def usage(self, error: click.ClickException) -> ExitCode:
        """Print a click usage error and return exit code 2."""
        command = getattr(getattr(error, "ctx", None), "command_path", "escha-oscar")
        if self.as_json:
            record = {"code": "usage", "message": error.format_message(), "hint": f"{command} --help"}
            self._object({"ok": False, "exit_code": int(ExitCode.USAGE), "error": record})
        elif isinstance(error, _NO_ARGUMENTS):
            self.say(error.format_message())
        else:
            self.say(f"error[usage]: {error.format_message()}\n  next: {command} --help")
        return ExitCode.USAGE

    def _object(self, data: dict[str, Any]) -> bool:
        head = {"schema_version": SCHEMA_VERSION, "command": self.command}
        record = json.dumps({**head, **data}, indent=2, ensure_ascii=True, default=str)
        return self._data(lambda: click.echo(record))

    def _data(self, write: Callable[[], None]) -> bool:
        """Write to stdout; return False, and say so, where it does not take the output (a full disk)."""
        lost = _to_reader(sys.stdout, write)
        if lost is not None:
            self.say(f"error[target]: the output could not be written: {lost.strerror}")
        return lost is None


def _to_reader(stream: TextIO, write: Callable[[], None]) -> OSError | None:
    """Write to a stream; return why it does not take the output.

    Where the reader has gone (``| head``), that is no reason: the exit code still carries the verdict.
    """
    try:
        write()
        stream.flush()
        return None
    except (BrokenPipeError, SystemExit):  # rich turns the former into the latter
        lost = None
    except OSError as error:
        lost = error
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return lost


def _error_record(error: EschaOscarError) -> dict[str, Any]:
    fields = ("message", "path", "line", "sought", "found", "hint")
    return {"code": error.code, **{name: getattr(error, name) for name in fields}}


def _error_lines(error: EschaOscarError) -> list[str]:
    lines = [f"error[{error.code}]: {error}"]
    for label, value in (("sought", error.sought), ("found", error.found), ("next", error.hint)):
        if value:
            lines.append(f"  {label}: {value}")
    return lines
