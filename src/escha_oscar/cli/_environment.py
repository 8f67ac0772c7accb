"""Which environment a command works on, found even where an interrupted run left it half changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from escha_oscar.disk.layout import STATE_DIR
from escha_oscar.errors import TargetError
from escha_oscar.target.search import PACKAGE, no_package, no_such_folder, refuse_foreign_owner, search_path


def environment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--site-packages`` and ``--python``."""
    place = click.Path(path_type=Path)
    folder = click.option("--site-packages", type=place, metavar="DIR", help="The folder that holds sglang/.")
    python = click.option("--python", type=place, metavar="EXE", help="The environment's interpreter.")
    return folder(python(command))


def environment(site_packages: Path | None, python: Path | None, *, for_writing: bool) -> Path:
    """Return the folder that is named, else the first on the interpreter's path that has the package or our state.

    Raises TargetError where there is none, and where root would write into another user's environment.
    """
    found = site_packages if site_packages is not None else _searched(python or Path(sys.executable), for_writing)
    if not found.is_dir():
        raise no_such_folder(found)
    if not (found / PACKAGE).exists() and not (found / STATE_DIR).exists():
        raise no_package(found.resolve())
    if for_writing:
        refuse_foreign_owner(found.resolve())
    return found


def _searched(python: Path, for_writing: bool) -> Path:
    entries = search_path(python, trusted_only=for_writing)
    found = next((entry for entry in entries if (entry / PACKAGE).is_dir() or (entry / STATE_DIR).is_dir()), None)
    if found is None:
        raise TargetError(
            f"this interpreter has no {PACKAGE}",
            path=str(python),
            sought=f"{PACKAGE}/ on its path",
            hint="name the environment with --site-packages DIR or --python EXE",
        )
    return found
