"""A plan as unified diffs, for people who read diffs."""

from __future__ import annotations

import difflib

from escha_oscar.model import Plan, PlannedFile


def unified(plan: Plan) -> str:
    """Return the unified diff of every planned file, with git's headers: ``patch -p1`` and ``git apply`` take it."""
    return "".join(_header(file) + "".join(_body(file)) for file in plan.files if file.before != file.after)


def line_counts(file: PlannedFile) -> tuple[int, int]:
    """Return how many lines a file gains and loses."""
    marks = [line[0] for line in _body(file)[2:]]
    return marks.count("+"), marks.count("-")


def _header(file: PlannedFile) -> str:
    """Name the file; without this line a new empty file would not show at all."""
    made = "new file mode 100644\n" if file.before is None else ""
    return f"diff --git a/{file.path} b/{file.path}\n{made}"


def _body(file: PlannedFile) -> list[str]:
    old = _lines(file.before or b"")
    new = _lines(file.after)
    source = f"a/{file.path}" if file.before is not None else "/dev/null"
    lines = difflib.unified_diff(old, new, source, f"b/{file.path}", n=3)
    return [line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines]


def _lines(data: bytes) -> list[str]:
    """Split at newlines only: form feeds and Unicode separators stay inside their line."""
    text = data.decode("utf-8", errors="backslashreplace")
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
