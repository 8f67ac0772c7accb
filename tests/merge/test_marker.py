"""The change notice that every merged file carries: where it stands, what it says, and that it stands once."""

from __future__ import annotations

import libcst as cst

from escha_oscar.merge.marker import is_marked, marker, with_marker


def test_the_marker_is_the_last_line_of_the_header_and_stands_once() -> None:
    module = cst.parse_module("#!/usr/bin/env python\n# 見出し\n\nimport os\n")
    assert not is_marked(module)
    once = with_marker(module, "its bundled implementation")
    line = marker("its bundled implementation")
    assert once.code == f"#!/usr/bin/env python\n# 見出し\n\n{line}\nimport os\n"
    assert is_marked(once)
    assert with_marker(once, "commit 1") is once


def test_the_marker_takes_the_line_ends_and_leaves_the_first_lines() -> None:
    data = b"\xef\xbb\xbf#!/usr/bin/env python\r\n# -*- coding: utf-8 -*-\r\nimport os\r\n"
    line = marker("commit 1").encode()
    assert with_marker(cst.parse_module(data), "commit 1").bytes == data.replace(b"import", line + b"\r\nimport")


def test_the_marker_names_the_pull_request_the_source_and_the_licence() -> None:
    text = marker("commit abc")
    for part in ("escha-oscar", "PR #32129", "commit abc", "Apache-2.0 section 4(b)"):
        assert part in text
    assert "\n" not in text
