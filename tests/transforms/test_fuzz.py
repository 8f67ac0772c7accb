"""Whatever somebody has done to a file: the plan refuses it in plain words, or stays inside the blast radius."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escha_oscar.errors import EschaOscarError
from escha_oscar.merge.blast import check_blast_radius
from escha_oscar.model import Change
from escha_oscar.transforms import TRANSFORMS
from tests.merge.test_plan import plan_of
from tests.support import forks

Lines = list[bytes]
TOUCHES = {transform.TARGET: transform.TOUCHES for transform in TRANSFORMS}
MERGED = sorted(set(TOUCHES) & set(forks.OLD))
WORDS = (
    b"# \xe6\x97\xa5\xe6\x9c\xac", b"pass", b"x = 1", b"if True:", b"\x0c", b"    ", b"\t", b'"""', b")",
    b"import os", b"class KVCache: ...", b"def forward_extend(self): ...", b"self._create_buffers()", b"return",
    b"\xff", b"\\", b"\x00",
)  # fmt: skip


def insert(lines: Lines, at: int, word: bytes) -> Lines:
    return [*lines[:at], word + b"\n", *lines[at:]]


def indented(lines: Lines, at: int, word: bytes) -> Lines:
    space = lines[at][: len(lines[at]) - len(lines[at].lstrip(b" "))]
    return insert(lines, at, space + word)


def drop(lines: Lines, at: int, word: bytes) -> Lines:
    return [*lines[:at], *lines[at + 1 :]]


def double(lines: Lines, at: int, word: bytes) -> Lines:
    return [*lines[:at], lines[at], *lines[at:]]


def swap(lines: Lines, at: int, word: bytes) -> Lines:
    return [*lines[:at], *reversed(lines[at : at + 2]), *lines[at + 2 :]]


def cut(lines: Lines, at: int, word: bytes) -> Lines:
    return lines[: max(1, at)]


def carriage(lines: Lines, at: int, word: bytes) -> Lines:
    return [*lines[:at], lines[at].rstrip(b"\n") + b"\r\n", *lines[at + 1 :]]


EDITS: tuple[Callable[[Lines, int, bytes], Lines], ...] = (insert, indented, drop, double, swap, cut, carriage)
CHANGES = st.lists(
    st.tuples(st.sampled_from(EDITS), st.floats(0, 1, exclude_max=True), st.sampled_from(WORDS)), min_size=1, max_size=3
)


def compiles(data: bytes, path: str) -> bool:
    try:
        compile(data, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


@pytest.mark.parametrize("layout", forks.LAYOUTS.values(), ids=forks.LAYOUTS)
@settings(max_examples=40)
@given(path=st.sampled_from(MERGED), changes=CHANGES)
def test_a_changed_file_is_refused_or_merged_inside_its_blast_radius(
    layout: forks.Files, path: str, changes: list[tuple[Callable[[Lines, int, bytes], Lines], float, bytes]]
) -> None:
    lines = forks.encoded(layout)[path].splitlines(keepends=True)
    for edit, place, word in changes:
        lines = edit(lines, int(place * len(lines)), word)
    before = b"".join(lines)
    try:
        plan = plan_of({**forks.encoded(layout), path: before})
    except EschaOscarError as refused:
        assert refused.message and int(refused.exit_code) in (3, 4)
        return
    for file in plan.files:
        if file.change is Change.MERGE and file.before is not None:
            check_blast_radius(file.path, file.before, file.after, TOUCHES[file.path])
            assert compiles(file.after, file.path) or not compiles(file.before, file.path)
