"""Small edits that transforms are made of: each takes a node and returns a new one, the rest stays untouched."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TypeVar

import libcst as cst

from escha_oscar import __version__
from escha_oscar.mapping import PIN
from escha_oscar.transforms._anchors import class_def, code, dotted, fields, method, nodes_of

NodeT = TypeVar("NodeT", bound=cst.CSTNode)
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


def marker(source: str) -> str:
    """Return the one comment line that every merged file carries (Apache-2.0 section 4(b) change notice)."""
    return (
        f"# Changed by escha-oscar {__version__}: OSCAR INT2 KV cache of sglang PR #{PIN.pull_request} merged in"
        f" ({source}); change notice of Apache-2.0 section 4(b)."
    )


def is_marked(module: cst.Module) -> bool:
    """Return whether the module's header carries the marker comment."""
    return any(_is_marker(line) for line in module.header)


def _is_marker(line: cst.EmptyLine) -> bool:
    text = line.comment.value if line.comment else ""
    return "escha-oscar" in text and f"PR #{PIN.pull_request}" in text


def with_marker(module: cst.Module, source: str) -> cst.Module:
    """Add the marker comment at the end of the module's header, once."""
    if is_marked(module):
        return module
    line = cst.EmptyLine(indent=False, comment=cst.Comment(marker(source)))
    return module.with_changes(header=[*module.header, line])


def parse_body(text: str, module: cst.Module) -> list[Statement]:
    """Parse dedented statements so that they take the module's indentation and line ends."""
    clean = textwrap.dedent(text).strip("\n") + "\n"
    newline = module.default_newline
    parsed = cst.parse_module(clean.replace("\n", newline), config=module.config_for_parsing)
    body = list(parsed.body)
    if parsed.header and body:
        body[0] = body[0].with_changes(leading_lines=[*parsed.header, *_leading(body[0])])
    return body


def _leading(node: cst.CSTNode) -> Sequence[cst.EmptyLine]:
    lines: Sequence[cst.EmptyLine] = getattr(node, "leading_lines", ())
    return lines


def spaced(node: NodeT, blank: int) -> NodeT:
    """Return ``node`` with ``blank`` empty lines before it and before its own comments."""
    kept = [line for line in _leading(node) if line.comment is not None]
    return node.with_changes(leading_lines=[*[cst.EmptyLine(indent=False)] * blank, *kept])


def replace_node(root: NodeT, old: cst.CSTNode, new: cst.CSTNode) -> NodeT:
    """Return ``root`` with the very object ``old`` replaced; nodes off the way to it stay the same objects."""
    changed = _replaced(root, old, new)
    assert changed is not None and isinstance(changed, type(root))
    return changed


def _replaced(node: cst.CSTNode, old: cst.CSTNode, new: cst.CSTNode) -> cst.CSTNode | None:
    """Return ``node`` rebuilt around ``new``, or None where ``old`` is not below it."""
    if node is old:
        return new
    for name, value in fields(node):
        for child in nodes_of(value):
            changed = _replaced(child, old, new)
            if changed is None:
                continue
            if isinstance(value, cst.CSTNode):
                return node.with_changes(**{name: changed})
            assert isinstance(value, list | tuple)
            return node.with_changes(**{name: [changed if item is child else item for item in value]})
    return None


def edit_class(module: cst.Module, name: str, path: str, edit: Callable[[cst.ClassDef], cst.ClassDef]) -> cst.Module:
    """Apply ``edit`` to one module-level class; every other statement stays the same object."""
    old = class_def(module, name, path)
    new = edit(old)
    return module.with_changes(body=[new if s is old else s for s in module.body])


def edit_method(
    owner: cst.ClassDef, name: str, path: str, edit: Callable[[cst.FunctionDef], cst.FunctionDef]
) -> cst.ClassDef:
    """Apply ``edit`` to one method of ``owner``."""
    old = method(owner, name, path)
    new = edit(old)
    body = owner.body.with_changes(body=[new if s is old else s for s in owner.body.body])
    return owner.with_changes(body=body)


