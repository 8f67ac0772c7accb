"""The early int2 size in bases whose cell size has a file of its own."""

from __future__ import annotations

import pytest

from escha_oscar.model import Context
from escha_oscar.transforms import pool_configurator
from tests.support import forks
from tests.transforms.tools import check_already_applied, check_refuses, check_rewrites, edited

CONTEXT = Context(pool_configurator.TARGET)
BEFORE = forks.CONFIGURATOR_TEXT
DOCSTRING = '        """Return the bytes of one token."""\n'
EARLY = """\
        if mr.kv_cache_dtype == "int2":
            return mr._int2_cell_size(num_layers)
"""
AFTER = edited(BEFORE, (DOCSTRING, DOCSTRING + EARLY))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(BEFORE, AFTER, id="after the docstring, before the comment of the fork"),
        pytest.param(edited(BEFORE, (DOCSTRING, "")), edited(BEFORE, (DOCSTRING, EARLY)), id="no docstring"),
        pytest.param(
            BEFORE.replace("mr", "runner").replace("num_layers", "layers"),
            AFTER.replace("mr", "runner").replace("num_layers", "layers"),
            id="parameters of other names",
        ),
    ],
)
def test_rewrites(before: str, after: str) -> None:
    check_rewrites(pool_configurator, before, after, CONTEXT)


def test_already_applied() -> None:
    check_already_applied(pool_configurator, AFTER, CONTEXT)


@pytest.mark.parametrize(
    ("old", "new", "sought", "found"),
    [
        pytest.param("class DefaultPool", "class Pool", "class DefaultPoolConfigurator", "nothing", id="no such class"),
        pytest.param(
            "def _compute_cell_size", "def cell_size", "DefaultPoolConfigurator._compute_cell_size", "nothing",
            id="no such method",
        ),
        pytest.param(
            "(self, mr, num_layers: int)", "(self, num_layers: int)", "(self, runner, num_layers)",
            "['self', 'num_layers']", id="other parameters",
        ),
        pytest.param(
            "    def escha_reserve(self):", "    def _compute_cell_size(self, mr, num_layers):\n        pass\n\n"
            "    def escha_reserve(self):", "_compute_cell_size", "2 matches", id="defined twice",
        ),
    ],
)  # fmt: skip
def test_refuses(old: str, new: str, sought: str, found: str) -> None:
    check_refuses(pool_configurator, edited(BEFORE, (old, new)), CONTEXT, sought, found)
