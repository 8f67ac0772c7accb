"""A note outside the environment that it was integrated: a reinstall removes the state with the wheel's other files.

Only ``status`` reads it, to tell "reinstalled, not integrated" from "never integrated". Losing it does no harm, so
whatever fails here is passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from escha_oscar.disk.fsops import Root, atomic_write
from escha_oscar.errors import TargetError
from escha_oscar.installed.state import State
from escha_oscar.model import SourceId, sha256

_MAX_TEXT = 4096


@dataclass(frozen=True)
class Note:
    """What was integrated in an environment the last time."""

    site_packages: str
    source: SourceId
    kernels: str
    tool_version: str
    distribution: str
    version: str


def remember(root: Root, known: State) -> None:
    """Write the note of an environment."""
    note = Note(str(root.path), known.source, known.kernels, known.tool_version, known.distribution, known.version)
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(root)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(path, json.dumps(asdict(note), indent=1, sort_keys=True).encode("ascii") + b"\n", mode=0o600)


def forget(root: Root) -> None:
    """Remove the note of an environment."""
    with contextlib.suppress(OSError, RuntimeError):
        _path(root).unlink(missing_ok=True)


def recall(root: Root) -> Note | None:
    """Return the note of an environment; None where there is none or it cannot be trusted."""
    try:
        path = _path(root)
        data = Root(path.parent).read_private(path.name)
        body = json.loads(data) if data is not None else {}
        source = SourceId(**body.pop("source"))
        note = Note(source=source, **body)
    except (OSError, RuntimeError, TargetError, ValueError, KeyError, TypeError, AttributeError):
        return None
    texts = [text for text in (*asdict(note).values(), *asdict(source).values()) if text is not None]
    fits = all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts if not isinstance(text, dict))
    return note if fits and note.site_packages == str(root.path) else None


def _path(root: Root) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "escha-oscar/environments" / f"{sha256(os.fsencode(root.path))[:32]}.json"
