"""A Python file as a module: byte for byte, or one error that names it."""

from __future__ import annotations

import libcst as cst
import pytest

from escha_oscar.errors import AnchorError
from escha_oscar.merge.python_file import parse

SNIPPETS = {
    "mixed carriage returns": b"a = 1\r\nb = 2\nc = 3\r\n",
    "a lone carriage return": b"a = 1\rb = 2\n",
    "an unparenthesised case": b"match x:\n    case a, b:\n        pass\n",
    "type parameters": b"def f[T](x: T) -> T:\n    return x\n",
    "a type statement": b"type X = int\n",
    "no final newline": b"a = 1",
    "nothing": b"",
    "a latin-1 cookie": "# coding: latin-1\nx = 'ß'\n".encode("latin-1"),
    "a byte order mark": b"\xef\xbb\xbfa = 1\n",
    "tabs": b"if a:\n\tb = 1\n",
}


@pytest.mark.parametrize("data", SNIPPETS.values(), ids=SNIPPETS)
def test_a_parsed_file_comes_back_byte_for_byte(data: bytes) -> None:
    assert parse(data, "x.py").bytes == data


def test_a_panic_of_the_parser_becomes_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """What the parser's native part raises."""

    def panic(data: bytes) -> cst.Module:
        raise PanicException("index out of range")

    monkeypatch.setattr(cst, "parse_module", panic)
    with pytest.raises(AnchorError, match="cannot be parsed") as caught:
        parse(b"a = 1\n", "x.py")
    assert caught.value.found == "PanicException"


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_a_stop_during_parsing_is_passed_on(signal: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(data: bytes) -> cst.Module:
        raise signal

    monkeypatch.setattr(cst, "parse_module", stop)
    with pytest.raises(signal):
        parse(b"a = 1\n", "x.py")
