from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from escha_oscar.errors import UsageError
from escha_oscar.serving import strict_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
SHARED_FOLDER = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SHARED_FOLDER
@given(root=st.dictionaries(st.text(max_size=4), VALUES, max_size=5), indent=st.sampled_from([None, 1]))
def test_whatever_json_writes_is_read_back(tmp_path: Path, root: dict[str, object], indent: int | None) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(root, indent=indent, ensure_ascii=False), encoding="utf-8", newline="")
    document = strict_json.load(path)
    assert document.root == root
    assert {at[0] for at in document.lines if len(at) == 1} == set(root)


@SHARED_FOLDER
@given(data=st.binary(max_size=60) | st.text('{}[]",:\\ \n1e-NaIfinty', max_size=60).map(str.encode))
def test_any_bytes_give_an_object_or_a_usage_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    try:
        document = strict_json.load(path)
    except UsageError as error:
        assert error.path == str(path)
    else:
        assert document.root == json.loads(data.decode("utf-8-sig"))


def test_lines_are_those_of_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{\n "a": {\n  "b": [1,\n   {"c": 2}]\n },\n "d": "x\\n\\"y"\n}')
    document = strict_json.load(path)
    assert document.lines == {("a",): 2, ("a", "b"): 3, ("a", "b", 1, "c"): 4, ("d",): 6}
    error = document.error(("a", "b", 0), "is odd")
    assert (error.line, error.message) == (3, "a.b[0]: is odd")


@pytest.mark.parametrize(("at", "text"), [((), "(root)"), (("a",), "a"), (("a", 3, "b"), "a[3].b"), ((0,), "[0]")])
def test_paths_are_dotted(at: strict_json.JsonPath, text: str) -> None:
    assert strict_json.dotted(at) == text


@pytest.mark.parametrize(
    ("value", "name"),
    [({}, "object"), ([], "array"), ("", "string"), (True, "boolean"), (None, "null"), (1.5, "number")],
)
def test_types_have_json_names(value: object, name: str) -> None:
    assert strict_json.type_name(value) == name
