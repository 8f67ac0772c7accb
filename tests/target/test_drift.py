"""Mapped files against RECORD: listed, hashed, and not as stated."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from escha_oscar.errors import TargetError
from escha_oscar.target import record
from escha_oscar.target.drift import compare, differing
from tests.support.wheels import SKELETON, make_site_packages

ENVIRON = "sglang/srt/environ.py"


@pytest.mark.parametrize(
    ("row", "as_stated"),
    [
        (f"a.py,{record.digest(b'x')},1", True),
        (f"./a.py,{record.digest(b'x')},1", True),
        (f"a.py,{record.digest(b'y')},1", False),
        ("a.py,,", True),
        (f"a.py,sha512={hashlib.sha512(b'y').hexdigest()},1", True),
        (f"b.py,{record.digest(b'x')},1", False),
    ],
    ids=["same", "same, another spelling", "another hash", "no hash", "a hash of another kind", "not listed"],
)
def test_a_file_differs_where_record_states_another_hash_or_does_not_list_it(row: str, as_stated: bool) -> None:
    assert differing(record.parse(f"{row}\n".encode()), {"a.py": b"x"}) == ([] if as_stated else ["a.py"])


def test_a_wheel_as_installed_has_no_differing_files(tmp_path: Path) -> None:
    site = make_site_packages(tmp_path, SKELETON)
    found = compare(site)
    assert found.differing == () and ENVIRON in found.listed
    (site / ENVIRON).write_bytes(b"edited\n")
    (site / "sglang/__init__.py").write_bytes(b"not mapped\n")
    assert compare(site).differing == (ENVIRON,)


def test_without_an_owner_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    with pytest.raises(TargetError, match="belongs to no distribution"):
        compare(tmp_path)
