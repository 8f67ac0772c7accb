"""A plan as unified diffs, for people who read diffs."""

from __future__ import annotations

import difflib

from escha_oscar.model import Plan, PlannedFile


def unified(plan: Plan) -> str:
    """Return the unified diff of every planned file, headed ``a/`` and ``b/`` so that ``patch -p1`` takes it."""
    return "".join(_file_diff(file) for file in plan.files)


def line_counts(file: PlannedFile) -> tuple[int, int]:
    """Return how many lines a file gains and loses."""
    lines = [line for line in _file_diff(file).splitlines()[2:] if line[:1] in "+-"]
    added = sum(line.startswith("+") for line in lines)
    return added, len(lines) - added


def _file_diff(file: PlannedFile) -> str:
    old = _lines(file.before or b"")
    new = _lines(file.after)
    source = f"a/{file.path}" if file.before is not None else "/dev/null"
    out = []
    for line in difflib.unified_diff(old, new, source, f"b/{file.path}", n=3):
        out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(out)


def _lines(data: bytes) -> list[str]:
    """Split at newlines only: form feeds and Unicode separators stay inside their line."""
    text = data.decode("utf-8", errors="backslashreplace")
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