def edit_function(
    module: cst.Module, old: cst.FunctionDef, edit: Callable[[cst.FunctionDef], cst.FunctionDef]
) -> cst.Module:
    """Apply ``edit`` to one module-level function."""
    new = edit(old)
    return module.with_changes(body=[new if s is old else s for s in module.body])


def add_methods(owner: cst.ClassDef, new: Sequence[cst.BaseStatement]) -> cst.ClassDef:
    """Append methods at the end of a class."""
    body = owner.body.with_changes(body=[*owner.body.body, *[spaced(m, 1) for m in new]])
    return owner.with_changes(body=body)


def body_of(function: cst.FunctionDef) -> list[cst.BaseStatement]:
    """Return the statements of a function with an indented body."""
    assert isinstance(function.body, cst.IndentedBlock)
    return list(function.body.body)


def with_body(function: cst.FunctionDef, statements: Sequence[cst.BaseStatement]) -> cst.FunctionDef:
    """Return ``function`` with other statements."""
    return function.with_changes(body=function.body.with_changes(body=list(statements)))


def prepend(function: cst.FunctionDef, new: Sequence[cst.BaseStatement]) -> cst.FunctionDef:
    """Put statements first in a function, after its docstring."""
    body = body_of(function)
    at = 1 if body and _is_docstring(body[0]) else 0
    return with_body(function, [*body[:at], *new, *body[at:]])


def _is_docstring(statement: cst.BaseStatement) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    return isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString | cst.ConcatenatedString)


def insert_before(
    function: cst.FunctionDef, anchor: cst.BaseStatement, new: Sequence[cst.BaseStatement]
) -> cst.FunctionDef:
    """Put statements right before the top-level statement ``anchor`` of a function."""
    body = body_of(function)
    at = next(i for i, s in enumerate(body) if s is anchor)
    # Blank lines and comments above the anchor stay above what is put before it.
    first = new[0].with_changes(leading_lines=_leading(anchor))
    return with_body(function, [*body[:at], first, *new[1:], anchor.with_changes(leading_lines=[]), *body[at + 1 :]])


def insert_after(
    function: cst.FunctionDef, anchor: cst.BaseStatement, new: Sequence[cst.BaseStatement]
) -> cst.FunctionDef:
    """Put statements right after the top-level statement ``anchor`` of a function."""
    body = body_of(function)
    at = next(i for i, s in enumerate(body) if s is anchor) + 1
    return with_body(function, [*body[:at], *new, *body[at:]])


def add_parameters(function: cst.FunctionDef, texts: Sequence[str]) -> cst.FunctionDef:
    """Append parameters (``name: type = default``) after the last plain one, in the layout of the list."""
    new = _parameters(texts)
    known = {p.name.value for p in (*function.params.params, *function.params.kwonly_params)}
    new = [p for p in new if p.name.value not in known]
    old = list(function.params.params)
    comma, trailing = _list_layout([p.comma for p in old])
    old[-1] = old[-1].with_changes(comma=comma)
    joined = [p.with_changes(comma=comma) for p in new[:-1]] + [p.with_changes(comma=trailing) for p in new[-1:]]
    return function.with_changes(params=function.params.with_changes(params=[*old, *joined]))


def _parameters(texts: Sequence[str]) -> list[cst.Param]:
    stub = cst.parse_statement(f"def f({', '.join(texts)}): ...\n")
    assert isinstance(stub, cst.FunctionDef)
    return list(stub.params.params)


