"""Where Python keeps compiled copies of a source file: beside it and below PYTHONPYCACHEPREFIX."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from escha_oscar.disk.fsops import Root


def beside(root: Root, source: str) -> tuple[str, ...]:
    """Return the ``.pyc`` files of ``source`` in its ``__pycache__``, of every interpreter and optimisation level."""
    pure = PurePosixPath(source)
    if pure.suffix != ".py":
        return ()
    folder = pure.parent / "__pycache__"
    return tuple(str(folder / name) for name in root.names(str(folder)) if _belongs(name, pure.stem))


def drop(root: Root, sources: Iterable[str], *, keep: frozenset[str] = frozenset()) -> int:
    """Remove every compiled copy of ``sources`` but those in ``keep``; return how many went."""
    count = 0
    for source in sources:
        for path in beside(root, source):
            if path not in keep:
                root.remove(path)
                count += 1
        for file in _below_prefix(root, source):
            file.unlink(missing_ok=True)
            count += 1
    return count


def remove_empty(root: Root, sources: Iterable[str]) -> None:
    """Remove the ``__pycache__`` of each source's folder where nothing is in it any more."""
    for folder in sorted({str(PurePosixPath(source).parent) for source in sources if source.endswith(".py")}):
        root.remove_folder(f"{folder}/__pycache__")


def is_cache(path: str) -> bool:
    """Return whether ``path`` is a compiled file in a ``__pycache__``."""
    return path.endswith(".pyc") and "/__pycache__/" in path


def _below_prefix(root: Root, source: str) -> list[Path]:
    prefix = os.environ.get("PYTHONPYCACHEPREFIX") or sys.pycache_prefix
    pure = PurePosixPath(source)
    if not prefix or pure.suffix != ".py":
        return []
    folder = Path(prefix) / root.full(str(pure.parent)).relative_to("/")
    return [file for file in folder.iterdir() if _belongs(file.name, pure.stem)] if folder.is_dir() else []


def _belongs(name: str, stem: str) -> bool:
    return name.startswith(f"{stem}.") and name.endswith(".pyc")
