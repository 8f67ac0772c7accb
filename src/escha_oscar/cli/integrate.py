"""``escha-oscar integrate``: plan, verify, write; or only show what would be written."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from escha_oscar.cli._environment import environment_options
from escha_oscar.cli._hints import next_command
from escha_oscar.cli._options import SourceOptions, open_source, source_options
from escha_oscar.cli._progress import progress_sink
from escha_oscar.cli._render import Output, json_option, printable
from escha_oscar.cli._table import line, table
from escha_oscar.errors import ExitCode
from escha_oscar.mapping.wheels import KERNELS_DIR

if TYPE_CHECKING:
    from rich.console import Console

    from escha_oscar.integrate import Outcome
    from escha_oscar.merge.files import Sources
    from escha_oscar.model import Finding, Plan, PlannedFile
    from escha_oscar.progress import Progress


@click.command()
@environment_options
@click.option("--allow-upstream", is_flag=True, help="Integrate into a stock sglang too.")
@click.option(
    "--kernels",
    type=click.Choice(["native", "pr"]),
    default="native",
    show_default=True,
    help="Ours, or the source's (bundled: adapters of ours); SGLANG_OSCAR_KERNELS overrides it at run time.",
)
@click.option("--strict", is_flag=True, help="Fail where a symbol cannot come from the pull request.")
@click.option(
    "--force",
    is_flag=True,
    help="Merge into files edited since the wheel was installed; replace an edited overlay.",
)
@click.option("--dry-run", is_flag=True, help="Do everything but write; same exit code.")
@click.option("--diff", "show_diff", is_flag=True, help="Print unified diffs on stdout.")
@click.option(
    "--overlay", type=click.Path(path_type=Path), metavar="DIR", help="Write a full shadow tree there instead."
)
@source_options
@json_option
def integrate(
    source: SourceOptions,
    site_packages: Path | None,
    python: Path | None,
    allow_upstream: bool,
    kernels: str,
    strict: bool,
    force: bool,
    dry_run: bool,
    show_diff: bool,
    overlay: Path | None,
    as_json: bool,
) -> int:
    """Merge OSCAR INT2 KV into an installed runtime: all of it, verified, or nothing.

    The target is --site-packages DIR, the environment of --python EXE, or this interpreter's own.
    """
    from escha_oscar.installed.overlay import require_place
    from escha_oscar.installed.recovery import recover
    from escha_oscar.integrate import carry_out, prepare
    from escha_oscar.merge.plan import Options
    from escha_oscar.target.locate import locate

    target = locate(site_packages=site_packages, python=python, allow_upstream=allow_upstream)
    if overlay is not None:
        require_place(overlay.absolute(), target.site_packages, force=force)  # before the minutes of a first fetch
    with progress_sink(quiet=as_json) as progress:
        if not dry_run and overlay is None:
            recover(target.site_packages, progress=progress)  # an interrupted run first: plan from whole files
        outcome = prepare(target, open_sources(source, progress), Options(kernels, strict), progress, force=force)
        if not dry_run:
            outcome = carry_out(outcome, progress, overlay, force=force)
    code = ExitCode.OK if outcome.report.ok else ExitCode.PROBLEMS

    def text(console: Console) -> None:
        if show_diff:
            print_diff(console, outcome.plan)
        else:
            print_outcome(console, outcome, dry_run=dry_run)

    out = Output("integrate", as_json)
    done = out.emit(outcome_record(outcome, dry_run=dry_run, diff=show_diff), text, code)
    if show_diff and not as_json:
        out.say(_verdict(outcome, dry_run))  # stdout is the diff alone
    return done


def open_sources(options: SourceOptions, progress: Progress) -> Sources:
    """Open the source that the options name, beside the bundled tree that stands in for what it lacks."""
    from escha_oscar.merge.files import Sources
    from escha_oscar.source.bundled import Bundled

    bundled = Bundled.open()
    return Sources(None if options.kind == "bundled" else open_source(options, progress), bundled)


def outcome_record(outcome: Outcome, *, dry_run: bool, diff: bool = False) -> dict[str, Any]:
    """Return an outcome as the JSON object of this command."""
    from escha_oscar.merge.diff import line_counts, unified

    plan = outcome.plan
    files = [
        {"path": f.path, "change": f.change.value, "sha256": f.after_sha256, "lines": line_counts(f)}
        for f in plan.files
    ]
    return {
        "dry_run": dry_run,
        "written": outcome.applied is not None and not outcome.applied.already,
        "already_integrated": outcome.applied is not None and outcome.applied.already,
        "overlay": str(outcome.overlay.absolute()) if outcome.overlay else None,
        "target": {**vars(plan.target)},
        "source": vars(plan.source),
        "kernels": plan.kernels,
        "files": files,
        "symbols": [vars(use) for use in plan.symbols],
        "repairs": [vars(repair) for repair in plan.repairs],
        "verbatim": plan.verbatim,
        "warnings": plan.warnings,
        "findings": [finding_record(f) for f in outcome.report.findings],
        "shared_links": outcome.applied.shared if outcome.applied else (),
        "owner_changed": outcome.applied.owner_changed if outcome.applied else (),
        **({"diff": _as_text(unified(plan))} if diff else {}),
    }


def finding_record(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data."""
    return {**vars(finding), "severity": finding.severity.value, "hint": next_command(finding.hint)}


