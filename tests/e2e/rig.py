"""A real sglang tree, merged by the tool, that can be imported on a machine without a GPU.

Everything is built once and kept in a cache folder, each part under a digest of its inputs:

- ``wheels/``  the stock wheel as pip downloads it,
- ``deps/``    the light dependencies of that release, pinned in ``requirements-RELEASE.txt`` (no torch, no CUDA),
- ``trees/``   the unpacked wheel, and the same tree integrated by the checkout's own tool.

A program of ``inside/`` runs in a fresh interpreter with the tree on its path and answers with one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from escha_oscar.target.unpack import unpack_wheel

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
SOURCE = CHECKOUT / "src"
#: The trees that the two wheels of the family stand close to.
RELEASES = ("0.5.9", "0.5.15")
#: Every stock release that anchors are checked against.
BASES = ("0.5.9", "0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13", "0.5.15")
BUILD_TIMEOUT_S = 900
PROGRAM_TIMEOUT_S = 1100
KEPT_FOR_S = 24 * 3600


@dataclass(frozen=True)
class Rig:
    """An importable tree: ``tree`` is the folder that holds ``sglang/``, ``deps`` that of its dependencies."""

    release: str
    tree: Path
    deps: Path

    def run(self, program: str, spec: object = None, env: Mapping[str, str] | None = None) -> Any:
        """Run ``inside/PROGRAM.py`` with ``spec`` (anything JSON holds) and return its answer.

        Raises AssertionError with the end of the program's output when it fails.
        """
        with tempfile.TemporaryDirectory() as scratch:
            asked, answered = Path(scratch, "spec.json"), Path(scratch, "answer.json")
            asked.write_text(json.dumps(spec), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "inside", program, str(asked), str(answered)],
                env=self.environment(env or {}),
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=PROGRAM_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, (
                f"{program} on {self.release} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
            )
            return json.loads(answered.read_text(encoding="utf-8"))

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a program: nothing of ours but the path, nothing of the user's sglang settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "SGL_", "PYTHON"))}
        path = os.pathsep.join(map(str, (HERE, self.tree, self.deps)))
        fixed = {
            "PYTHONPATH": path,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return {**kept, **fixed, **extra}

    def mutated(self, place: Path, path: str, edit: Callable[[str], str]) -> Rig:
        """Return a rig over a copy of the tree below ``place`` with one file edited; the copy shares all other files.

        Raises AssertionError when the edit changes nothing, so that a mutation cannot quietly miss.
        """
        shutil.copytree(self.tree / "sglang", place / "sglang", copy_function=os.link)
        target = place / path
        before = target.read_text(encoding="utf-8")
        after = edit(before)
        assert after != before, f"the mutation did not match anything in {path}"
        target.unlink()
        target.write_text(after, encoding="utf-8")
        return replace(self, tree=place)


def stock(release: str) -> Rig:
    """Return a rig over the stock release, building what is not in the cache."""
    wheel = stock_wheel(release)
    tree = _cached("trees", f"stock-{release}", [wheel], lambda place: _unpack(wheel, place))
    return Rig(release, tree, _deps(release))


def merged(release: str) -> Rig:
    """Return a rig over the release integrated by this checkout's tool with the bundled source."""
    wheel = stock_wheel(release)
    inputs = [wheel, *sorted(path for path in SOURCE.rglob("*.py") if path.is_file())]
    tree = _cached("trees", f"merged-{release}", inputs, lambda place: _integrate(wheel, place))
    _prune(other for other in tree.parent.glob(f"merged-{release}-*") if other != tree)
    return Rig(release, tree, _deps(release))


def _unpack(wheel: Path, place: Path) -> None:
    unpack_wheel(wheel, place)


def _integrate(wheel: Path, place: Path) -> None:
    unpack_wheel(wheel, place)
    command = ["integrate", "--site-packages", str(place), "--source", "bundled", "--allow-upstream"]
    _call([sys.executable, "-m", "escha_oscar", *command], {"PYTHONPATH": str(SOURCE)})


def stock_wheel(release: str) -> Path:
    """Return the stock wheel of ``release`` as pip downloads it for this interpreter."""

    def download(place: Path) -> None:
        _call([*_pip("download"), "--no-deps", "--only-binary=:all:", f"sglang=={release}", "--dest", str(place)])

    folder = _cached("wheels", release, [], download)
    return next(folder.glob("sglang-*.whl"))


def _deps(release: str) -> Path:
    """Install the light dependencies: each release's own transformers where it is pinned here, else the newest's."""
    pinned = release if release in RELEASES else RELEASES[-1]
    pins = HERE / f"requirements-{pinned}.txt"

    def install(place: Path) -> None:
        _call([*_pip("install"), "--no-deps", "--only-binary=:all:", "--target", str(place), "-r", str(pins)])

    return _cached("deps", pinned, [pins], install)


def _pip(verb: str) -> list[str]:
    return [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check"]


def _call(command: list[str], extra: Mapping[str, str] | None = None) -> None:
    env = {**os.environ, **(extra or {})}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def _cached(kind: str, name: str, inputs: list[Path], build: Callable[[Path], None]) -> Path:
    """Return the cache folder for ``name`` built from ``inputs``, building it aside and moving it in place whole."""
    python = f"{sys.implementation.cache_tag}".encode()
    digest = hashlib.sha256(python)
    for path in inputs:
        digest.update(str(path.name).encode() + hashlib.sha256(path.read_bytes()).digest())
    final = _cache_root() / kind / f"{name}-{digest.hexdigest()[:16]}"
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".building-") as scratch:
        place = Path(scratch, "place")
        place.mkdir()
        build(place)
        try:
            place.rename(final)
        except OSError:
            if not final.is_dir():  # else another run has just built the same
                raise
    return final


def _prune(trees: Iterable[Path]) -> None:
    """Drop yesterday's trees of one release: every change of the tool makes another, and a run may still use one."""
    for tree in trees:
        if time.time() - tree.stat().st_mtime > KEPT_FOR_S:
            shutil.rmtree(tree, ignore_errors=True)


def _cache_root() -> Path:
    chosen = os.environ.get("ESCHA_OSCAR_TEST_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(home, "escha-oscar-tests")
