"""``escha-oscar fetch``: bring the pull request's files into the source cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from escha_oscar.cli._options import SourceOptions, open_pull_request, pr_options
from escha_oscar.cli._progress import progress_sink
from escha_oscar.cli._render import Output, json_option, printable

if TYPE_CHECKING:
    from rich.console import Console

    from escha_oscar.source.pull_request import PullRequest


@click.command()
@pr_options
@json_option
def fetch(source: SourceOptions, as_json: bool) -> int:
    """Fill the source cache, so that integrate works offline.

    Exactly the pinned commit is fetched, without its history, and only the files of the mapping where the server can
    leave out the rest. Every object's id is recomputed. A second run finds the cache whole and fetches nothing.
    """
    with progress_sink(quiet=as_json) as progress:
        pull = open_pull_request(source, progress)
    return Output("fetch", as_json).emit(_record(pull), lambda console: _show(console, pull))


def _record(pull: PullRequest) -> dict[str, Any]:
    from escha_oscar.source.fetch import size_of

    return {
        "location": str(pull.location),
        "repository": pull.id.repository,
        "commit": pull.id.commit,
        "prefix": pull.prefix,
        "fetched": pull.fetched,
        "filtered": pull.filtered,
        "cache_bytes": size_of(pull.location),
        "files": [asdict(blob) for blob in pull.blobs],
    }


def _show(console: Console, pull: PullRequest) -> None:
    record = _record(pull)
    for name in ("location", "repository", "commit", "prefix"):
        console.print(f"{name:<12}{printable(record[name])}", soft_wrap=True)
    held = "the mapped files only" if pull.filtered else "every file (the server does not filter)"
    console.print(f"{'holds':<12}{held}, {record['cache_bytes']:,} bytes on disk")
    console.print(f"{'state':<12}{'fetched now' if pull.fetched else 'was there already, verified'}")
    for blob in pull.blobs:
        console.print(f"{blob.size:>10,}  {blob.id[:12]}  {printable(blob.path)}", soft_wrap=True)