def print_diff(console: Console, plan: Plan) -> None:
    """Print the plan's unified diffs: unwrapped and coloured on a terminal, else byte for byte."""
    from escha_oscar.merge.diff import unified

    diff = unified(plan)
    if console.is_terminal:
        from rich.text import Text

        text = printable(_as_text(diff))
        lines = (Text(line, style=_diff_style(line), end="") for line in text.splitlines(keepends=True))
        console.print(Text().join(lines), soft_wrap=True, end="")
    else:
        click.echo(diff, nl=False)


def _as_text(diff: bytes) -> str:
    return diff.decode("utf-8", errors="backslashreplace")


def _diff_style(text: str) -> str:
    """Return the style of one line of a diff: the terminal's own colours, which fit its background."""
    if text.startswith(("diff ", "--- ", "+++ ")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], "")


def print_outcome(console: Console, outcome: Outcome, *, dry_run: bool) -> None:
    """Print target, source, files, where symbols came from, repairs, findings, and what to do next."""
    plan = outcome.plan
    line(console, f"target  {plan.target.distribution} {plan.target.version} in {plan.target.site_packages}")
    for warning in plan.warnings:
        line(console, f"warning {warning}")
    if outcome.applied is not None and outcome.applied.already:
        line(console, _verdict(outcome, dry_run))
        return
    line(console, f"source  {plan.source.description}")
    _print_files(console, plan)
    _print_symbols(console, plan)
    if plan.repairs:
        table(console, "repairs", ("name", "file", "what"), [(r.name, _short(r.path), r.detail) for r in plan.repairs])
    for finding in outcome.report.findings:
        line(console, f"{finding.severity.value} {finding.code}: {finding.path}:{finding.line}: {finding.message}")
    line(console, _verdict(outcome, dry_run))
    if outcome.overlay is not None:
        line(console, f"export PYTHONPATH={shlex.quote(str(outcome.overlay.absolute()))}")
    elif outcome.applied is not None and not outcome.applied.already:
        for path in outcome.applied.owner_changed:
            line(console, f"belonged to another user and is yours now: {path}")
        line(console, "next: restart the server; rotation files: escha-oscar rotations --config config.json")


def _print_files(console: Console, plan: Plan) -> None:
    from escha_oscar.merge.diff import line_counts

    placed = [f for f in plan.files if f.path.startswith(f"{KERNELS_DIR}/")]
    rows = [_file_row(f, line_counts(f)) for f in plan.files if f not in placed]
    if placed:
        lines = sum(line_counts(f)[0] for f in placed)
        rows.append(("place", f"{KERNELS_DIR}/ ({len(placed)} files)", str(lines), "0"))
    table(console, "files", ("change", "path", "+", "-"), rows)


def _file_row(file: PlannedFile, counts: tuple[int, int]) -> tuple[str, str, str, str]:
    return (file.change.value, file.path, str(counts[0]), str(counts[1]))


def _print_symbols(console: Console, plan: Plan) -> None:
    origin = {"pr": "from the pull request", "bundled": "from the bundled tree", "glue": "written as glue"}
    counts = Counter(use.taken_from for use in plan.symbols)
    line(console, "symbols  " + ", ".join(f"{counts[key]} {text}" for key, text in origin.items() if counts[key]))
    for use in plan.symbols:
        if use.why:
            line(console, f"  {use.symbol}: {use.taken_from}, because {use.why}")
    for path in plan.verbatim:
        line(console, f"  byte-identical to the source: {path}")


def _verdict(outcome: Outcome, dry_run: bool) -> str:
    if not outcome.report.ok:
        return "verification found problems; nothing was written"
    count = len(outcome.plan.files)
    if outcome.applied is not None:
        return "already integrated, nothing to do" if outcome.applied.already else f"integrated: {count} files written"
    if outcome.overlay is not None:
        return f"overlay written to {outcome.overlay}"
    return f"dry run: {count} files would be written, verification passed" if dry_run else "nothing to do"


def _short(path: str) -> str:
    return path.removeprefix("sglang/srt/").removeprefix("sglang/")
