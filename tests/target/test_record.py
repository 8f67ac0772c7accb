import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escha_oscar.errors import TargetError
from escha_oscar.target import record

OWN = b"escha-1.dist-info/RECORD,,\n"
ROW_A = b"sglang/a.py,sha256=ypeBEsobvcr6wjGzmiPcTaeG7_gUfE5yuYB3ha_uSLs,1\n"  # the content b"a"


def test_rows_are_read_with_their_bytes():
    data = b'"sglang/a,b.py",sha256=x,3\r\n\r\n../../bin/tool,,\n'
    entries = record.parse(data)
    assert [e.path for e in entries] == ["sglang/a,b.py", "", "../../bin/tool"]
    assert [e.line_end for e in entries] == [b"\r\n", b"\r\n", b"\n"]
    assert b"".join(e.raw for e in entries) == data


@pytest.mark.parametrize(
    ("data", "line"),
    [
        pytest.param(b"sglang/a.py,,\nsglang/b.py\n", 2, id="one field"),
        pytest.param(b"sglang/a.py,,,\n", 1, id="four fields"),
        pytest.param(b",sha256=x,1\n", 1, id="empty path"),
        pytest.param(b'sglang/a.py,,\n"sglang/b.py,,\n', 2, id="open quote"),
        pytest.param(b"sglang/a.py,,\n\xff.py,,\n", 2, id="not UTF-8"),
        pytest.param(b"sglang/a\0.py,,\n", 1, id="NUL"),
        pytest.param(b"a" * 200_000 + b",,\n", 1, id="endless field"),
    ],
)
def test_malformed_rows_are_named(data, line):
    with pytest.raises(TargetError) as caught:
        record.parse(data, name="/env/RECORD")
    assert (caught.value.path, caught.value.line) == ("/env/RECORD", line)


def test_a_new_row_goes_before_the_own_row():
    assert record.with_rows(OWN, {"sglang/a.py": b"a"}) == ROW_A + OWN


def test_new_rows_take_the_line_end_of_the_file():
    crlf = OWN.replace(b"\n", b"\r\n")
    assert record.with_rows(crlf, {"sglang/a.py": b"a"}) == ROW_A.replace(b"\n", b"\r\n") + crlf


def test_a_changed_file_gets_its_hash_and_the_rest_stays():
    before = b'"odd, name.py",,\r\nsglang/a.py,sha256=old,9\r\n../../bin/x,sha256=q,4\n' + OWN
    after = record.with_rows(before, {"sglang/a.py": b"a"})
    assert after == before.replace(b"sglang/a.py,sha256=old,9", ROW_A.strip())


def test_none_clears_hash_and_size():
    assert record.with_rows(ROW_A + OWN, {"sglang/a.py": None}) == b"sglang/a.py,,\n" + OWN


def test_a_second_run_changes_nothing():
    once = record.with_rows(OWN, {"sglang/a.py": b"a", "sglang/b,c.py": None})
    assert record.with_rows(once, {"sglang/a.py": b"a", "sglang/b,c.py": None}) == once


def test_a_row_spelled_in_another_way_is_the_same_row():
    assert record.with_rows(b"sglang/./a.py,,\n" + OWN, {"sglang/a.py": b"a"}).count(b"a.py") == 1


def test_rows_that_point_outside_are_neither_followed_nor_touched():
    outside = b"../../../etc/passwd,,\n/etc/passwd,,\nC:\\x,,\nsglang/../../y.py,,\n"
    assert record.owned(record.parse(outside + ROW_A)) == {"sglang/a.py"}
    assert record.with_rows(outside + OWN, {"sglang/a.py": b"a"}) == outside + ROW_A + OWN


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.py", "sglang/../../x.py", "a\\b", "c:x", "a\0b", ""])
def test_asking_for_a_path_outside_is_refused(path):
    with pytest.raises(TargetError):
        record.with_rows(OWN, {path: b""})
    with pytest.raises(TargetError):
        record.without(OWN, [path])


def test_the_own_row_is_never_hashed_or_dropped():
    assert record.with_rows(OWN, {"escha-1.dist-info/RECORD": b"x"}) == OWN
    assert record.without(ROW_A + OWN, ["escha-1.dist-info/RECORD", "sglang/a.py"]) == OWN


def test_without_a_final_newline_the_file_still_has_none():
    bare = b"sglang/z.py,,"
    added = record.with_rows(bare, {"sglang/a.py": b"a"})
    assert added == ROW_A + bare
    assert record.without(added, ["sglang/a.py"]) == bare


NAMES = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters='\0\\:/"\r\n'), min_size=1, max_size=8)
INSIDE = st.builds("sglang/{}.py".format, NAMES)
FOREIGN = st.one_of(INSIDE, st.sampled_from(["../../bin/x", "/abs", 'q"uote', "two\nlines", "a,b"]))
ROWS = st.lists(st.tuples(FOREIGN, st.sampled_from(["", "sha256=x"]), st.sampled_from(["", "7"])), max_size=8)


def rendered(rows, end, quoting, own):
    text = io.StringIO()
    csv.writer(text, lineterminator=end, quoting=quoting).writerows(rows + own)
    return text.getvalue().encode()


RECORDS = st.builds(
    rendered,
    ROWS,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from([[], [("e-1.dist-info/RECORD", "", "")]]),
)


@given(RECORDS, st.dictionaries(INSIDE, st.one_of(st.none(), st.binary(max_size=9)), max_size=4))
def test_other_rows_keep_their_bytes_and_their_order(data, rows):
    wanted = {record.normal(path) for path in rows}
    after = record.parse(record.with_rows(data, rows))
    before = record.parse(data)
    assert [e.raw for e in after if e.key not in wanted] == [e.raw for e in before if e.key not in wanted]
    for path, content in rows.items():
        found = [(e.digest, e.size) for e in after if e.key == record.normal(path)]
        expected = ("", "") if content is None else (record.digest(content), str(len(content)))
        assert found and set(found) == {expected}


@given(RECORDS, st.dictionaries(INSIDE, st.binary(max_size=9), max_size=4))
def test_adding_and_removing_gives_the_old_bytes(data, rows):
    present = record.owned(record.parse(data))
    new = {path: content for path, content in rows.items() if record.normal(path) not in present}
    assert record.without(record.with_rows(data, new), new) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        entries = record.parse(data)
    except TargetError:
        return
    assert b"".join(entry.raw for entry in entries) == data
