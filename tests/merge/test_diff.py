"""Plans as unified diffs: what ``patch -p1`` makes of them is the plan."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from escha_oscar.merge.diff import line_counts, unified
from escha_oscar.model import Change, Plan, PlannedFile, SourceId, Target

FILES = {
    "a line more": (b"a\nb\n", b"a\nx\nb\n"),
    "a new file": (None, b"a\nb\n"),
    "no final newline before": (b"a\nb", b"a\nb\nc\n"),
    "no final newline after": (b"a\nb\n", b"a\nb\nc"),
    "no final newline at all": (b"a\nb", b"x\nb"),
    "carriage returns": (b"a\r\nb\r\n", b"a\r\nx\r\nb\r\n"),
    "latin-1": (b"# \xe4\n", b"# \xe4\n# \xf6\n"),
    "neither utf-8 nor a final newline": (b"\xff\x00\n\xfe", b"\xff\x00\n\xfe\xfd"),
    "tabs": (b"\tif a:\n\t\tb\n", b"\tif a:\n\t\tc(\n\t\t\td\n\t\t)\n"),
    "separators inside lines": ("a\x0c\nb\u2028c\x1d\n".encode(), "a\x0c\nb\u2028c\x1d\nd\n".encode()),
    "two places far apart": (
        b"".join(b"%d\n" % i for i in range(40)),
        b"".join(b"%d\n" % i for i in range(40) if i not in (3, 30)),
    ),
    "a changed dashed line": (b"-- a\n++ b\n", b"-- a\n++ c\n"),
}


def plan(*files: PlannedFile) -> Plan:
    return Plan(Target(Path("/x"), "escha", "1", Path("/x/i"), "escha-moe"), SourceId("pr", "it"), "native", files)


def planned(name: str) -> PlannedFile:
    before, after = FILES[name]
    return PlannedFile(f"sglang/{name.replace(' ', '_')}.py", Change.MERGE, before, after)


#: git is always there, patch on most machines.
TOOLS = {
    command[0]: command
    for command in (["git", "apply", "--whitespace=nowarn"], ["patch", "-p1", "--silent", "--binary"])
    if shutil.which(command[0])
}


@pytest.mark.parametrize("command", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize("name", FILES)
def test_tools_make_of_the_diff_what_was_planned(name: str, command: list[str], tmp_path: Path) -> None:
    file = planned(name)
    target = tmp_path / file.path
    target.parent.mkdir()
    if file.before is not None:
        target.write_bytes(file.before)
    subprocess.run(command, cwd=tmp_path, input=unified(plan(file)), check=True)
    assert target.read_bytes() == file.after


def test_files_follow_each_other_with_git_style_names() -> None:
    text = unified(plan(planned("a line more"), planned("a new file"))).decode()
    assert [line for line in text.splitlines() if line.startswith(("---", "+++"))] == [
        "--- a/sglang/a_line_more.py",
        "+++ b/sglang/a_line_more.py",
        "--- /dev/null",
        "+++ b/sglang/a_new_file.py",
    ]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("a line more", (1, 0)),
        ("a new file", (2, 0)),
        ("no final newline at all", (1, 1)),
        ("two places far apart", (0, 2)),
        ("a changed dashed line", (1, 1)),
    ],
)
def test_lines_are_counted(name: str, counts: tuple[int, int]) -> None:
    assert line_counts(planned(name)) == counts


def test_an_unchanged_file_has_no_diff() -> None:
    file = PlannedFile("sglang/x.py", Change.MERGE, b"a\n", b"a\n")
    assert unified(plan(file)) == b""
    assert line_counts(file) == (0, 0)


@pytest.mark.parametrize("command", TOOLS.values(), ids=TOOLS)
def test_a_new_empty_file_has_a_diff_that_makes_it(command: list[str], tmp_path: Path) -> None:
    file = PlannedFile("sglang/QuantKernel/__init__.py", Change.CREATE, None, b"")
    subprocess.run(command, cwd=tmp_path, input=unified(plan(file, planned("a new file"))), check=True)
    assert (tmp_path / file.path).read_bytes() == b""
