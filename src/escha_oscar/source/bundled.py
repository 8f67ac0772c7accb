"""Our own implementation, shipped in the package as real Python files by sglang path; needs no network."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from escha_oscar import __version__
from escha_oscar.errors import SourceError, TargetError
from escha_oscar.model import SourceId
from escha_oscar.tree import checked

if TYPE_CHECKING:
    from importlib.abc import Traversable


@dataclass(frozen=True)
class Bundled:
    """The tree below ``root``: the package's ``donor`` folder, in a checkout or in an installed wheel."""

    root: Traversable

    @classmethod
    def open(cls, root: Traversable | None = None) -> Bundled:
        """Return the bundled tree; ``root`` stands in for the package's own."""
        return cls(files("escha_oscar").joinpath("donor") if root is None else root)

    @property
    def id(self) -> SourceId:
        """Return the tree's name with the tool's version, which is what pins its content."""
        return SourceId("bundled", f"bundled with escha-oscar {__version__}")

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None; raise SourceError for a path that leaves the tree."""
        try:
            parts = checked(path).parts
        except TargetError as error:
            raise SourceError(error.message, path=error.path, sought=error.sought) from error
        place = self.root.joinpath(*parts)
        try:
            return place.read_bytes() if place.is_file() else None
        except OSError as error:
            raise SourceError(f"cannot read: {error.strerror}", path=str(place)) from error
