"""Find the runtime to work on, and say which build it is; metadata and file probes only, nothing is imported."""

from __future__ import annotations

import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from escha_oscar.errors import TargetError
from escha_oscar.mapping import DECODE_PATHS, FAMILIES, Family, merges
from escha_oscar.model import Target
from escha_oscar.target.owner import Distribution, find_owner
from escha_oscar.target.search import (
    PACKAGE,
    inherited_path,
    no_package,
    no_such_folder,
    offers,
    refuse_foreign_owner,
    refuse_shadow,
    same,
    search_path,
)

MAX_SOURCE = 16 * 2**20


def locate(
    *, site_packages: Path | None, python: Path | None, allow_upstream: bool, for_writing: bool = True
) -> Target:
    """Return the runtime in ``site_packages``, else of ``python``, else of the running interpreter.

    ``for_writing=False`` is for commands that only read: then root may look at another user's environment.
    Raises TargetError (exit 3) for everything that is not exactly one installed, unshadowed wheel of a known layout.
    """
    try:
        return _located(site_packages, python or Path(sys.executable), allow_upstream, for_writing)
    except OSError as error:
        place = str(error.filename or site_packages or python)
        raise TargetError(f"cannot read: {error.strerror or error}", path=place) from error


def _located(site_packages: Path | None, python: Path, allow_upstream: bool, for_writing: bool) -> Target:
    if site_packages is not None:
        root = _given(site_packages)
        path: Sequence[Path] = (*inherited_path(), root)
    else:
        path = search_path(python, trusted_only=for_writing)
        root = _first_with_package(path, python)
    if for_writing:
        refuse_foreign_owner(root)
    owner = find_owner(root)
    _require_package(root)
    refuse_shadow(root, path)
    _require_layout(root)
    family, warnings = _identify(owner, allow_upstream)
    return Target(root, owner.name, str(owner.version), owner.dist_info, family, warnings + _working_directory(root))


def _given(folder: Path) -> Path:
    if not folder.is_dir():
        raise no_such_folder(folder)
    root = folder.resolve()
    if not (root / PACKAGE).exists() and not any(root.glob("*.dist-info")):
        raise no_package(root)
    return root


def _first_with_package(path: Sequence[Path], python: Path) -> Path:
    """Return the first entry that holds an installed sglang; one without metadata is judged as a shadow later."""
    holders = [entry for entry in path if entry.is_dir() and (entry / PACKAGE).is_dir()]
    installed = [entry for entry in path if entry.is_dir() and any(_named_infos(entry))]
    found = next((entry for entry in holders if any(same(entry, other) for other in installed)), None)
    chosen = found or next(iter(installed or holders), None)
    if chosen is None:
        raise TargetError(
            f"this interpreter has no {PACKAGE}", path=str(python), sought=f"{PACKAGE}/ on its path",
            hint="name the environment with --site-packages DIR or --python EXE",
        )  # fmt: skip
    return chosen.resolve()


def _named_infos(entry: Path) -> list[Path]:
    names = {family.distribution for family in FAMILIES}
    return [path for name in names for path in entry.glob(f"{name}-*.dist-info")]


def _require_package(root: Path) -> None:
    package = root / PACKAGE
    if package.is_symlink():
        raise TargetError(
            f"{PACKAGE}/ is a link into another tree", path=str(package), sought="a directory",
            found=str(package.resolve()), hint="name that tree's site-packages with --site-packages",
        )  # fmt: skip
    if not package.is_dir():
        raise TargetError(f"no {PACKAGE}/ here", path=str(root), sought=f"{PACKAGE}/", hint="reinstall the wheel")
    if not (package / "__init__.py").is_file():
        raise TargetError(
            f"{PACKAGE}/ is a namespace package: several trees may share it", path=str(package),
            sought=f"{PACKAGE}/__init__.py", hint="reinstall the wheel",
        )  # fmt: skip


def _require_layout(root: Path) -> None:
    """Refuse mapped files that are no bounded regular files below ``root``, and a tree without decode attention."""
    for path in (path for row in merges() for path in row.wheel_paths):
        _require_file(root, root / path)
    if not any((root / path).is_file() for path in DECODE_PATHS):
        raise TargetError(
            "neither decode-attention file is here", path=str(root), sought=" or ".join(DECODE_PATHS),
            found="neither", hint="this tree is of an unsupported layout; check --site-packages",
        )  # fmt: skip


def _require_file(root: Path, file: Path) -> None:
    try:
        state = file.stat()
        if not file.parent.resolve().is_relative_to(root):
            raise TargetError("a folder of the package is a link out of it", path=str(file.parent))
    except FileNotFoundError:
        return
    except OSError as error:
        raise TargetError(f"cannot read: {error.strerror}", path=str(file)) from error
    if not stat.S_ISREG(state.st_mode):
        raise TargetError("not a regular file", path=str(file), sought="a Python source file")
    if state.st_size > MAX_SOURCE:
        raise TargetError(
            "file is too large", path=str(file), sought=f"<= {MAX_SOURCE} bytes", found=str(state.st_size)
        )


def _identify(owner: Distribution, allow_upstream: bool) -> tuple[str, tuple[str, ...]]:
    """Return the family's name and what has to be said about this build."""
    family = _family(owner)
    build = f"{owner.name} {owner.version}"
    if owner.name != "escha" and not allow_upstream:
        raise TargetError(
            f"{PACKAGE}/ here belongs to {build}, not to the Escha runtime", path=str(owner.dist_info),
            sought="escha, for example 1.0.2+qwen3moe", found=build,
            hint="escha-oscar integrate --allow-upstream (for a stock sglang)",
        )  # fmt: skip
    if family is None:
        return "unknown", (f"{build} is an unknown build; it is tried by structure",)
    if owner.version.public in family.versions and owner.version.local == family.local:
        return family.name, ()
    known = ", ".join(family.versions)
    return family.name, (f"{build} is not among the known builds ({known}); it is tried by structure",)


def _family(owner: Distribution) -> Family | None:
    label = (owner.version.local or "").partition(".")[0] or None
    return next((f for f in FAMILIES if f.distribution == owner.name and f.local in (label, None)), None)


def _working_directory(root: Path) -> tuple[str, ...]:
    """Return a warning where a server started from the current directory would import another sglang."""
    here = offers(Path.cwd())
    if here is None or same(here.parent, root):
        return ()
    return (f"a server started from {here.parent} imports {here}, not {root / PACKAGE}",)
