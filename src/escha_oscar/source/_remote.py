"""What a repository argument is: an https URL, a local clone or a bundle file; everything else is refused."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from urllib.request import url2pathname

from escha_oscar.errors import UsageError

_BUNDLE_MAGIC = (b"# v2 git bundle\n", b"# v3 git bundle\n")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HINT = "name another --pr-repo, or leave it out for the pinned repository"
_SOUGHT = "an https URL, the path of a local clone, or a bundle file"


@dataclass(frozen=True)
class Remote:
    """One place to fetch from: what git is given, which transport it may use, and whether it is a bundle."""

    location: str
    protocol: str
    is_bundle: bool = False

    @property
    def is_local(self) -> bool:
        """Return whether no network is involved."""
        return self.protocol == "file"

    @property
    def display(self) -> str:
        """Return the location without credentials, for reports and records."""
        if self.is_local:
            return self.location
        parts = urlsplit(self.location)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    @property
    def fetch_args(self) -> tuple[str, ...]:
        """Return what ``git fetch`` is given: options for the transport, ``--`` and the address."""
        if not self.is_local:
            return ("--", self.location)
        # The server side of a local clone is a child of ours: let it filter, whatever that clone's configuration says.
        serve = "git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true upload-pack"
        return (f"--upload-pack={serve}", "--", Path(self.location).as_uri())

    @property
    def key(self) -> str:
        """Return a directory name for this repository: a readable tail and a digest of the location."""
        name = re.sub(r"[^A-Za-z0-9._-]", "-", self.display.rstrip("/").rpartition("/")[2])[:40].lstrip(".-")
        return f"{name or 'repository'}-{hashlib.sha256(self.display.encode()).hexdigest()[:16]}"


def parse_remote(repository: str) -> Remote:
    """Classify ``repository``; plain http is accepted for this machine only.

    Raises UsageError for other transports, for names that git would read as options, and for absent paths.
    """
    if not repository or repository.startswith("-") or any(not c.isprintable() for c in repository):
        raise UsageError("not a repository", sought=_SOUGHT, hint=_HINT, found=repr(repository))
    try:
        return _local(Path(repository)) if "://" not in repository else _url(repository)
    except (ValueError, OSError, RuntimeError) as error:  # a malformed URL, an unreadable path, a loop of links
        raise UsageError("not a repository", sought=_SOUGHT, hint=_HINT, found=f"{repository!r}: {error}") from error


def _url(repository: str) -> Remote:
    parts = urlsplit(repository)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return _local(Path(url2pathname(parts.path)))
    if parts.scheme == "https" and parts.hostname:
        return Remote(repository, "https")
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return Remote(repository, "http")
    raise UsageError(
        "this transport is not allowed", sought=_SOUGHT, hint=_HINT, found=f"{parts.scheme}://{parts.hostname or ''}"
    )


def _local(path: Path) -> Remote:
    place = path.expanduser().resolve()
    if place.is_dir():
        return Remote(str(place), "file")
    if place.is_file():
        with place.open("rb") as stream:
            if stream.read(len(_BUNDLE_MAGIC[0])) in _BUNDLE_MAGIC:
                return Remote(str(place), "file", is_bundle=True)
        raise UsageError("not a git bundle", path=str(path), sought=_SOUGHT, hint=_HINT)
    raise UsageError("no such repository", path=str(path), sought=_SOUGHT, hint=_HINT)
