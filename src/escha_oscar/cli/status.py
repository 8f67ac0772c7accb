"""``escha-oscar status``: what is installed, read from disk, nothing written."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from escha_oscar.cli._environment import environment, environment_options
from escha_oscar.cli._hints import next_command
from escha_oscar.cli._render import Output, json_option
from escha_oscar.cli._table import line
from escha_oscar.errors import ExitCode, TargetError
from escha_oscar.installed.status import Condition, Status, read_status
from escha_oscar.mapping import PIN
from escha_oscar.target.locate import locate
from escha_oscar.target.record import is_record

if TYPE_CHECKING:
    from rich.console import Console

_MEANING = {
    Condition.PRISTINE: "pristine: no integration here",
    Condition.FOREIGN: "foreign: no integration of this tool here, and not the wheel as it was installed",
    Condition.INTEGRATED: "integrated",
    Condition.MODIFIED: "modified: files differ from what the integration wrote",
    Condition.REINSTALLED: "reinstalled, not integrated: the wheel was installed anew since the integration",
    Condition.INTERRUPTED: "interrupted: a run was cut off and has to be resolved",
    Condition.RUNNING: "running: another process is changing this environment right now",
    Condition.OVERLAY: "overlay: a shadow tree, integrated",
}
_NEXT = {
    Condition.FOREIGN: "escha-oscar verify",
    Condition.MODIFIED: "escha-oscar revert --force (keeps a copy of each), then escha-oscar integrate",
    Condition.REINSTALLED: "escha-oscar integrate",
    Condition.INTERRUPTED: "escha-oscar recover",
}
_CODES = {
    Condition.FOREIGN: ExitCode.TARGET,
    Condition.MODIFIED: ExitCode.TARGET,
    Condition.INTERRUPTED: ExitCode.RECOVERY_NEEDED,
}


@click.command()
@environment_options
@json_option
def status(site_packages: Path | None, python: Path | None, as_json: bool) -> int:
    """Say what is installed: pristine, integrated, modified, foreign, interrupted, reinstalled or an overlay.

    Exits 0, with 3 where files were modified or merged by others, with 7 where an interrupted run has to be resolved.
    """
    found = _with_wheel(read_status(environment(site_packages, python, for_writing=False)))
    code = _CODES.get(found.condition, ExitCode.OK)
    if found.condition is Condition.OVERLAY and found.deviating:
        code = ExitCode.TARGET
    return Output("status", as_json).emit(_record(found), lambda console: _print(console, found), code)


def _with_wheel(found: Status) -> Status:
    """Return ``found`` with the wheel's name and version where no integration has recorded them."""
    if found.distribution is not None:
        return found
    try:
        target = locate(site_packages=found.site_packages, python=None, allow_upstream=True, for_writing=False)
    except TargetError:
        return found
    return dataclasses.replace(found, distribution=target.distribution, version=target.version)


def _record(found: Status) -> dict[str, Any]:
    source = found.source
    return {
        "condition": found.condition.value,
        "site_packages": str(found.site_packages),
        "source": {"kind": source.kind, "commit": source.commit, "repository": source.repository} if source else None,
        "kernels": found.kernels,
        "tool_version": found.tool_version,
        "distribution": found.distribution,
        "version": found.version,
        "files": {file.path: file.condition.value for file in found.files},
        "detail": found.detail,
        "hint": _next(found),
    }


def _print(console: Console, found: Status) -> None:
    line(console, f"{found.site_packages}")
    line(console, _MEANING[found.condition] + (f" ({found.detail})" if found.detail else ""))
    if found.source is not None:
        count = sum(not is_record(file.path) for file in found.files)
        commit = f", commit {found.source.commit}" if found.source.commit else ""
        line(console, f"  source: {found.source.description}{commit}")
        line(
            console,
            f"  kernels: {found.kernels}, written by escha-oscar {found.tool_version}, {count} files",
        )
    if found.distribution is not None:
        line(console, f"  wheel: {found.distribution} {found.version}")
    for file in found.deviating:
        line(console, f"  {file.condition.value}: {file.path}")
    hint = _next(found)
    if hint is not None:
        line(console, f"next: {hint}")


def _next(found: Status) -> str | None:
    """Return the next command; an integration is repeated with the options that it was made with."""
    hint = _NEXT.get(found.condition)
    if found.condition is Condition.OVERLAY and found.deviating:
        hint = "escha-oscar verify --level files"
    again = " ".join(["escha-oscar integrate", *_as_before(found)])
    return None if hint is None else next_command(hint.replace("escha-oscar integrate", again))


def _as_before(found: Status) -> Iterator[str]:
    source = found.source
    if found.distribution == "sglang":
        yield "--allow-upstream"
    if source is not None and source.kind == "bundled":
        yield "--source bundled"
    elif (
        source is not None and source.repository and (source.repository, source.commit) != (PIN.repository, PIN.commit)
    ):
        yield f"--pr-repo {shlex.quote(source.repository)} --pr-commit {source.commit}"
    if found.kernels == "pr":
        yield "--kernels pr"
