"""``escha-oscar demo``: the whole pipeline on a stock wheel, in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from escha_oscar.cli._options import SourceOptions, source_options
from escha_oscar.cli._progress import progress_sink
from escha_oscar.cli._render import Output, json_option
from escha_oscar.cli._table import line, table
from escha_oscar.errors import SourceError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from escha_oscar.demo import Step
    from escha_oscar.merge.files import Sources
    from escha_oscar.progress import Progress


@click.command()
@click.option("--base", default="0.5.9", show_default=True, help="The stock sglang release to download.")
@click.option("--wheel", type=click.Path(path_type=Path), help="A wheel file instead of a download.")
@click.option("--keep", type=click.Path(path_type=Path), help="Work in this new folder and leave it there.")
@source_options
@json_option
def demo(source: SourceOptions, base: str, wheel: Path | None, keep: Path | None, as_json: bool) -> int:
    """Download a stock sglang wheel, integrate, verify, revert, and prove that every byte is back.

    Where the pull request cannot be reached, the bundled implementation serves, and that is said.
    """
    from escha_oscar.demo import Demo
    from escha_oscar.target.stock_wheel import download_stock_wheel
    from escha_oscar.target.unpack import require_wheel

    if wheel is not None and not wheel.is_file():
        raise UsageError("no such wheel file", path=str(wheel), hint=f"escha-oscar demo --base {base} (downloads one)")
    if wheel is not None:
        require_wheel(wheel)  # before anything is fetched
    out = Output("demo", as_json)
    with _folder(keep) as folder, progress_sink(quiet=as_json) as progress:
        sources, note = sources_or_bundled(source, progress)
        if wheel is None:
            progress.step(f"downloading sglang {base}")
            wheel = download_stock_wheel(base, folder)
        steps = Demo(folder, wheel, sources, progress).run()
    return out.emit(
        {"wheel": wheel.name, "note": note, "steps": [vars(s) for s in steps], "kept": str(keep) if keep else None},
        lambda console: _print(console, steps, note),
    )


def sources_or_bundled(options: SourceOptions, progress: Progress) -> tuple[Sources, str | None]:
    """Open the pull request, or the bundled tree alone with a note on why."""
    from escha_oscar.cli.integrate import open_sources
    from escha_oscar.merge.files import Sources
    from escha_oscar.source.bundled import Bundled

    try:
        return open_sources(options, progress), None
    except SourceError as error:
        return Sources(None, Bundled.open()), f"the pull request cannot be had ({error.message}): bundled source used"


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="escha-oscar-demo-") as name:
            yield Path(name)
        return
    if keep.exists():
        raise UsageError("the folder to keep must be new", path=str(keep), hint="name one that does not exist yet")
    keep.mkdir(parents=True)
    yield keep


def _print(console: Console, steps: list[Step], note: str | None) -> None:
    if note:
        line(console, f"note: {note}")
    table(console, "demo", ("step", "result", "s"), [(s.name, s.result, f"{s.seconds:.1f}") for s in steps])
    line(console, f"done in {sum(s.seconds for s in steps):.1f} s")
