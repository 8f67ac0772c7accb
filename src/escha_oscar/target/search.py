"""Where Python would look for sglang: the path of an interpreter, what an entry offers, and what shadows a tree."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from escha_oscar.errors import TargetError

PACKAGE = "sglang"
_PROBE = "import json, sys; print(); print(json.dumps([p for p in sys.path if p]))"
_PROBE_SECONDS = 60
_MAX_PTH = 2**20


def search_path(python: Path, *, trusted_only: bool) -> tuple[Path, ...]:
    """Return ``sys.path`` of an interpreter, less the working directory; the interpreter imports nothing of ours.

    With ``trusted_only`` an interpreter that belongs to another user is not run by root.
    Raises TargetError where it is absent or does not answer.
    """
    if not python.is_file() or not os.access(python, os.X_OK):
        raise TargetError(
            "no such interpreter",
            path=str(python),
            sought="an executable python",
            hint="name the environment's own, as --python /opt/escha/bin/python",
        )
    if trusted_only:
        refuse_foreign_owner(python)
    try:
        done = subprocess.run(
            [str(python), "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
        entries = json.loads(done.stdout.decode("utf-8", "surrogateescape").strip().rpartition("\n")[2])
        return tuple(Path(entry) for entry in entries)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        hint = f"{shlex.quote(str(python))} -c 'import sys' has to work first"
        raise TargetError("the interpreter failed", path=str(python), found=words[:300], hint=hint) from error
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError) as error:
        hint = "name the environment's own python, or its folder with --site-packages DIR"
        found = "no list of folders" if isinstance(error, ValueError | TypeError) else str(error)[:300]
        raise TargetError("the interpreter did not answer", path=str(python), found=found, hint=hint) from error


def no_such_folder(folder: Path) -> TargetError:
    """Return the error for a site-packages that is not there."""
    return TargetError(
        "no such directory",
        path=str(folder),
        sought="a site-packages directory",
        hint="""this prints it: /opt/escha/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'""",
    )


def no_package(root: Path) -> TargetError:
    """Return the error for a folder without the package; names the right one where this is a prefix or the package."""
    near = [root.parent] if root.name == PACKAGE else sorted(root.glob("lib/python3*/site-packages"))
    hint = f"--site-packages {near[0]}" if near else "name the folder that holds sglang/ with --site-packages"
    return TargetError(f"no {PACKAGE}/ here", path=str(root), sought=f"{PACKAGE}/ and its *.dist-info", hint=hint)


def inherited_path() -> tuple[Path, ...]:
    """Return the entries of this process's PYTHONPATH: they come before any site-packages."""
    return tuple(Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry)


def offers(entry: Path) -> Path | None:
    """Return what ``import sglang`` would load from one path entry, or None; a namespace folder is no offer."""
    try:
        return _offer(entry)
    except OSError:  # what cannot be looked at cannot be imported either
        return None


def _offer(entry: Path) -> Path | None:
    if entry.is_file():
        return entry / PACKAGE if _zip_offers(entry) else None
    package = entry / PACKAGE
    if any((package / f"__init__{suffix}").is_file() for suffix in (".py", ".pyc")):
        return package
    modules = [entry / f"{PACKAGE}.py", entry / f"{PACKAGE}.pyc", *sorted(entry.glob(f"{PACKAGE}.*.so"))]
    return next((module for module in modules if module.is_file()), None)


def refuse_shadow(root: Path, path: Sequence[Path]) -> None:
    """Raise TargetError where an entry before ``root`` would be imported in its place; names both."""
    for entry in path:
        if same(entry, root):
            return
        shadow = offers(entry)
        if shadow is not None:
            raise TargetError(
                "another sglang comes first on the import path, so changes here would have no effect",
                path=str(root / PACKAGE), sought=f"{root / PACKAGE} first", found=f"{shadow} first",
                hint="take that entry out of PYTHONPATH, or name its folder with --site-packages",
            )  # fmt: skip


def same(one: Path, other: Path) -> bool:
    """Return whether two paths are one directory, links followed."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def pth_entries(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each ``.pth`` file of ``root`` with each path that it adds; its import lines are not run."""
    for pth in sorted(root.glob("*.pth")):
        try:
            with pth.open("rb") as stream:
                text = stream.read(_MAX_PTH).decode("utf-8-sig", "replace")
        except OSError:
            continue
        for line in map(str.strip, text.replace("\0", "").split("\n")):
            if line and not line.startswith(("#", "import ", "import\t")):
                yield pth, root / line


def refuse_foreign_owner(place: Path) -> None:
    """Raise TargetError where root would work on a file or folder of another user."""
    owner = place.lstat().st_uid
    if os.geteuid() == 0 and owner != 0:
        raise TargetError(
            "root does not edit another user's environment: its files would change owner", path=str(place),
            sought="owner 0", found=f"owner {owner}", hint=f"run the command as that user: sudo -u '#{owner}' ...",
        )  # fmt: skip


def _zip_offers(entry: Path) -> bool:
    try:
        with zipfile.ZipFile(entry) as archive:
            return f"{PACKAGE}/__init__.py" in archive.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError):
        return False
