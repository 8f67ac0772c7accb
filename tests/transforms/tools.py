"""What the tests of transforms share: run one as the plan does, twice, inside its declared blast radius."""

from __future__ import annotations

import ast
from types import ModuleType

import libcst as cst
import pytest

from escha_oscar.errors import AnchorError
from escha_oscar.merge.blast import check_blast_radius
from escha_oscar.model import Chosen, Context, Graft


def chosen(grafts: dict[str, str], *, helpers: dict[str, str] | None = None, imports: tuple[str, ...] = ()) -> Chosen:
    """Return what a merged file receives, as the plan would hand it over."""
    made = {name: Graft(name, text, "glue") for name, text in grafts.items()}
    return Chosen(made, tuple(Graft(name, text, "glue") for name, text in (helpers or {}).items()), imports)


def edited(text: str, *pairs: tuple[str, str]) -> str:
    """Return ``text`` with each old part, which must stand there exactly once, replaced."""
    for old, new in pairs:
        assert text.count(old) == 1, f"{text.count(old)} x {old!r}"
        text = text.replace(old, new)
    return text


def merged(transform: ModuleType, source: bytes, context: Context) -> bytes:
    """Run ``transform``; the result compiles, a second run changes nothing, and no edit lies outside ``TOUCHES``."""
    after = cst.parse_module(source)
    after_bytes = transform.transform(after, context).bytes
    ast.parse(after_bytes)
    again = transform.transform(cst.parse_module(after_bytes), context).bytes
    assert again == after_bytes, "a second run changed something"
    check_blast_radius(context.path, source, after_bytes, transform.TOUCHES)
    return bytes(after_bytes)


def check_rewrites(transform: ModuleType, before: str, after: str, context: Context) -> None:
    """Assert the whole text that comes out."""
    compile(after, context.path, "exec", dont_inherit=True)
    assert merged(transform, before.encode(), context).decode() == after


def check_already_applied(transform: ModuleType, text: str, context: Context) -> None:
    """Assert that a text that holds the edit comes back as it is."""
    assert transform.transform(cst.parse_module(text), context).code == text


def check_refuses(transform: ModuleType, text: str, context: Context, sought: str, found: str) -> None:
    """Assert that nothing comes out, and that the error says where, what was sought and what was there."""
    compile(text, context.path, "exec", dont_inherit=True)
    with pytest.raises(AnchorError) as caught:
        transform.transform(cst.parse_module(text), context)
    assert caught.value.path == context.path
    assert sought in str(caught.value.sought)
    assert found in str(caught.value.found)