def add_arguments(call: cst.Call, texts: Sequence[str]) -> cst.Call:
    """Append arguments (``name=value`` or ``**mapping``) to a call, in the layout of its argument list."""
    stub = cst.parse_expression(f"f({', '.join(texts)})")
    assert isinstance(stub, cst.Call)
    old = list(call.args)
    comma, trailing = _list_layout([a.comma for a in old])
    if old:
        old[-1] = old[-1].with_changes(comma=comma)
    new = list(stub.args)
    joined = [a.with_changes(comma=comma) for a in new[:-1]] + [a.with_changes(comma=trailing) for a in new[-1:]]
    return call.with_changes(args=[*old, *joined])


Comma = cst.Comma | cst.MaybeSentinel


def _list_layout(commas: Sequence[Comma]) -> tuple[Comma, Comma]:
    """Return the comma between two items and the one after the last, as the list is laid out."""
    plain = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if not commas:
        return plain, cst.MaybeSentinel.DEFAULT
    between = next((c for c in commas[:-1] if isinstance(c, cst.Comma)), plain)
    return between, commas[-1]


def add_element(array: cst.List, literal: str) -> cst.List:
    """Append a string literal to a list, in its layout, unless it is there."""
    texts = [code(e.value) for e in array.elements]
    if literal in texts or literal.replace('"', "'") in texts:
        return array
    comma, trailing = _list_layout([e.comma for e in array.elements])
    old = list(array.elements)
    old[-1] = old[-1].with_changes(comma=comma)
    new = cst.Element(cst.SimpleString(literal), comma=trailing)
    return array.with_changes(elements=[*old, new])


def ensure_imports(module: cst.Module, lines: Sequence[str]) -> cst.Module:
    """Add module-level import lines that are not there yet, after the last import of the head."""
    present = {code(s) for s in module.body if isinstance(s, cst.SimpleStatementLine)}
    new = sorted(line for line in set(lines) if line not in present and not _imports(module, line))
    new.sort(key=lambda line: not line.startswith("import "))
    if not new:
        return module
    at = _import_end(module)
    body = [*module.body[:at], *parse_body("\n".join(new), module), *module.body[at:]]
    return module.with_changes(body=body)


def _import_end(module: cst.Module) -> int:
    """Return the index after the last import of the module's head: docstring, ``__future__``, imports, bare strings."""
    end = 0
    for index, statement in enumerate(module.body):
        if _is_import(statement):
            end = index + 1
        elif not (isinstance(statement, cst.SimpleStatementLine) and _is_docstring(statement)):
            break
    return end if end else int(bool(module.body) and _is_docstring_at(module, 0))


def _is_docstring_at(module: cst.Module, index: int) -> bool:
    statement = module.body[index]
    return isinstance(statement, cst.SimpleStatementLine) and _is_docstring(statement)


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(part, cst.Import | cst.ImportFrom) for part in statement.body
    )


def _imports(module: cst.Module, line: str) -> bool:
    """Return whether the module already binds, by an import, every name that ``line`` would bind."""
    stub = cst.parse_module(line + "\n").body[0]
    wanted = set(bound_by_import(stub))
    have = {pair for s in module.body for pair in bound_by_import(s)}
    return bool(wanted) and wanted <= have


def bound_by_import(statement: cst.CSTNode) -> list[tuple[str, str]]:
    """Return ``(local name, what it is)`` for each name that a top-level import statement binds."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return []
    pairs: list[tuple[str, str]] = []
    for part in statement.body:
        if isinstance(part, cst.Import):
            pairs += [_bound(alias, "") for alias in part.names]
        elif isinstance(part, cst.ImportFrom) and not isinstance(part.names, cst.ImportStar):
            origin = "." * len(part.relative) + (dotted(part.module) if part.module else "" or "")  # type: ignore[operator]
            pairs += [_bound(alias, f"{origin}:") for alias in part.names]
    return pairs


def _bound(alias: cst.ImportAlias, prefix: str) -> tuple[str, str]:
    full = dotted(alias.name) or ""
    if alias.asname is not None:
        return code(alias.asname.name), prefix + full
    local = full if prefix else full.split(".")[0]
    return local, prefix + (full if prefix else local)
