"""Every transform keeps every byte that it does not edit: line ends, encodings, marks, odd white space, the end."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from collections.abc import Callable

import libcst as cst
import pytest

from escha_oscar.model import Context
from escha_oscar.transforms import (
    decode_attention,
    environ,
    kv_cache_mixin,
    memory_pool,
    model_runner,
    pool_configurator,
    schedule_policy,
    scheduler,
    server_args,
    triton_backend,
)
from tests.support import forks
from tests.transforms import (
    test_decode_attention,
    test_environ,
    test_kv_cache_mixin,
    test_memory_pool,
    test_model_runner,
    test_pool_configurator,
    test_server_args,
    test_triton_backend,
)
from tests.transforms.tools import edited, merged

CASES = [
    (server_args, forks.SERVER_ARGS_LIST, test_server_args.CONTEXT),
    (server_args, forks.SERVER_ARGS_ANNOTATED, test_server_args.CONTEXT),
    (model_runner, forks.RUNNER_TEXT, test_model_runner.CONTEXT),
    (kv_cache_mixin, forks.MIXIN_OLD, test_kv_cache_mixin.CONTEXT),
    (kv_cache_mixin, forks.MIXIN_NEW, test_kv_cache_mixin.CONTEXT),
    (pool_configurator, forks.CONFIGURATOR_TEXT, test_pool_configurator.CONTEXT),
    (memory_pool, forks.POOL_TEXT, test_memory_pool.CONTEXT),
    (triton_backend, forks.BACKEND_OLD, test_triton_backend.CONTEXT),
    (triton_backend, forks.BACKEND_NEW, test_triton_backend.CONTEXT),
    (decode_attention, forks.DECODE_TEXT, test_decode_attention.CONTEXT),
    (scheduler, forks.SCHEDULER_TEXT, Context(scheduler.TARGET)),
    (schedule_policy, forks.POLICY_TEXT, Context(schedule_policy.TARGET)),
    (environ, forks.ENVIRON_TEXT, test_environ.CONTEXT),
]
every_transform = pytest.mark.parametrize(
    ("transform", "text", "context"),
    CASES,
    ids=[f"{t.__name__.rpartition('.')[2]}-{i}" for i, (t, _, _) in enumerate(CASES)],
)


def latin(text: str) -> str:
    """Return ``text`` with a coding line and without what latin-1 cannot hold."""
    return "# -*- coding: latin-1 -*-\n" + text.encode("latin-1", errors="replace").decode("latin-1") + "# Größe\n"


#: name -> how a text is written to disk in another shape that means the same.
SHAPES: dict[str, Callable[[str], bytes]] = {
    "carriage returns": lambda text: text.replace("\n", "\r\n").encode(),
    "byte order mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "latin-1 cookie": lambda text: latin(text).encode("latin-1"),
    "tabs": lambda text: text.replace("    ", "\t").encode(),
    "a form feed on a line of its own": lambda text: text.replace("\n\n\nclass ", "\n\x0c\n\nclass ", 1).encode(),
    "trailing blanks": lambda text: text.replace(":\n", ":  \n").encode(),
}


@every_transform
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_merge_of_a_shape_is_the_shape_of_the_merge(
    shape: Callable[[str], bytes], transform: object, text: str, context: Context
) -> None:
    before = shape(text)
    assert cst.parse_module(before).bytes == before
    after = merged(transform, before, context)  # type: ignore[arg-type]
    plain = merged(transform, text.encode(), context).decode()  # type: ignore[arg-type]
    if shape is SHAPES["trailing blanks"]:
        # New lines have no blanks at their ends.
        assert [line.strip() for line in after.decode().splitlines()] == [line.strip() for line in plain.splitlines()]
    else:
        assert after == shape(plain)


@every_transform
def test_a_missing_final_newline_stays_missing_or_is_only_added(transform: object, text: str, context: Context) -> None:
    after = merged(transform, text.rstrip("\n").encode(), context)  # type: ignore[arg-type]
    plain = merged(transform, text.encode(), context)  # type: ignore[arg-type]
    assert after == plain or after + b"\n" == plain


def test_mixed_line_ends_stay_mixed() -> None:
    text = edited(forks.RUNNER_TEXT, ("    def escha_warmup(self):\n", "    def escha_warmup(self):\r\n"))
    after = merged(model_runner, text.encode(), test_model_runner.CONTEXT)
    assert after.count(b"\r\n") == 1 and b"def escha_warmup(self):\r\n" in after


def inside_strings(text: str) -> set[int]:
    """Return the numbers of lines that begin or end inside a string of several lines."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = [(t.start[0], t.end[0]) for t in tokens if t.type == tokenize.STRING and t.start[0] != t.end[0]]
    return {number for first, last in spans for number in range(first, last + 1)}


def commented(text: str) -> str:
    """Put a remark on a line of its own before every line, and another at the end of every line without one."""
    skip = inside_strings(text)
    out = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line and number not in skip:
            indent = line[: len(line) - len(line.lstrip())]
            out.append(f"{indent}# 前{number}")
            line += "" if "#" in line else f"  # 後{number}"
        out.append(line)
    return "\n".join(out) + "\n"


def without_remarks(text: str) -> list[str]:
    return [re.sub(r" *# 後\d+", "", line) for line in text.splitlines() if not re.fullmatch(r" *# 前\d+", line)]


@every_transform
def test_remarks_at_every_line_are_no_obstacle_and_stay_in_their_order(
    transform: object, text: str, context: Context
) -> None:
    before = commented(text)
    after = merged(transform, before.encode(), context).decode()  # type: ignore[arg-type]
    plain = merged(transform, text.encode(), context).decode()  # type: ignore[arg-type]
    assert without_remarks(after) == plain.splitlines()
    remarks = re.compile(r"# [前後]\d+")
    assert remarks.findall(after) == remarks.findall(before)
