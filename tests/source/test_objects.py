import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escha_oscar.errors import SourceError
from escha_oscar.source._objects import checked_object, object_id, parse_tree, tree_of_commit

ID = bytes(range(20))


def test_the_id_of_the_empty_blob_is_the_known_one():
    assert object_id("blob", b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def test_content_with_another_id_is_refused():
    with pytest.raises(SourceError) as caught:
        checked_object("blob", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", b"x")
    assert caught.value.found == hashlib.sha1(b"blob 1\0x").hexdigest()


def test_a_tree_is_read():
    data = b"100644 a.py\0" + ID + b"40000 dir\0" + ID + b"120000 l\0" + ID + b"100664 odd\0" + ID
    entries = parse_tree(data)
    assert [(name, entry.kind) for name, entry in entries.items()] == [
        ("a.py", "regular file"),
        ("dir", "directory"),
        ("l", "symbolic link"),
        ("odd", "mode 100664"),
    ]
    assert [entry.is_file for entry in entries.values()] == [True, False, False, False]
    assert entries["dir"].is_tree
    assert entries["a.py"].id == ID.hex()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"100644 a.py\0" + ID[:19], id="short id"),
        pytest.param(b"100644 a.py", id="no id"),
        pytest.param(b"100644", id="no name"),
        pytest.param(b" a.py\0" + ID, id="no mode"),
        pytest.param(b"100644 \0" + ID, id="empty name"),
        pytest.param(b"100644 ..\0" + ID, id="parent"),
        pytest.param(b"100644 a/b\0" + ID, id="slash"),
        pytest.param((b"100644 a\0" + ID) * 2, id="twice"),
    ],
)
def test_an_unsound_tree_is_refused(data):
    with pytest.raises(SourceError, match="malformed git tree"):
        parse_tree(data)


@given(st.binary(max_size=200))
def test_any_tree_bytes_are_read_or_refused(data):
    try:
        entries = parse_tree(data)
    except SourceError:
        return
    rebuilt = b"".join(
        entry.mode.encode() + b" " + name.encode("utf-8", "surrogateescape") + b"\0" + bytes.fromhex(entry.id)
        for name, entry in entries.items()
    )
    assert len(rebuilt) >= len(data)


@pytest.mark.parametrize("data", [b"", b"tree\n", b"tree " + b"g" * 40 + b"\n", b"parent " + b"0" * 40, b"\xff"])
def test_an_unsound_commit_is_refused(data):
    with pytest.raises(SourceError, match="malformed git commit"):
        tree_of_commit(data)
