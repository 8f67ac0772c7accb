"""``escha-oscar verify``: is the merge complete, consistent, right, and in effect; the exit code is the verdict."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from escha_oscar.cli._environment import environment, environment_options
from escha_oscar.cli._hints import next_command
from escha_oscar.cli._render import Output, json_option
from escha_oscar.cli._table import line, table
from escha_oscar.disk.fsops import Root
from escha_oscar.errors import ExitCode, TargetError, UnreadableError, UsageError
from escha_oscar.installed.recovery import require_settled
from escha_oscar.model import Finding, Severity
from escha_oscar.serving.model_config import read_model_config
from escha_oscar.target.owner import find_owner
from escha_oscar.target.search import inherited_path, search_path
from escha_oscar.verify.codes import Level
from escha_oscar.verify.log_lines import MAX_LINE
from escha_oscar.verify.run import LevelResult, Request, run, verdict
from escha_oscar.verify.sizes import Expectation
from escha_oscar.verify.subprocesses import Interpreter, python_of

if TYPE_CHECKING:
    from rich.console import Console

_WORDS = {
    ExitCode.OK: "verified",
    ExitCode.PROBLEMS: "problems",
    ExitCode.CANNOT_TELL: "cannot tell",
}
_LOG_HINT = "name a file with --log FILE, or read a pipe: journalctl -u SERVICE | escha-oscar verify --log -"
_SLOW = {Level.IMPORTS: "importing the merged modules", Level.NUMERICS: "running the kernels against torch"}


@click.command()
@environment_options
@click.option(
    "--level", "levels", multiple=True, type=click.Choice([level.value for level in Level]),
    help="Run this level; repeatable. Default: files, static, imports (with a python), log and live where given.",
)  # fmt: skip
@click.option("--only", multiple=True, metavar="CODE", help="Report these codes alone; repeatable.")
@click.option("--skip", multiple=True, metavar="CODE", help="Leave these codes out; repeatable.")
@click.option("--log", metavar="FILE|-", help="A start-up log to judge.")
@click.option("--url", help="A running server, as http://127.0.0.1:30000.")
@click.option("--config", type=click.Path(path_type=Path), help="The model's config.json.")
@click.option("--tp", type=click.IntRange(1, 1024), help="Tensor-parallel size.")
@click.option("--group-size", type=click.IntRange(1, 8192), help="Elements of one scale group.")
@click.option("--configured", is_flag=True, help="Unset rotation variables are an error, not a warning.")
@json_option
def verify(site_packages: Path | None, python: Path | None, as_json: bool, **options: Any) -> int:
    """Check a merged tree, a start-up log or a running server.

    Exits 0 when nothing is wrong, 1 with problems, 8 where it cannot be told.
    """
    out = Output("verify", as_json)
    request = _request(site_packages, python, options)
    announce = sys.stderr.isatty() and not as_json
    results = run(request, lambda level: out.say(f"{_SLOW[level]} ...") if announce and level in _SLOW else None)
    code = verdict(results)
    data = _record(request, results, code)
    return out.emit(data, lambda console: _print(console, request, results, code), code)


def _request(site_packages: Path | None, python: Path | None, options: dict[str, Any]) -> Request:
    chosen = tuple(Level(level) for level in options["levels"])
    tree_wanted = _wants_tree(chosen, options, named=site_packages is not None or python is not None)
    root = environment(site_packages, python, for_writing=False) if tree_wanted else None
    if root is not None:
        with contextlib.suppress(UnreadableError):  # a finding of its own
            require_settled(Root(root))  # a mix of old and new says nothing about either
    interpreter = _interpreter(root, site_packages, python)
    config = options["config"]
    return Request(
        levels=chosen or _default_levels(options, root, interpreter),
        site_packages=root,
        search_path=_search_path(root, site_packages, python),
        interpreter=interpreter,
        escha=root is not None and _is_escha(root),
        expected=Expectation(read_model_config(config) if config else None, options["tp"], options["group_size"]),
        configured=options["configured"],
        log=_log_lines(options["log"]) if options["log"] else _no_log(chosen),
        url=options["url"],
        only=frozenset(options["only"]),
        skip=frozenset(options["skip"]),
    )


def _wants_tree(chosen: tuple[Level, ...], options: dict[str, Any], *, named: bool) -> bool:
    """Return whether a tree is to be verified: a log or a server alone needs none."""
    if chosen:
        return any(level not in (Level.LOG, Level.LIVE) for level in chosen)
    return named or not (options["log"] or options["url"])


def _default_levels(options: dict[str, Any], root: Path | None, interpreter: Interpreter | None) -> tuple[Level, ...]:
    levels = [Level.FILES, Level.STATIC] if root is not None else []
    if root is not None and interpreter is not None:
        levels.append(Level.IMPORTS)
    if options["log"]:
        levels.append(Level.LOG)
    if options["url"]:
        levels.append(Level.LIVE)
    return tuple(levels)


def _interpreter(root: Path | None, site_packages: Path | None, python: Path | None) -> Interpreter | None:
    if root is None:
        return None
    if python is not None:
        return Interpreter(_absolute(python), root.absolute() if site_packages is not None else None)
    if site_packages is None:
        return Interpreter(Path(sys.executable))
    found = python_of(root.resolve())
    return Interpreter(found) if found is not None else None


def _absolute(python: Path) -> Path:
    """Return an interpreter by its full path, links kept: probes run in a folder of their own."""
    found = shutil.which(python)
    return Path(found or python).absolute()


def _search_path(root: Path | None, site_packages: Path | None, python: Path | None) -> tuple[Path, ...]:
    if root is None:
        return ()
    if site_packages is not None:
        return (*inherited_path(), root)
    return search_path(python or Path(sys.executable), trusted_only=False)


def _is_escha(root: Path) -> bool:
    try:
        return find_owner(root).name == "escha"
    except TargetError:
        return any(root.glob("escha-*.dist-info"))


def _no_log(chosen: tuple[Level, ...]) -> tuple[str, ...]:
    if Level.LOG in chosen:
        raise UsageError("level log needs a log", hint=_LOG_HINT)
    return ()


def _log_lines(name: str) -> Iterator[str]:
    """Yield the lines of a log, each at most MAX_LINE long, so that no file can fill the memory."""
    try:
        with click.open_file(name, "rb") as stream:
            while chunk := stream.readline(MAX_LINE):
                yield chunk.decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"cannot read the log: {error.strerror}", path=name, hint=_LOG_HINT) from error


def _record(request: Request, results: tuple[LevelResult, ...], code: ExitCode) -> dict[str, Any]:
    return {
        "verdict": _WORDS[code].replace(" ", "-"),
        "site_packages": str(request.site_packages) if request.site_packages else None,
        "levels": [
            {
                "level": result.level.value,
                "ran": not result.spared,
                "reason": result.spared or None,
                "checks": result.report.checks,
                "skipped": list(result.report.skipped),
                "seconds": round(result.seconds, 3),
            }
            for result in results
        ],
        "findings": [
            {
                "level": result.level.value,
                **asdict(finding),
                "severity": finding.severity.value,
                "hint": next_command(finding.hint),
            }
            for result in results
            for finding in result.report.findings
        ],
    }


def _print(console: Console, request: Request, results: tuple[LevelResult, ...], code: ExitCode) -> None:
    if request.site_packages is not None:
        line(console, str(request.site_packages))
    for result in results:
        for finding in result.report.findings:
            _print_finding(console, finding)
    rows = [_row(result) for result in results]
    table(console, "Verification", ("level", "checks", "errors", "warnings", "seconds", "note"), rows)
    line(console, f"verdict: {_WORDS[code]} (exit {int(code)})")


def _print_finding(console: Console, finding: Finding) -> None:
    place = finding.path or ""
    if finding.line is not None:
        place = f"{place}:{finding.line}" if place else f"line {finding.line}"
    line(console, f"{finding.severity.value}[{finding.code}] {place + ': ' if place else ''}{finding.message}")
    details = (("expected", finding.expected), ("found", finding.found), ("next", next_command(finding.hint)))
    for label, text in details:
        if text and (finding.severity is not Severity.INFO or label == "found"):
            line(console, f"  {label}: {text}")


def _row(result: LevelResult) -> tuple[str, ...]:
    counts = [sum(f.severity is severity for f in result.report.findings) for severity in Severity]
    note = f"not run: {result.spared}" if result.spared else ", ".join(f"skipped {n}" for n in result.report.skipped)
    checks = str(result.report.checks) if not result.spared else "0"
    return result.level.value, checks, str(counts[0]), str(counts[1]), f"{result.seconds:.1f}", note
