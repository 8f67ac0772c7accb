"""Every write goes to a temporary file beside its target, and the target is never opened for writing."""

from __future__ import annotations

import ast
import errno
import os
from pathlib import Path

import pytest

from escha_oscar.disk import fsops
from escha_oscar.disk.fsops import Root, atomic_write
from escha_oscar.disk.image import ABSENT, Kind
from escha_oscar.errors import TargetError

SRC = Path(fsops.__file__).parents[1]


def test_atomic_write_makes_and_replaces_a_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    atomic_write(target, b"one")
    atomic_write(target, b"two")
    assert target.read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_atomic_write_keeps_the_mode_and_new_files_follow_the_umask(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    mask = os.umask(0o027)
    try:
        atomic_write(target, b"one")
    finally:
        os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o640
    target.chmod(0o755)
    atomic_write(target, b"two")
    assert target.stat().st_mode & 0o777 == 0o755
    atomic_write(target, b"three", mode=0o600)
    assert target.stat().st_mode & 0o777 == 0o600


def test_atomic_write_breaks_links_and_does_not_write_through_them(tmp_path: Path) -> None:
    real, hard, soft = tmp_path / "real", tmp_path / "hard", tmp_path / "soft"
    real.write_bytes(b"real")
    os.link(real, hard)
    soft.symlink_to(real)
    atomic_write(hard, b"new")
    atomic_write(soft, b"new")
    assert real.read_bytes() == b"real"
    assert not soft.is_symlink()


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.json"
    target.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_an_image_tells_files_links_and_nothing_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    root = Root(tmp_path)
    file, link, dangling = root.image("file"), root.image("link"), root.image("dangling")
    assert (file.kind, link.kind, dangling.kind) == (Kind.FILE, Kind.LINK, Kind.LINK)
    assert file.sha256 == link.sha256
    assert (link.link, dangling.sha256) == ("file", None)
    assert root.image("none") == root.image("no/such/folder") == ABSENT
    assert not file.same_content(link)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a folder"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "odd")
    with pytest.raises(TargetError, match="not a regular file"):
        Root(tmp_path).image("odd")


def test_a_link_to_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(TargetError, match="not a regular file"):
        Root(tmp_path).image("zero")


def test_a_very_large_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as stream:
        stream.truncate(fsops.MAX_BYTES + 1)
    with pytest.raises(TargetError, match="too large"):
        Root(tmp_path).image("big")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a\\x", "a\0x", ""])
def test_no_path_leaves_the_root(tmp_path: Path, path: str) -> None:
    root = Root(tmp_path / "inner")
    for work in (
        root.image,
        root.read,
        root.remove,
        lambda p: root.move(p, "x"),
        lambda p: root.create(p, b"", ABSENT),
    ):
        with pytest.raises(TargetError):
            work(path)


def test_a_folder_swapped_for_a_link_between_check_and_use_stops_the_write(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", Root(tmp_path / "root")
    outside.mkdir()
    root.path.mkdir()
    root.make_folder("sglang")
    image = root.new_file_like("sglang/a.py")
    root.full("sglang").rmdir()
    root.full("sglang").symlink_to(outside)
    for work in (
        lambda: root.create("sglang/a.py", b"x", image),
        lambda: root.move("sglang/a.py", "sglang/b.py"),
        lambda: root.remove("sglang/a.py"),
        lambda: root.make_folder("sglang/b"),
    ):
        with pytest.raises(TargetError, match="symbolic link"):
            work()
    assert list(outside.iterdir()) == []


def test_an_existing_file_is_never_created_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError) as caught:
        Root(tmp_path).create("a", b"new", ABSENT)
    assert caught.value.filename == str(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"old"


def test_only_fsops_renames_links_or_removes_through_os() -> None:
    """Writing into an environment has one house."""
    verbs = {"replace", "rename", "renames", "link", "symlink", "unlink", "remove", "truncate"}
    others = [path for path in SRC.rglob("*.py") if path.name != "fsops.py"]
    found = [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in others
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os" and node.attr in verbs
    ]
    assert found == []
