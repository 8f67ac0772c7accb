"""Real stock wheels, integrated once per release and shared by every test; each test that changes a tree has a copy."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.cli import main
from escha_oscar.target.unpack import unpack_wheel
from tests.e2e import rig

Entry = tuple[int, str]


@dataclass(frozen=True)
class Ran:
    """One command as typed: exit code and JSON answer."""

    code: int
    answer: dict[str, Any]


def typed(*args: object) -> Ran:
    """Run the command line with ``--json``."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*map(str, args), "--json"])
    return Ran(code, json.loads(out.getvalue()))


def integrate(site: Path, *options: object) -> Ran:
    """Integrate a stock release with the bundled source, or with what the options name."""
    source = () if "--pr-repo" in options else ("--source", "bundled")
    return typed("integrate", "--site-packages", site, "--allow-upstream", *source, *options)


def linked_copy(site: Path, place: Path) -> Path:
    """Copy a tree with hard links, as installers do: whatever writes in place would change the first tree too."""
    shutil.copytree(site, place, copy_function=os.link)
    return place


@dataclass(frozen=True)
class Release:
    """A stock release: the tree as unpacked, the same tree integrated, and what the command said."""

    name: str
    pristine: Path
    merged: Path
    ran: Ran

    def after(self, path: str) -> bytes:
        """Return a file of the integrated tree."""
        return (self.merged / path).read_bytes()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep sources out of the user's cache; the wheels have a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESCHA_OSCAR_TEST_CACHE", str(rig._cache_root()))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", params=rig.RELEASES)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("release")
    pristine = folder / "pristine"
    unpack_wheel(rig.stock_wheel(request.param), pristine)
    merged = linked_copy(pristine, folder / "merged")
    return Release(request.param, pristine, merged, integrate(merged))


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda site: linked_copy(site, tmp_path / "site-packages")
