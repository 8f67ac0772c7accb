"""Reading trees by relative path, from disk, from memory, and a plan laid over either."""

from __future__ import annotations

from pathlib import Path

import pytest

from escha_oscar.errors import TargetError
from escha_oscar.model import Change, Plan, PlannedFile, SourceId, Target
from escha_oscar.tree import DiskTree, Layered, MemoryTree, Tree, checked, first_existing, planned

FILES = {"sglang/a.py": b"a\r\n", "sglang/srt/b.py": b"\x80"}


@pytest.fixture(params=["disk", "memory"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    if request.param == "memory":
        return MemoryTree(FILES)
    for path, data in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    return DiskTree(tmp_path)


def test_bytes_come_as_they_are(tree: Tree) -> None:
    assert {path: tree.read(path) for path in FILES} == FILES


@pytest.mark.parametrize("path", ["sglang/c.py", "sglang", "sglang/srt", "sglang/a.py/x", "sgl"])
def test_what_is_no_file_has_no_bytes(tree: Tree, path: str) -> None:
    assert tree.read(path) is None


@pytest.mark.parametrize(
    ("path", "there"),
    [("sglang/a.py", True), ("sglang", True), ("sglang/srt", True), ("sglang/s", False), ("x", False)],
)
def test_files_and_folders_exist(tree: Tree, path: str, there: bool) -> None:
    assert tree.exists(path) is there


def test_the_first_file_of_several_is_found(tree: Tree) -> None:
    assert first_existing(tree, ["sglang/c.py", "sglang", "sglang/srt/b.py", "sglang/a.py"]) == "sglang/srt/b.py"
    assert first_existing(tree, ["sglang/c.py"]) is None
    assert first_existing(tree, []) is None


def test_a_layer_hides_what_is_below(tree: Tree) -> None:
    layered = Layered(MemoryTree({"sglang/a.py": b"new", "sglang/n/x.py": b""}), tree)
    assert layered.read("sglang/a.py") == b"new"
    assert layered.read("sglang/n/x.py") == b""
    assert layered.read("sglang/srt/b.py") == b"\x80"
    assert layered.read("none") is None
    assert layered.exists("sglang/n") and layered.exists("sglang/srt") and not layered.exists("none")


def test_a_plan_is_a_layer(tree: Tree) -> None:
    target = Target(Path("/x"), "escha", "1", Path("/x/i"), "escha-moe")
    files = (PlannedFile("sglang/a.py", Change.MERGE, b"a\r\n", b"merged"),)
    after = planned(Plan(target, SourceId("pr", "it"), "native", files), tree)
    assert after.read("sglang/a.py") == b"merged"
    assert after.read("sglang/srt/b.py") == b"\x80"


HOSTILE = ["/etc/passwd", "../x", "a/../../x", "a\\b", "C:/x", "a\0b", "", ".", "a/.."]


@pytest.mark.parametrize("path", HOSTILE)
def test_paths_that_could_leave_the_tree_are_refused(path: str, tmp_path: Path) -> None:
    for use in (checked, DiskTree(tmp_path).read, DiskTree(tmp_path).exists):
        with pytest.raises(TargetError, match="leaves the tree") as caught:
            use(path)
        assert caught.value.path == repr(path)


@pytest.mark.parametrize("path", ["a", "a/b.py", "a//b.py", "./a", "日本/x.py", "a..b", "...", "a b"])
def test_other_paths_pass(path: str) -> None:
    assert not checked(path).is_absolute()


def test_an_unreadable_file_is_an_error_of_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_bytes(b"x")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(TargetError, match="cannot read: Permission denied") as caught:
        DiskTree(tmp_path).read("a.py")
    assert caught.value.path == str(tmp_path / "a.py")
