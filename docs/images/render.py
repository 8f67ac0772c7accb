"""Draw the pictures of this folder from a merged tree: ``python docs/images/render.py .../site-packages``.

The tree is one that ``escha-oscar integrate`` has merged. The pictures name it by its last component, and load nothing
from elsewhere: rich's own template fetches a font.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from escha_oscar.cli import _render, main
from escha_oscar.cli.mapping import print_files, row_states
from escha_oscar.tree import DiskTree

HERE = Path(__file__).parent
WIDTH = 96
_FONT = re.compile(r"@font-face\s*\{[^}]*\}", re.DOTALL)
_CREDIT = re.compile(r"<!--.*?-->", re.DOTALL)


def drawn(title: str, show: Callable[[Console], None]) -> str:
    """Return what ``show`` prints as an SVG that refers to nothing outside of itself."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, highlight=False, markup=False)
    show(console)
    svg = _CREDIT.sub("", _FONT.sub("", console.export_svg(title=title, unique_id="picture")))
    return "\n".join(text.rstrip() for text in svg.splitlines() if text.strip()).replace("Fira Code, ", "") + "\n"


def draw_all(site_packages: Path, into: Path) -> None:
    """Write every picture."""
    os.chdir(site_packages.parent)
    site = Path(site_packages.name)
    options = ["--site-packages", str(site)]
    pictures = {
        "mapping": lambda out: print_files(out, row_states(DiskTree(site))),
        "verify": lambda out: _command(out, ["verify", "--level", "files", "--level", "static", *options]),
    }
    for name, show in pictures.items():
        (into / f"{name}.svg").write_text(drawn(f"escha-oscar {name} --site-packages {site}", show), encoding="utf-8")


def _command(console: Console, args: list[str]) -> None:
    """Run a command with ``console`` as its terminal."""
    usual = _render.console
    _render.console = lambda *, stderr=False: console  # type: ignore[assignment]
    try:
        main(args)
    finally:
        _render.console = usual


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]).resolve(), HERE.resolve())
