"""Finding the one place that an edit belongs to: by structure, never by line or context.

Every finder matches exactly once or raises AnchorError with what was sought and what was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import libcst as cst

from escha_oscar.errors import AnchorError

Body = Sequence[cst.BaseStatement]
Definition = cst.FunctionDef | cst.ClassDef
NodeT = TypeVar("NodeT", bound=cst.CSTNode)


def one(found: Sequence[NodeT], sought: str, path: str, line: int | None = None) -> NodeT:
    """Return the only element of ``found``, or raise AnchorError saying how many there were."""
    if len(found) == 1:
        return found[0]
    raise AnchorError(
        "an anchor did not match exactly once",
        path=path,
        line=line,
        sought=sought,
        found="nothing" if not found else f"{len(found)} matches",
        hint="escha-oscar status (was the file edited? if not, report this with --json)",
    )


def definitions(module: cst.Module, name: str) -> list[Definition]:
    """Return the module-level functions and classes called ``name``."""
    return [s for s in module.body if isinstance(s, cst.FunctionDef | cst.ClassDef) and s.name.value == name]


def class_def(module: cst.Module, name: str, path: str) -> cst.ClassDef:
    """Return the one module-level class ``name``."""
    found = [d for d in definitions(module, name) if isinstance(d, cst.ClassDef)]
    return one(found, f"class {name}", path)


def function_def(module: cst.Module, name: str, path: str) -> cst.FunctionDef:
    """Return the one module-level function ``name``."""
    found = [d for d in definitions(module, name) if isinstance(d, cst.FunctionDef)]
    return one(found, f"def {name}", path, line_of(module, f"def {name}"))


def methods(owner: cst.ClassDef, name: str) -> list[cst.FunctionDef]:
    """Return the methods of ``owner`` called ``name``."""
    return [s for s in owner.body.body if isinstance(s, cst.FunctionDef) and s.name.value == name]


def method(owner: cst.ClassDef, name: str, path: str) -> cst.FunctionDef:
    """Return the one method ``name`` of ``owner``."""
    return one(methods(owner, name), f"{owner.name.value}.{name}", path)


def has_method(module: cst.Module, owner: str, name: str) -> bool:
    """Return whether class ``owner`` exists and has a method ``name``."""
    return any(isinstance(d, cst.ClassDef) and methods(d, name) for d in definitions(module, owner))


def find_all(root: cst.CSTNode, wanted: Callable[[cst.CSTNode], bool]) -> list[cst.CSTNode]:
    """Return every node below ``root`` (itself included) for which ``wanted`` is true, in source order."""
    found: list[cst.CSTNode] = []
    stack: list[cst.CSTNode] = [root]
    while stack:
        node = stack.pop()
        if wanted(node):
            found.append(node)
        stack.extend(reversed([child for _, value in fields(node) for child in nodes_of(value)]))
    return found


def fields(node: cst.CSTNode) -> Iterator[tuple[str, object]]:
    """Yield the fields of a node that can hold other nodes; ``node.children`` runs a whole visitor for the same."""
    for name in node.__dataclass_fields__:
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode | list | tuple):
            yield name, value


def nodes_of(value: object) -> list[cst.CSTNode]:
    """Return the nodes in one field: itself, or those of its sequence."""
    if isinstance(value, cst.CSTNode):
        return [value]
    return [item for item in value if isinstance(item, cst.CSTNode)] if isinstance(value, list | tuple) else []


def code(node: cst.CSTNode) -> str:
    """Return the node's source text without surrounding space; that of a simple statement without its comments."""
    if isinstance(node, cst.SimpleStatementLine):
        node = node.with_changes(leading_lines=[], trailing_whitespace=cst.TrailingWhitespace())
    return cst.Module(body=[]).code_for_node(node).strip()


def dotted(node: cst.CSTNode) -> str | None:
    """Return ``a.b.c`` for a chain of names, or None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr.value}" if left else None
    return None


def is_call_to(node: cst.CSTNode, name: str) -> bool:
    """Return whether ``node`` calls ``name`` (dotted, or the last part of it)."""
    called = dotted(node.func) if isinstance(node, cst.Call) else None
    return called is not None and (called == name or called.endswith(f".{name}"))


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """Return the keyword argument ``name`` of a call, or None."""
    return next((a for a in call.args if a.keyword is not None and a.keyword.value == name), None)


def string_value(node: cst.CSTNode | None) -> str | None:
    """Return the value of a plain string literal, or None."""
    if not isinstance(node, cst.SimpleString):
        return None
    value = node.evaluated_value
    return value if isinstance(value, str) else None


def line_of(module: cst.Module, text: str) -> int | None:
    """Return the first line that holds ``text``, for messages only."""
    match = re.search(re.escape(text), module.code)
    return None if match is None else module.code.count("\n", 0, match.start()) + 1
