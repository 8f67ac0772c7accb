"""The journal says everything or nothing, and names only paths that this tool writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escha_oscar.disk import journal
from escha_oscar.disk.image import ABSENT, Image, Kind
from escha_oscar.disk.journal import Journal, Step
from escha_oscar.disk.layout import STATE_FILE, allowed
from escha_oscar.errors import RecoveryError, TargetError

FILE = Image(Kind.FILE, "ab" * 32, 3, 0o644, 0, 0, 17, None, 2)
LINK = Image(Kind.LINK, None, 0, 0o777, 0, 0, 17, "../cache/x.py", 1)
COMMIT = Step(STATE_FILE, ABSENT, FILE)
WHOLE = Journal(
    "0123456789ab", "integrate", (Step("sglang/a.py", LINK, FILE), COMMIT), ("sglang/new",), ("sglang/old",)
)


def test_it_reads_back_as_written() -> None:
    assert journal.decode(journal.encode(WHOLE)) == WHOLE


@given(st.integers(0, len(journal.encode(WHOLE)) - 1))
def test_cut_anywhere_it_is_refused(length: int) -> None:
    with pytest.raises(RecoveryError, match="damaged"):
        journal.decode(journal.encode(WHOLE)[:length])


@given(st.integers(0, len(journal.encode(WHOLE)) - 1), st.integers(1, 255))
def test_with_any_byte_changed_it_is_refused(at: int, mask: int) -> None:
    data = bytearray(journal.encode(WHOLE))
    data[at] ^= mask
    with pytest.raises(RecoveryError, match="damaged"):
        journal.decode(bytes(data))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_without_a_traceback(data: bytes) -> None:
    with pytest.raises(RecoveryError, match="damaged"):
        journal.decode(data)


@pytest.mark.parametrize("path", ["../x.py", "/x.py", "x.pth", "sglang/x.so", "sglang/../x.py", ".escha-oscar/lock"])
def test_a_step_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(RecoveryError):
        journal.decode(journal.encode(Journal("0123456789ab", "revert", (Step(path, FILE, ABSENT), COMMIT))))


def test_a_journal_without_commit_is_refused() -> None:
    with pytest.raises(RecoveryError):
        journal.decode(journal.encode(Journal("0123456789ab", "revert", (Step("sglang/a.py", FILE, ABSENT),))))


def test_a_transaction_id_that_is_a_path_is_refused() -> None:
    with pytest.raises(RecoveryError):
        journal.decode(journal.encode(Journal("../../../etc", "revert", WHOLE.steps)))


@pytest.mark.parametrize(
    "path",
    [
        "sglang/a.py",
        "sglang/b/c.json",
        "escha-1.0.2+qwen3moe.dist-info/RECORD",
        "sglang/b/__pycache__/a.cpython-312.pyc",
    ],
)
def test_paths_that_this_tool_writes_are_allowed(path: str) -> None:
    assert allowed(path) == path


@given(st.text(max_size=60))
def test_any_other_text_is_refused_or_stays_below_the_package(path: str) -> None:
    try:
        allowed(path)
    except TargetError:
        return
    assert path.startswith("sglang/") or path.endswith(".dist-info/RECORD")
    assert ".." not in path.split("/")
