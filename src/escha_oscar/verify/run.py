"""Running levels in order, cheapest first, with the rules by which one level spares the dearer ones."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from escha_oscar.errors import EschaOscarError, ExitCode, UsageError
from escha_oscar.model import Finding, Report, Severity
from escha_oscar.tree import DiskTree
from escha_oscar.verify.before import recorded
from escha_oscar.verify.codes import CODES, Level, finding
from escha_oscar.verify.files import check_files_on_disk
from escha_oscar.verify.imports import check_imports_in
from escha_oscar.verify.live import check_live
from escha_oscar.verify.numerics import check_numerics, shape_of
from escha_oscar.verify.server_log import check_log
from escha_oscar.verify.sizes import Expectation
from escha_oscar.verify.static import check_tree
from escha_oscar.verify.subprocesses import Interpreter

#: Findings after which the levels that read the same tree would only repeat the matter.
_STOPS_ALL = {"not-merged-yet", "not-merged-any-more", "shadowed", "interrupted", "running", "not-merged"}
_TREE_LEVELS = (Level.FILES, Level.STATIC, Level.IMPORTS, Level.NUMERICS)
_DEAR_LEVELS = (Level.IMPORTS, Level.NUMERICS)


@dataclass(frozen=True)
class Request:
    """What to verify. ``only`` and ``skip`` are codes; ``log`` yields the lines of a log; ``escha`` names the build."""

    levels: tuple[Level, ...]
    site_packages: Path | None = None
    search_path: tuple[Path, ...] = ()
    interpreter: Interpreter | None = None
    escha: bool = False
    expected: Expectation = field(default_factory=Expectation)
    configured: bool = False
    log: Iterable[str] = ()
    url: str | None = None
    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LevelResult:
    """One level: its report, how long it took, and why it did not run (``spared``) where it did not."""

    level: Level
    report: Report
    seconds: float = 0.0
    spared: str = ""


def run(request: Request, before_each: Callable[[Level], None] = lambda _: None) -> tuple[LevelResult, ...]:
    """Run the levels of ``request``.

    Raises UsageError for a level that lacks what it needs, and for codes that do not exist.
    """
    _check_codes(request.only | request.skip)
    results: list[LevelResult] = []
    for level in sorted(request.levels, key=list(Level).index):
        reason = _spared(level, results)
        if reason:
            results.append(LevelResult(level, Report(), spared=reason))
            continue
        before_each(level)
        started = time.monotonic()
        report = _filtered(_LEVELS[level](request), request)
        results.append(LevelResult(level, report, time.monotonic() - started))
    return tuple(results)


def verdict(results: Iterable[LevelResult]) -> ExitCode:
    """Return 1 where any finding is an error, else 8 where any leaves the question open, else 0."""
    findings = [found for result in results for found in result.report.findings]
    if any(found.severity is Severity.ERROR for found in findings):
        return ExitCode.PROBLEMS
    if any(CODES[found.code].cannot_tell for found in findings):
        return ExitCode.CANNOT_TELL
    return ExitCode.OK


def _spared(level: Level, results: list[LevelResult]) -> str:
    if level not in _TREE_LEVELS:
        return ""
    for result in results:
        found = [f for f in result.report.findings if f.code in _STOPS_ALL]
        if found:
            return f"{result.level.value} found {found[0].code}"
        if level in _DEAR_LEVELS and result.level in _TREE_LEVELS and not result.report.ok:
            return f"{result.level.value} found errors"
    return ""


def _filtered(report: Report, request: Request) -> Report:
    kept = tuple(
        found
        for found in report.findings
        if found.code not in request.skip and (not request.only or found.code in request.only)
    )
    return replace(report, findings=kept)


def _check_codes(codes: frozenset[str]) -> None:
    unknown = sorted(codes - CODES.keys())
    if unknown:
        close = difflib.get_close_matches(unknown[0], CODES, 1)
        hint = f"did you mean {close[0]}?" if close else "escha-oscar verify --json (prints the code of each finding)"
        raise UsageError(f"no such code: {unknown[0]}"[:120], sought="a code of docs/verify.md", hint=hint)


def _files(request: Request) -> Report:
    return check_files_on_disk(_tree(request), request.search_path)


def _static(request: Request) -> Report:
    root = _tree(request)
    known = recorded(root)
    report = check_tree(
        DiskTree(root), source_kind=known.source_kind, changed=known.changed, base=known.base, escha=request.escha
    )
    return replace(report, findings=(*report.findings, *_unknown_base(known.problem)))


def _unknown_base(problem: EschaOscarError | None) -> Iterator[Finding]:
    if problem is not None:
        yield finding(
            "no-base",
            "the tree before the merge cannot be read, so faults that it had count too",
            path=problem.path,
            found=problem.message,
            hint=problem.hint,
        )


def _imports(request: Request) -> Report:
    return check_imports_in(
        _python(request), _tree(request), configured=request.configured, model=request.expected.model
    )


def _numerics(request: Request) -> Report:
    expected = request.expected
    shape = shape_of(expected.model, expected.tp, expected.group_size)
    own = recorded(_tree(request)).kernels != "pr"
    return check_numerics(_python(request), _tree(request), shape, own=own)


def _log(request: Request) -> Report:
    return check_log(request.log, request.expected)


def _live(request: Request) -> Report:
    if request.url is None:
        raise UsageError("level live needs a server", hint="add --url http://127.0.0.1:PORT")
    return check_live(request.url, request.expected)


def _tree(request: Request) -> Path:
    if request.site_packages is None:
        raise UsageError("no tree to verify", hint="add --site-packages DIR or --python EXE")
    return request.site_packages


def _python(request: Request) -> Interpreter:
    if request.interpreter is None:
        raise UsageError("no interpreter belongs to this folder", hint="add --python EXE")
    return request.interpreter


_LEVELS: dict[Level, Callable[[Request], Report]] = {
    Level.FILES: _files,
    Level.STATIC: _static,
    Level.IMPORTS: _imports,
    Level.NUMERICS: _numerics,
    Level.LOG: _log,
    Level.LIVE: _live,
}
