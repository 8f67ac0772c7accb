"""Next commands that can be pasted: a hint completed with what the user typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

import click
from click.core import ParameterSource

from escha_oscar.errors import EschaOscarError, ExitCode

#: What says which tree and which source; a next command without it would work on something else.
CARRIED = (
    "--site-packages", "--python", "--allow-upstream", "--source", "--offline", "--pr-repo", "--pr-commit",
    "--pr-prefix", "--kernels", "--overlay", "--dry-run",
)  # fmt: skip
_FOR_THE_PULL_REQUEST = {"--offline", "--pr-repo", "--pr-commit", "--pr-prefix"}
_PLACEHOLDERS = {"DIR", "EXE", "FILE", "N", "SIZE", "URL", "config.json"}
_COMMAND = re.compile(r"\bescha-oscar ([a-z]+)")
_WORD = re.compile(r"""\s+((?:'[^']*'|"[^"]*"|[^\s'"])+)""")
#: What docs/exit-codes.md says to do, for errors that know nothing better.
_BY_CODE = {
    ExitCode.TARGET: "escha-oscar status",
    ExitCode.ANCHOR: "escha-oscar status (was the file edited? if not, report this with --json)",
    ExitCode.SOURCE: "escha-oscar integrate --source bundled",
    ExitCode.ROLLED_BACK: "mend the cause, then run the same command again",
    ExitCode.RECOVERY_NEEDED: "escha-oscar recover",
    ExitCode.INTERRUPTED: "run the same command again",
    ExitCode.TERMINATED: "run the same command again",
    ExitCode.HUNG_UP: "run the same command again",
}

#: Option -> the value that was typed, None for a flag.
Typed = Mapping[str, str | None]
#: The options of a command, and whether each takes a value; None for no command.
Known = Callable[[str], Mapping[str, bool] | None]


def completed(hint: str, typed: Typed, known: Known) -> str:
    """Return ``hint`` with every ``escha-oscar COMMAND`` in it given the typed options that the command knows.

    Options that the hint names itself stay as they are, but placeholders (``DIR``, ``N``) get the typed value.
    """
    parts, end = [], 0
    for match in _COMMAND.finditer(hint):
        options = known(match[1])
        if options is not None:
            parts += [hint[end : match.end()]]
            words, end = _words(hint, match.end(), options)
            parts += [f" {word}" for word in _filled(words, typed, options)]
    folder = typed.get("--site-packages")
    whole = "".join([*parts, hint[end:]])
    return whole.replace("<site-packages>", shlex.quote(folder)) if folder else whole


def _words(hint: str, start: int, options: Mapping[str, bool]) -> tuple[list[str], int]:
    """Return the options and values that follow a command, and where the prose after them begins."""
    words: list[str] = []
    while match := _WORD.match(hint, start):
        word = match[1].rstrip(",;")
        is_value = bool(words) and options.get(words[-1], False)
        if not is_value and word not in options and word not in _PLACEHOLDERS:
            break
        words.append(word)
        start = match.start(1) + len(word)
        if word != match[1]:
            break
    return words, start


def _filled(words: Sequence[str], typed: Typed, options: Mapping[str, bool]) -> list[str]:
    filled = [
        shlex.quote(typed.get(option) or word) if word.strip("<>") in _PLACEHOLDERS and typed.get(option) else word
        for option, word in zip(["", *words], words, strict=False)
    ]
    carried = [option for option in CARRIED if option in typed and option in options and option not in words]
    source = filled[words.index("--source") + 1] if "--source" in words else typed.get("--source")
    for option in carried:
        value = typed[option]
        if source != "bundled" or option not in _FOR_THE_PULL_REQUEST:
            filled += [option] if value is None else [option, shlex.quote(value)]
    return filled


def next_command(hint: str | None, context: click.Context | None = None) -> str | None:
    """Return ``hint`` completed from the command line that is running, or that ``context`` stands for."""
    context = context or click.get_current_context(silent=True)
    if hint is None or context is None:
        return hint
    return completed(hint, typed_options(context), lambda name: _options_of(context, name))


def next_step(error: EschaOscarError, context: click.Context | None) -> str | None:
    """Return the completed hint of an error, or that of its exit code where it has none."""
    hint = error.hint or _BY_CODE.get(error.exit_code)
    if hint is not None:
        return next_command(hint, context)
    return f"escha-oscar {context.info_name} --help" if context is not None else "escha-oscar --help"


def typed_options(context: click.Context) -> dict[str, str | None]:
    """Return the options that were typed, with their values."""
    return {
        parameter.opts[0]: None if parameter.is_flag else str(context.params[parameter.name])
        for parameter in context.command.params
        if isinstance(parameter, click.Option)
        and parameter.name in context.params
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }


def context_of(app: click.Group, args: Sequence[str]) -> click.Context | None:
    """Return the context of a command line that has failed, parsed again as far as it goes."""
    name = next((word for word in args if not word.startswith("-")), None)
    root = click.Context(app, resilient_parsing=True)
    command = app.get_command(root, name) if name is not None else None
    if name is None or command is None:
        return None
    rest = list(args[list(args).index(name) + 1 :])
    return command.make_context(name, rest, parent=root, resilient_parsing=True)


def _options_of(context: click.Context, name: str) -> dict[str, bool] | None:
    group = context.find_root().command
    command = group.get_command(context, name) if isinstance(group, click.Group) else None
    if command is None:
        return None
    options = (parameter for parameter in command.params if isinstance(parameter, click.Option))
    return {name: not option.is_flag for option in options for name in option.opts}
