"""A plan as unified diffs, in the bytes of the files: for people who read diffs and tools that apply them."""

from __future__ import annotations

import difflib

from escha_oscar.model import Plan, PlannedFile


def unified(plan: Plan) -> bytes:
    """Return the unified diff of every planned file, with git's headers: ``patch -p1`` and ``git apply`` take it."""
    return b"".join(_header(file) + b"".join(_body(file)) for file in plan.files if file.before != file.after)


def line_counts(file: PlannedFile) -> tuple[int, int]:
    """Return how many lines a file gains and loses."""
    marks = [line[:1] for line in _body(file)[2:]]
    return marks.count(b"+"), marks.count(b"-")


def _header(file: PlannedFile) -> bytes:
    """Name the file; without this line a new empty file would not show at all."""
    made = "new file mode 100644\n" if file.before is None else ""
    return f"diff --git a/{file.path} b/{file.path}\n{made}".encode()


def _body(file: PlannedFile) -> list[bytes]:
    source = f"a/{file.path}" if file.before is not None else "/dev/null"
    names = source.encode(), f"b/{file.path}".encode()
    lines = difflib.diff_bytes(difflib.unified_diff, _lines(file.before or b""), _lines(file.after), *names)
    return [line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines]


def _lines(data: bytes) -> list[bytes]:
    """Split at newlines only: form feeds and carriage returns stay inside their line."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
