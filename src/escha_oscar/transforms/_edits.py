"""Small edits that transforms are made of: each takes a node and returns a new one, the rest stays untouched."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import libcst as cst

from escha_oscar.model import Graft
from escha_oscar.transforms._anchors import class_def, code, definitions, dotted, fields, method, nodes_of

NodeT = TypeVar("NodeT", bound=cst.CSTNode)
#: How the texts that transforms insert are indented.
INDENT = "    "
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


def parse_body(text: str, module: cst.Module) -> list[Statement]:
    """Parse statements, dedented or not, so that they take the module's indentation and line ends."""
    # Text without an indent stays as it is: dedenting would empty blank lines inside its strings.
    clean = (textwrap.dedent(text) if text.lstrip("\n")[:1].isspace() else text).strip("\n") + "\n"
    newline = module.default_newline
    parsed = cst.parse_module(clean.replace("\n", newline), config=module.config_for_parsing)
    if module.default_indent != INDENT:
        parsed = parsed.visit(_Continued(module.default_indent))
    body = list(parsed.body)
    if parsed.header and body:
        body[0] = body[0].with_changes(leading_lines=[*parsed.header, *_leading(body[0])])
    return body


class _Continued(cst.CSTTransformer):
    """Indents the lines inside brackets as the module does; blocks take its indentation by themselves."""

    def __init__(self, indent: str) -> None:
        super().__init__()
        self.indent = indent

    def leave_ParenthesizedWhitespace(  # noqa: N802 - libcst calls it by this name
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        """Replace each four spaces before a line, or before a comment on a line of its own."""
        empty = [line.with_changes(whitespace=self._fitted(line.whitespace)) for line in updated_node.empty_lines]
        return updated_node.with_changes(empty_lines=empty, last_line=self._fitted(updated_node.last_line))

    def _fitted(self, space: cst.SimpleWhitespace) -> cst.SimpleWhitespace:
        return cst.SimpleWhitespace(space.value.replace(INDENT, self.indent))


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


def add_functions(module: cst.Module, owner: str, grafts: Iterable[Graft], path: str) -> cst.Module:
    """Put those grafts that belong in no class right before class ``owner``; names that the module has are left."""
    plain = [g for g in grafts if "." not in g.name and not definitions(module, g.name)]
    place = class_def(module, owner, path)
    at = next(i for i, statement in enumerate(module.body) if statement is place)
    new = [spaced(parse_body(graft.text, module)[0], 2) for graft in plain]
    return module.with_changes(body=[*module.body[:at], *new, *module.body[at:]])


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
    known = {p.name.value for p in (*function.params.params, *function.params.kwonly_params)}
    new = [p for p in _parameters(texts) if p.name.value not in known]
    params = _appended(function.params.params, new)
    return function.with_changes(params=function.params.with_changes(params=params))


def _parameters(texts: Sequence[str]) -> list[cst.Param]:
    stub = cst.parse_statement(f"def f({', '.join(texts)}): ...\n")
    assert isinstance(stub, cst.FunctionDef)
    return list(stub.params.params)


def add_arguments(call: cst.Call, texts: Sequence[str]) -> cst.Call:
    """Append arguments (``name=value`` or ``**mapping``) to a call, in the layout of its argument list."""
    stub = cst.parse_expression(f"f({', '.join(texts)})")
    assert isinstance(stub, cst.Call)
    return call.with_changes(args=_appended(call.args, stub.args))


def add_element(array: cst.List, literal: str) -> cst.List:
    """Append a string literal to a list, in its layout, unless it is there."""
    texts = [code(e.value) for e in array.elements]
    if literal in texts or literal.replace('"', "'") in texts:
        return array
    return array.with_changes(elements=_appended(array.elements, [cst.Element(cst.SimpleString(literal))]))


Item = cst.Param | cst.Arg | cst.BaseElement
#: Where an item without a comma after it keeps the space before the closing bracket.
_CLOSING: dict[type[cst.CSTNode], str] = {cst.Param: "whitespace_after_param", cst.Arg: "whitespace_after_arg"}
_NO_SPACE = cst.SimpleWhitespace("")


def _appended(old: Sequence[Item], new: Sequence[Item]) -> list[Item]:
    """Return both in the layout of the old items; each comment stays beside the item that it stands at."""
    if not old or not new:
        return [*old, *new]
    commas = [item.comma for item in old[:-1] if isinstance(item.comma, cst.Comma)]
    space = _bare(commas[0].whitespace_after if commas else cst.SimpleWhitespace(" "))
    last, end = _opened(old[-1])
    held = space
    if isinstance(space, cst.ParenthesizedWhitespace) and isinstance(end, cst.ParenthesizedWhitespace):
        held, end = space.with_changes(first_line=end.first_line), end.with_changes(first_line=space.first_line)
    joined = [item.with_changes(comma=_comma(space)) for item in new[:-1]]
    final = _closed(new[-1], end, isinstance(old[-1].comma, cst.Comma))
    return [*old[:-1], last.with_changes(comma=_comma(held)), *joined, final]


def _opened(item: Item) -> tuple[Item, cst.BaseParenthesizableWhitespace]:
    """Return the last item of a list without the space before the closing bracket, and that space."""
    if isinstance(item.comma, cst.Comma):
        return item, item.comma.whitespace_after
    name = _CLOSING.get(type(item))
    if name is None:
        return item, _NO_SPACE
    space: cst.BaseParenthesizableWhitespace = getattr(item, name)
    return item.with_changes(**{name: _NO_SPACE}), space


def _closed(item: Item, end: cst.BaseParenthesizableWhitespace, with_comma: bool) -> Item:
    """Return an item as the last of its list: ``end`` is the space before the closing bracket."""
    if with_comma:
        return item.with_changes(comma=_comma(end))
    name = _CLOSING.get(type(item))
    return item.with_changes(comma=cst.MaybeSentinel.DEFAULT, **({name: end} if name else {}))


def _comma(space: cst.BaseParenthesizableWhitespace) -> cst.Comma:
    return cst.Comma(whitespace_after=space)


def _bare(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """Return the space without its comments."""
    if isinstance(space, cst.ParenthesizedWhitespace):
        return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return space


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
