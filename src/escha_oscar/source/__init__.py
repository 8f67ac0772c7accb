"""Where symbols are taken from: a tree of files by sglang path, fetched from the pull request or shipped with us."""

from __future__ import annotations

from typing import Protocol

from escha_oscar.model import SourceId


class Source(Protocol):
    """A read-only tree; paths are posix and begin with ``sglang/`` (``sglang/srt/environ.py``)."""

    @property
    def id(self) -> SourceId:
        """Return what this tree is, for reports and for the record of an integration."""

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None where the tree has no such file.

        Raises SourceError where the file exists and cannot be had, or its content fails its hash.
        """
