"""One path as it stands on a disk, and as JSON data that is not trusted when it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

_HEX = re.compile(r"[0-9a-f]{64}")


class Kind(str, Enum):
    """What stands at a path."""

    ABSENT = "absent"
    FILE = "file"
    LINK = "link"


@dataclass(frozen=True)
class Image:
    """One path as it stands: content digest, permission bits, owner, times; for a link its text as well.

    ``sha256`` of a link is that of the content behind it (None when it dangles). ``mtime_ns`` is in nanoseconds.
    """

    kind: Kind
    sha256: str | None = None
    size: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    link: str | None = None
    links: int = 1

    def same_content(self, other: Image) -> bool:
        """Return whether both are the same kind with the same bytes, or links with the same text."""
        if self.kind is not other.kind:
            return False
        return self.link == other.link if self.kind is Kind.LINK else self.sha256 == other.sha256


ABSENT = Image(Kind.ABSENT)


def image_record(image: Image) -> dict[str, Any]:
    """Return an image as plain JSON data."""
    if image.kind is Kind.ABSENT:
        return {"kind": image.kind.value}
    return {**asdict(image), "kind": image.kind.value}


def image_of(record: Mapping[str, Any]) -> Image:
    """Return the image in ``record``; raises ValueError or TypeError for wrong types."""
    kind = Kind(record["kind"])
    if kind is Kind.ABSENT:
        return ABSENT
    values = {field.name: record[field.name] for field in fields(Image)}
    image = Image(**{**values, "kind": kind})
    numbers = (image.size, image.mode, image.uid, image.gid, image.mtime_ns, image.links)
    if any(type(number) is not int for number in numbers) or not 0 <= image.mode <= 0o7777:
        raise ValueError("an image needs whole numbers")
    if (kind is Kind.LINK) != isinstance(image.link, str):
        raise ValueError("a link needs its text")
    if image.sha256 is not None or kind is Kind.FILE:
        digest_of(image.sha256)
    return image


def digest_of(value: object) -> str:
    """Return ``value`` if it is a hex SHA-256; raises ValueError otherwise."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"not a SHA-256: {str(value)[:80]!r}")
    return value
