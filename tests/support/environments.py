"""A small installed environment, a plan over it, and the hash of a whole tree: bytes, modes and link types."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from escha_oscar.model import Change, Plan, PlannedFile, SourceId, Target, sha256
from tests.support.wheels import make_site_packages

if TYPE_CHECKING:
    from escha_oscar.installed.status import Condition

NAME, VERSION = "escha", "1.0.2+qwen3moe"
INFO = f"{NAME}-{VERSION}.dist-info"
RECORD = f"{INFO}/RECORD"

ENVIRON = "sglang/srt/environ.py"
POOL = "sglang/srt/mem_cache/memory_pool.py"
LINKED = "sglang/srt/layers/linked.py"
SHARED = "sglang/srt/layers/shared.py"
ADDED = "sglang/QuantKernel/__init__.py"
PLACED = "sglang/srt/layers/attention/oscar_int2/store.py"

CACHE = "sglang/srt/__pycache__/environ.cpython-311.opt-1.pyc"

FILES: dict[str, str | bytes] = {
    CACHE: b"compiled from the stock file",
    "sglang/__init__.py": "VERSION = 'fork'\n",
    "sglang/srt/__init__.py": "",
    ENVIRON: "FIELDS = ['a']\n",
    POOL: b"def pool():\r\n    return 'stock'\r\n",
    LINKED: "LINKED = 'stock'\n",
    SHARED: "SHARED = 'stock'\n",
}

MERGED: dict[str, bytes] = {
    ENVIRON: b"# merged\nFIELDS = ['a', 'int2']\n",
    POOL: b"# merged\r\ndef pool():\r\n    return 'int2'\r\n",
    LINKED: b"# merged\nLINKED = 'int2'\n",
    SHARED: b"# merged\nSHARED = 'int2'\n",
    ADDED: b"",
    PLACED: b"def store():\n    return 'int2'\n",
}

#: A second plan: one file more, one added file less, one changed again.
MERGED_AGAIN: dict[str, bytes] = {
    **{path: data for path, data in MERGED.items() if path not in (PLACED, SHARED)},
    ENVIRON: b"# merged again\nFIELDS = ['a', 'int2', 'more']\n",
    "sglang/__init__.py": b"# merged\nVERSION = 'fork'\n",
}


def make_environment(folder: Path, *, venv: bool = False) -> Path:
    """Install ``FILES`` below ``folder``: one file is a symbolic link, one is hard-linked, one has mode 0755."""
    base = folder / "venv/lib/python3.11" if venv else folder
    base.mkdir(parents=True, exist_ok=True)
    if venv:
        (folder / "venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    site = make_site_packages(base, FILES, name=NAME, version=VERSION)
    cache = folder / "cache"
    cache.mkdir()
    (cache / "linked.py").write_bytes((site / LINKED).read_bytes())
    (site / LINKED).unlink()
    (site / LINKED).symlink_to(os.path.relpath(cache / "linked.py", (site / LINKED).parent))
    os.link(site / SHARED, cache / "shared.py")
    (site / POOL).chmod(0o755)
    return site


def make_plan(site: Path, after: Mapping[str, bytes] = MERGED, commit: str = "a" * 40) -> Plan:
    """Plan ``after`` over the stock ``FILES``."""
    stock = {path: data.encode() if isinstance(data, str) else data for path, data in FILES.items()}
    files = tuple(
        PlannedFile(path, Change.MERGE if path in stock else Change.PLACE, stock.get(path), data)
        for path, data in after.items()
    )
    target = Target(site.resolve(), NAME, VERSION, site.resolve() / INFO, "escha-moe")
    return Plan(target, SourceId("pr", "pull request", commit, "https://example.invalid/sglang"), "native", files)


def snapshot(folder: Path) -> dict[str, tuple[str, int, str]]:
    """Return kind, permission bits and content (or link text) of everything below ``folder``."""
    found: dict[str, tuple[str, int, str]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[name] = ("link", 0, str(path.readlink()))
        elif stat.S_ISDIR(mode):
            found[name] = ("folder", stat.S_IMODE(mode), "")
        else:
            found[name] = ("file", stat.S_IMODE(mode), sha256(path.read_bytes()))
    return found


def without_state(found: Mapping[str, tuple[str, int, str]]) -> dict[str, tuple[str, int, str]]:
    """Return a snapshot less the tool's own directory."""
    return {name: entry for name, entry in found.items() if not name.startswith(".escha-oscar")}


def condition(site: Path) -> Condition:
    """Return what ``status`` says."""
    from escha_oscar.installed.status import read_status  # needs packages that the driver of the fault tests has not

    return read_status(site).condition
