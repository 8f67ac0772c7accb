"""What an overlay says of itself: which installation it shadows, what was merged in, and every file's digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from escha_oscar.errors import TargetError
from escha_oscar.model import SourceId, sha256

#: Lies in the root of an overlay.
MARKER = ".escha-oscar-overlay.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Marker:
    """The marker's content; ``merged`` are the planned files, ``copied`` all others, each path -> sha256."""

    shadows: str
    source: SourceId
    kernels: str
    tool_version: str
    distribution: str
    version: str
    merged: Mapping[str, str]
    copied: Mapping[str, str]


def is_overlay(root: Path) -> bool:
    """Return whether ``root`` is an overlay of ours."""
    return (root / MARKER).is_file()


def encode(marker: Marker) -> bytes:
    """Return the marker's bytes."""
    body = {"schema_version": _SCHEMA_VERSION, **asdict(marker)}
    return json.dumps(body, indent=1, sort_keys=True).encode("ascii") + b"\n"


def read_marker(root: Path) -> Marker:
    """Return what the marker of an overlay says; raises TargetError for a damaged one."""
    path = root / MARKER
    try:
        body = json.loads(path.read_bytes())
        if body.pop("schema_version") != _SCHEMA_VERSION:
            raise ValueError("another schema")
        marker = Marker(source=SourceId(**body.pop("source")), **body)
        digests = {**marker.merged, **marker.copied}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TargetError(
            "the overlay's marker is damaged",
            path=str(path),
            found=str(error),
            hint="remove the folder and write it anew: escha-oscar integrate --overlay DIR",
        ) from error
    if not all(isinstance(digest, str) for digest in digests.values()):
        raise TargetError("the overlay's marker is damaged", path=str(path), found="digests that are no text")
    return marker


def differing(root: Path, digests: Mapping[str, str]) -> dict[str, bool]:
    """Return each file that is not as it was written, and whether it is there at all."""
    return {
        name: (root / name).is_file()
        for name, digest in sorted(digests.items())
        if not (root / name).is_file() or sha256((root / name).read_bytes()) != digest
    }
