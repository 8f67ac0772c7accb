"""What an integration recorded about its tree: the tree before it, the kind of its source, what it wrote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from escha_oscar.disk.fsops import Root
from escha_oscar.errors import EschaOscarError
from escha_oscar.installed import state
from escha_oscar.installed.pristine import pristine_tree
from escha_oscar.tree import Tree


@dataclass(frozen=True)
class Recorded:
    """The record of an integration; all empty where there is none.

    ``problem`` says why the tree before cannot be read, where it cannot.
    """

    base: Tree | None = None
    source_kind: str | None = None
    changed: tuple[str, ...] = ()
    kernels: str | None = None
    problem: EschaOscarError | None = None


def recorded(site_packages: Path) -> Recorded:
    """Return what the state of ``site_packages`` says, as far as it can be read."""
    try:
        known = state.load(Root(site_packages))
    except EschaOscarError as error:
        return Recorded(problem=error)
    if known is None:
        return Recorded()
    paths = tuple(entry.path for entry in known.files)
    found = Recorded(None, known.source.kind, paths, known.kernels)
    try:
        base = pristine_tree(site_packages)
        for path in paths:
            base.read(path)
    except EschaOscarError as error:
        return replace(found, problem=error)
    return replace(found, base=base)
