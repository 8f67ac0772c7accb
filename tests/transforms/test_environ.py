"""``class Envs`` gets its missing fields, at its end and only there."""

from __future__ import annotations

import pytest

from escha_oscar.model import Context
from escha_oscar.transforms import environ
from tests.support import forks
from tests.transforms.tools import check_already_applied, check_refuses, check_rewrites, edited

CONTEXT = Context(environ.TARGET, extra_env={"SGLANG_LLOYD_MAX": "EnvBool(False)", "SGLANG_A_PATH": 'EnvStr("")'})

FIELDS = """
    # OSCAR INT2 KV cache
    SGLANG_LLOYD_MAX = EnvBool(False)
    SGLANG_A_PATH = EnvStr("")
"""
LAST = "        raise AttributeError(name)\n"


def test_rewrites_fields_after_the_forks_own() -> None:
    check_rewrites(environ, forks.ENVIRON_TEXT, edited(forks.ENVIRON_TEXT, (LAST, LAST + FIELDS)), CONTEXT)


def test_rewrites_only_the_fields_that_are_missing() -> None:
    before = edited(forks.ENVIRON_TEXT, (LAST, LAST + "    SGLANG_LLOYD_MAX = EnvBool(True)  # フォークの既定値\n"))
    after = edited(
        before,
        (
            "# フォークの既定値\n",
            '# フォークの既定値\n\n    # OSCAR INT2 KV cache\n    SGLANG_A_PATH = EnvStr("")\n',
        ),
    )
    check_rewrites(environ, before, after, CONTEXT)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(edited(forks.ENVIRON_TEXT, (LAST, LAST + FIELDS)), id="written by an earlier run"),
        pytest.param(
            "class Envs:\n    SGLANG_A_PATH = SGLANG_LLOYD_MAX = EnvBool(False)\n", id="both in one statement"
        ),
    ],
)
def test_already_applied(text: str) -> None:
    check_already_applied(environ, text, CONTEXT)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("class Environment:\n    pass\n", "nothing", id="no such class"),
        pytest.param("class Envs:\n    pass\n\nclass Envs:\n    pass\n", "2 matches", id="two such classes"),
        pytest.param("def Envs():\n    pass\n", "nothing", id="a function of that name"),
    ],
)
def test_refuses(text: str, found: str) -> None:
    check_refuses(environ, text, CONTEXT, "class Envs", found)
