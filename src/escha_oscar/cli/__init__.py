"""The command line: a lazy click group and the one boundary where errors become messages and exit codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from escha_oscar import __version__
from escha_oscar.cli._hints import context_of, next_step
from escha_oscar.cli._render import Output, open_streams, set_color
from escha_oscar.disk.signals import immediate
from escha_oscar.errors import EschaOscarError, ExitCode, TargetError

#: name -> (module, attribute, one line of help); modules load only when their command runs.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "integrate": ("escha_oscar.cli.integrate", "integrate", "Merge OSCAR INT2 KV into an installed runtime."),
    "revert": ("escha_oscar.cli.revert", "revert", "Put every original byte back."),
    "recover": ("escha_oscar.cli.revert", "recover", "Finish or undo an interrupted run."),
    "status": ("escha_oscar.cli.status", "status", "Say what is installed."),
    "verify": ("escha_oscar.cli.verify", "verify", "Check a merged tree; the exit code is the verdict."),
    "mapping": ("escha_oscar.cli.mapping", "mapping", "Print the file table: copy, merge, skip."),
    "fetch": ("escha_oscar.cli.fetch", "fetch", "Fill the source cache."),
    "rotations": ("escha_oscar.cli.rotations", "rotations", "Write or inspect K/V rotation files."),
    "budget": ("escha_oscar.cli.budget", "budget", "KV bytes, tokens and sessions that fit."),
    "recipe": ("escha_oscar.cli.recipe", "recipe", "Environment and launch command, with reasons."),
    "demo": (
        "escha_oscar.cli.demo",
        "demo",
        "Run the whole pipeline on a stock wheel in a temporary folder.",
    ),
}


class LazyGroup(click.Group):
    """A click group that imports a command's module only when that command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of ``COMMANDS``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="escha-oscar")
@click.option("--no-color", is_flag=True, help="Plain text (NO_COLOR is respected too).")
def app(no_color: bool) -> None:
    """Integrate the OSCAR INT2 KV cache into an installed Escha sglang runtime.

    Data goes to stdout, words for people to stderr, and every command takes --json.
    """
    if no_color:
        set_color(False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises for an expected failure."""
    args = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    with immediate() as stop:
        try:
            return _run(args)
        except (KeyboardInterrupt, click.Abort):
            return _report(stop.error(), args)


def _run(args: list[str]) -> int:
    try:
        result = app.main(args=args, prog_name="escha-oscar", standalone_mode=False)
    except EschaOscarError as error:
        return _report(error, args)
    except click.ClickException as error:
        return int(Output.for_argv(args).usage(error))
    except OSError as error:
        # What no command has explained: a file that may not be read.
        return _report(TargetError(error.strerror or str(error), path=error.filename), args)
    return int(result) if isinstance(result, int) else int(ExitCode.OK)


def _report(error: EschaOscarError, args: list[str]) -> int:
    error.hint = next_step(error, context_of(app, args))
    return int(Output.for_argv(args).error(error))
