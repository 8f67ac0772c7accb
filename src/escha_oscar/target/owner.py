"""Which distribution owns ``sglang/``: read from METADATA and RECORD, never by importing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import NoReturn

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from escha_oscar.errors import TargetError
from escha_oscar.mapping import FAMILIES
from escha_oscar.target import record
from escha_oscar.target.search import PACKAGE, offers, pth_entries

_NAMES = {canonicalize_name(family.distribution) for family in FAMILIES}
_EDITABLE = re.compile(rf"(__editable__[._]+)?({'|'.join(sorted(_NAMES))})([-_]\d|\.egg-link$)")
_MAX_METADATA = 4 * 2**20
_MAX_RECORD = 256 * 2**20
_REINSTALL = "reinstall the wheel: pip install --force-reinstall --no-deps WHEEL"


@dataclass(frozen=True)
class Distribution:
    """One installed distribution: canonical name, version, metadata directory."""

    name: str
    version: Version
    dist_info: Path

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.dist_info.name})"


def find_owner(root: Path) -> Distribution:
    """Return the one distribution whose RECORD has files below ``sglang/``.

    Raises TargetError for no owner, two owners, two versions of one, a missing or malformed RECORD, and editables.
    """
    infos = [path for path in sorted(root.glob("*.dist-info")) if path.is_dir() and not path.name.startswith("~")]
    _refuse_editable(root, infos)
    owners = [_read(path) for path in infos if _owns_package(path)]
    if len(owners) > 1:
        _refuse_several(root, owners)
    named = [path for path in infos if _guessed_name(path) in {*_NAMES, *(owner.name for owner in owners)}]
    for path in named:
        if not (path / "RECORD").is_file():
            raise TargetError("RECORD is missing", path=str(path / "RECORD"), sought="RECORD", hint=_REINSTALL)
    if not owners:
        _refuse_ownerless(root)
    twins = [path for path in named if _guessed_name(path) == owners[0].name]
    if len(twins) > 1:
        _refuse_several(root, [_read(path) for path in twins])
    return owners[0]


def required_imports(dist_info: Path) -> frozenset[str]:
    """Return the import names that a distribution's requirements most likely provide, from its METADATA."""
    metadata = dist_info / "METADATA"
    text = metadata.read_text(encoding="utf-8", errors="replace") if metadata.is_file() else ""
    names = re.findall(r"^Requires-Dist:\s*([A-Za-z0-9._-]+)", text, flags=re.MULTILINE)
    return frozenset(name.lower().replace("-", "_") for name in names)


def _owns_package(info: Path) -> bool:
    path = info / "RECORD"
    if not path.is_file():
        return False
    data = _bounded(path, _MAX_RECORD)
    if f"{PACKAGE}/".encode() not in data:  # most distributions: spare them the parsing
        return False
    return any(name.startswith(f"{PACKAGE}/") for name in record.owned(record.parse(data, name=str(path))))


def _read(info: Path) -> Distribution:
    path = info / "METADATA"
    headers = BytesHeaderParser().parsebytes(_bounded(path, _MAX_METADATA))
    name, version = headers.get("Name"), headers.get("Version")
    if not name or not version:
        raise TargetError("malformed METADATA", path=str(path), sought="Name and Version", hint=_REINSTALL)
    try:
        return Distribution(canonicalize_name(str(name).strip()), Version(str(version).strip()), info)
    except InvalidVersion as error:
        raise TargetError("malformed METADATA", path=str(path), sought="a PEP 440 version", found=str(error)) from error


def _bounded(path: Path, limit: int) -> bytes:
    if path.exists() and not path.is_file():
        raise TargetError("not a regular file", path=str(path), hint=_REINSTALL)
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise TargetError(f"cannot read: {error.strerror}", path=str(path), hint=_REINSTALL) from error
    if len(data) > limit:
        raise TargetError("file is too large", path=str(path), sought=f"at most {limit} bytes")
    return data


def _guessed_name(info: Path) -> str:
    """Return the canonical name in a directory like ``escha-1.0.2+qwen3moe.dist-info``."""
    return canonicalize_name(info.name.removesuffix(".dist-info").partition("-")[0])


def _refuse_several(root: Path, owners: Sequence[Distribution]) -> NoReturn:
    raise TargetError(
        f"{PACKAGE}/ has several owners, so either can undo the other", path=str(root / PACKAGE),
        sought="one distribution", found="; ".join(str(owner) for owner in owners),
        hint="uninstall all but one of them, then reinstall the one to keep",
    )  # fmt: skip


def _refuse_ownerless(root: Path) -> NoReturn:
    legacy = [path.name for name in _NAMES for path in root.glob(f"{name}*.egg-info")]
    found = f"{', '.join(sorted(legacy))} (no RECORD)" if legacy else "no RECORD lists it"
    raise TargetError(
        f"{PACKAGE}/ belongs to no distribution", path=str(root / PACKAGE), sought="a RECORD that lists it",
        found=found, hint=_REINSTALL,
    )  # fmt: skip


def _refuse_editable(root: Path, infos: Sequence[Path]) -> None:
    for info in infos:
        checkout = _editable_checkout(info) if _guessed_name(info) in _NAMES else None
        if checkout is not None:
            _editable(info / "direct_url.json", checkout)
    for path in sorted([*root.glob("__editable__*"), *root.glob("*.egg-link")]):
        if _EDITABLE.match(path.name):
            _editable(path, "a source checkout")
    for pth, entry in pth_entries(root):
        if offers(entry) is not None and not entry.samefile(root):
            _editable(pth, str(entry))


def _editable_checkout(info: Path) -> str | None:
    """Return the folder that an editable install points to, or None for an ordinary one."""
    path = info / "direct_url.json"
    if not path.is_file():
        return None
    try:
        data = json.loads(_bounded(path, _MAX_METADATA))
    except (ValueError, RecursionError) as error:
        raise TargetError("malformed direct_url.json", path=str(path), found=str(error)[:200]) from error
    details = data.get("dir_info") if isinstance(data, dict) else None
    editable = isinstance(details, dict) and bool(details.get("editable"))
    return re.sub(r"^file://", "", str(data.get("url"))) if editable else None


def _editable(path: Path, checkout: str) -> NoReturn:
    raise TargetError(
        "an editable install: the code lies in a checkout, not here", path=str(path), sought="an installed wheel",
        found=checkout, hint="install the wheel itself, or edit the checkout",
    )  # fmt: skip
