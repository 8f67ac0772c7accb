"""Options that several commands share: where symbols are taken from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from escha_oscar.cli._hints import typed_options
from escha_oscar.errors import UsageError
from escha_oscar.mapping import PIN

if TYPE_CHECKING:
    from escha_oscar.progress import Progress
    from escha_oscar.source import Source
    from escha_oscar.source.pull_request import PullRequest

Command = Callable[..., Any]


@dataclass(frozen=True)
class SourceOptions:
    """The source that a command line names; ``kind`` is ``pr`` or ``bundled``."""

    pr_repo: str
    pr_commit: str
    pr_prefix: str
    kind: str = "pr"
    offline: bool = False


_PR_ONLY = ("--pr-repo", "--pr-commit", "--pr-prefix", "--strict")
_PR = (
    click.option("--pr-repo", default=PIN.repository, metavar="URL|PATH", help="Another repository, clone or bundle."),
    click.option("--pr-commit", default=PIN.commit, metavar="SHA", help="Another commit, 40 hex digits."),
    click.option(
        "--pr-prefix", default=PIN.prefix, metavar="DIR", show_default=True, help="Folder that holds sglang/."
    ),
)
_SOURCE = (
    click.option(
        "--source", "kind", type=click.Choice(["pr", "bundled"]), default="pr", show_default=True,
        help="Take symbols from the pull request, or from the implementation shipped with this tool.",
    ),
    click.option("--offline", is_flag=True, help="Use the source cache only; never the network."),
)  # fmt: skip


def pr_options(command: Command) -> Command:
    """Add ``--pr-repo``, ``--pr-commit`` and ``--pr-prefix``; the command gets one ``source: SourceOptions``."""
    return _collected(command, _PR, ("pr_repo", "pr_commit", "pr_prefix"))


def source_options(command: Command) -> Command:
    """Add ``pr_options`` and ``--source``, ``--offline``; the command gets one ``source: SourceOptions``."""
    return _collected(command, (*_SOURCE, *_PR), ("kind", "offline", "pr_repo", "pr_commit", "pr_prefix"))


def open_source(options: SourceOptions, progress: Progress | None = None) -> Source:
    """Open what the options name; raises UsageError or SourceError (exit 5) where it cannot be had."""
    from escha_oscar.source.bundled import Bundled

    return Bundled.open() if options.kind == "bundled" else open_pull_request(options, progress)


def open_pull_request(options: SourceOptions, progress: Progress | None = None) -> PullRequest:
    """Open the pull request from the user's cache, fetching it there first where it must be."""
    from escha_oscar.source.cache import default_cache_dir
    from escha_oscar.source.pull_request import PullRequest

    return PullRequest.open(
        default_cache_dir(), repository=options.pr_repo, commit=options.pr_commit, prefix=options.pr_prefix,
        offline=options.offline, progress=progress,
    )  # fmt: skip


def _refuse_idle(source: SourceOptions) -> None:
    """Refuse options that only a pull request heeds, where the source is another."""
    typed = typed_options(click.get_current_context())
    idle = next((option for option in _PR_ONLY if option in typed), None)
    if source.kind == "bundled" and idle is not None:
        raise UsageError(
            f"{idle} has no effect with --source bundled: it is about the pull request",
            hint="leave one of the two out",
        )


def _collected(command: Command, options: Sequence[Callable[[Command], Command]], names: Sequence[str]) -> Command:
    @functools.wraps(command)
    def gathered(**kwargs: Any) -> Any:
        source = SourceOptions(**{name: kwargs.pop(name) for name in names})
        _refuse_idle(source)
        return command(source=source, **kwargs)

    decorated: Command = gathered
    for option in reversed(options):
        decorated = option(decorated)
    return decorated
