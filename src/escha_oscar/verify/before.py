"""What an integration recorded about its tree: the tree before it, the kind of its source, what it wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from escha_oscar.disk.fsops import Root
from escha_oscar.errors import EschaOscarError
from escha_oscar.installed import state
from escha_oscar.installed.apply import pristine_tree
from escha_oscar.tree import Tree


@dataclass(frozen=True)
class Recorded:
    """The record of an integration; all empty where there is none, or where it is damaged (the files level says so)."""

    base: Tree | None = None
    source_kind: str | None = None
    changed: tuple[str, ...] = ()
    kernels: str | None = None


def recorded(site_packages: Path) -> Recorded:
    """Return what the state of ``site_packages`` says; a damaged record or original counts as none."""
    try:
        known = state.load(Root(site_packages))
        if known is None:
            return Recorded()
        base = pristine_tree(site_packages)
        paths = tuple(entry.path for entry in known.files)
        for path in paths:
            base.read(path)
    except EschaOscarError:
        return Recorded()
    return Recorded(base, known.source.kind, paths, known.kernels)
