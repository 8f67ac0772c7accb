"""The int2 arm of the dtype choice stands before the arm that refuses, after every arm of the fork."""

from __future__ import annotations

import pytest

from escha_oscar.model import Context
from escha_oscar.transforms import model_runner
from tests.support import forks
from tests.transforms.tools import check_already_applied, check_refuses, check_rewrites, chosen, edited

METHOD = 'def _configure_int2_kv_cache(self) -> str:\n    return "int2"\n'
CONTEXT = Context(model_runner.TARGET, chosen({"ModelRunner._configure_int2_kv_cache": METHOD}))

BEFORE = forks.RUNNER_TEXT
ARM = """\
        elif self.server_args.kv_cache_dtype == "int2":
            self.kv_cache_dtype = self._configure_int2_kv_cache()
"""
LAST_ARM = "            self.kv_cache_dtype = torch.float8_e4m3fn\n"
LAST_METHOD = "    def escha_warmup(self):\n        return self.kv_cache_dtype\n"
AFTER = edited(
    BEFORE,
    (LAST_ARM, LAST_ARM + ARM),
    (LAST_METHOD, f'{LAST_METHOD}\n    def _configure_int2_kv_cache(self) -> str:\n        return "int2"\n'),
)
#: A dtype choice of another kind beside it, which refuses nothing.
HARMLESS = """\
        if self.kv_cache_dtype is None:
            pass
        else:
            self.kv_cache_dtype = self.dtype
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(BEFORE, AFTER, id="a chain with an arm of the fork"),
        pytest.param(
            edited(BEFORE, (LAST_ARM, LAST_ARM + "        # 未対応\n")),
            edited(AFTER, (ARM, ARM + "        # 未対応\n")),
            id="a comment stays with the last else",
        ),
        pytest.param(
            edited(BEFORE, ("\n    def escha_warmup", HARMLESS + "\n    def escha_warmup")),
            edited(AFTER, ("\n    def escha_warmup", HARMLESS + "\n    def escha_warmup")),
            id="a second choice that does not refuse",
        ),
    ],
)
def test_rewrites(before: str, after: str) -> None:
    check_rewrites(model_runner, before, after, CONTEXT)


def test_already_applied() -> None:
    check_already_applied(model_runner, AFTER, CONTEXT)


@pytest.mark.parametrize(
    ("old", "new", "sought", "found"),
    [
        pytest.param("class ModelRunner(", "class Runner(", "class ModelRunner", "nothing", id="no such class"),
        pytest.param(
            "def configure_kv_cache_dtype", "def configure_dtype", "ModelRunner.configure_kv_cache_dtype", "nothing",
            id="no such method",
        ),
        pytest.param(
            "            raise ValueError(\n", "            logger.warning(\n", "before else: raise", "nothing",
            id="unknown dtypes are not refused",
        ),
        pytest.param(
            "        if self.server_args.kv_cache_dtype ==",
            "        if self.kv_cache_dtype:\n            pass\n        else:\n            raise ValueError\n"
            "        if self.server_args.kv_cache_dtype ==",
            "the last elif on kv_cache_dtype", "2 matches",
            id="two chains that refuse",
        ),
        pytest.param(
            "    def escha_warmup(self):",
            "    def configure_kv_cache_dtype(self):\n        pass\n\n    def escha_warmup(self):",
            "ModelRunner.configure_kv_cache_dtype", "2 matches",
            id="the method is defined twice",
        ),
    ],
)  # fmt: skip
def test_refuses(old: str, new: str, sought: str, found: str) -> None:
    check_refuses(model_runner, edited(BEFORE, (old, new)), CONTEXT, sought, found)
