"""Adds the ``int2`` choice, ``--kv-cache-quant-group-size`` with its field, and the start-up check of both."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from escha_oscar.errors import AnchorError
from escha_oscar.model import Context
from escha_oscar.transforms._anchors import (
    class_def,
    code,
    find_all,
    has_method,
    is_call_to,
    keyword,
    one,
    string_value,
)
from escha_oscar.transforms._edits import (
    add_element,
    add_methods,
    edit_class,
    edit_method,
    parse_body,
    prepend,
    replace_node,
)

TARGET = "sglang/srt/server_args.py"
TOUCHES = (
    "<choice>",
    "ServerArgs",
    "ServerArgs.add_cli_args",
    "ServerArgs.check_server_args",
    "ServerArgs._check_int2_kv_cache",
)

_HELP = (
    "Head dimensions that share one scale and zero of the int2 KV cache; must divide head_dim. Default: the whole head."
)
_FLAG = f"""
parser.add_argument(
    "--kv-cache-quant-group-size",
    type=int,
    default=ServerArgs.kv_cache_quant_group_size,
    help="{_HELP}",
)
"""


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Add the choice, the option, the field and the check; the base's own form of options decides how."""
    if has_method(module, "ServerArgs", "_check_int2_kv_cache"):
        return module
    field = _dtype_field(class_def(module, "ServerArgs", ctx.path), ctx.path)
    annotated = isinstance(field.annotation.annotation, cst.Subscript)
    module = _add_choice(module, field if annotated else None, ctx.path)
    if not annotated:
        module = _add_flag(module, ctx.path)
    module = edit_class(module, "ServerArgs", ctx.path, lambda c: _add_field(c, module, ctx.path))
    return edit_class(module, "ServerArgs", ctx.path, lambda c: _add_check(c, module, ctx))


def _dtype_field(owner: cst.ClassDef, path: str) -> cst.AnnAssign:
    parts = [p for s in owner.body.body if isinstance(s, cst.SimpleStatementLine) for p in s.body]
    found = [p for p in parts if isinstance(p, cst.AnnAssign) and code(p.target) == "kv_cache_dtype"]
    return one(found, "field kv_cache_dtype of ServerArgs", path)


def _add_choice(module: cst.Module, field: cst.AnnAssign | None, path: str) -> cst.Module:
    """Append "int2" to the choices of --kv-cache-dtype, wherever the base lists them."""
    owner = class_def(module, "ServerArgs", path)
    call = _field_call(field, path) if field is not None else _option_call(owner, path)
    choices = keyword(call, "choices")
    if choices is not None and isinstance(choices.value, cst.List):
        old = choices.value
        return edit_class(module, "ServerArgs", path, lambda c: replace_node(c, old, add_element(old, '"int2"')))
    if choices is not None and isinstance(choices.value, cst.Name):
        return _add_to_constant(module, choices.value.value, path)
    raise AnchorError(
        "--kv-cache-dtype has no list of choices", path=path, sought="choices=[...]", found=code(call)[:60]
    )


def _option_call(owner: cst.ClassDef, path: str) -> cst.Call:
    calls = find_all(owner, lambda n: is_call_to(n, "add_argument"))
    found = [
        c for c in calls if isinstance(c, cst.Call) and c.args and string_value(c.args[0].value) == "--kv-cache-dtype"
    ]
    return one(found, 'add_argument("--kv-cache-dtype", ...)', path)


def _field_call(field: cst.AnnAssign, path: str) -> cst.Call:
    calls = find_all(field.annotation, lambda n: isinstance(n, cst.Call) and keyword(n, "choices") is not None)
    return one([c for c in calls if isinstance(c, cst.Call)], "Arg(choices=...) of field kv_cache_dtype", path)


def _add_to_constant(module: cst.Module, name: str, path: str) -> cst.Module:
    found = [s for s in module.body if isinstance(s, cst.SimpleStatementLine) and _assigns(s, name)]
    line = one(found, f"{name} = [...]", path)
    arrays = [n for n in find_all(line, lambda n: isinstance(n, cst.List)) if isinstance(n, cst.List)]
    old = one(arrays, f"{name} = [...]", path)
    new = replace_node(line, old, add_element(old, '"int2"'))
    return module.with_changes(body=[new if s is line else s for s in module.body])


def _assigns(line: cst.SimpleStatementLine, name: str) -> bool:
    first = line.body[0]
    return isinstance(first, cst.Assign) and code(first.targets[0].target) == name


def _add_flag(module: cst.Module, path: str) -> cst.Module:
    """Put the new option right after --kv-cache-dtype in the parser."""

    def edit(owner: cst.ClassDef) -> cst.ClassDef:
        wanted = _option_call(owner, path)
        blocks = find_all(owner, lambda n: isinstance(n, cst.IndentedBlock) and _statement_with(n, wanted) is not None)
        block = one([b for b in blocks if isinstance(b, cst.IndentedBlock)], "the block of --kv-cache-dtype", path)
        at = _statement_with(block, wanted)
        assert at is not None
        return replace_node(owner, block, _inserted(block, at + 1, parse_body(_FLAG, module)))

    return edit_class(module, "ServerArgs", path, edit)


def _statement_with(block: cst.CSTNode, call: cst.Call) -> int | None:
    """Return the index of the simple statement that is exactly ``call``."""
    statements = block.body if isinstance(block, cst.IndentedBlock) else ()
    for index, statement in enumerate(statements):
        first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(first, cst.Expr) and first.value is call:
            return index
    return None


def _inserted(block: cst.IndentedBlock, at: int, new: Sequence[cst.BaseStatement]) -> cst.IndentedBlock:
    return block.with_changes(body=[*block.body[:at], *new, *block.body[at:]])


def _add_field(owner: cst.ClassDef, module: cst.Module, path: str) -> cst.ClassDef:
    """Put the field after kv_cache_dtype, in the form that the base gives its fields."""
    field = _dtype_field(owner, path)
    text = "kv_cache_quant_group_size: Optional[int] = None"
    if isinstance(field.annotation.annotation, cst.Subscript):
        wrapper = code(field.annotation.annotation.value)
        text = f'kv_cache_quant_group_size: {wrapper}[\n    Optional[int], "{_HELP}"\n] = None'
    at = next(i for i, s in enumerate(owner.body.body) if isinstance(s, cst.SimpleStatementLine) and field in s.body)
    body = list(owner.body.body)
    new = [*body[: at + 1], *parse_body(text, module), *body[at + 1 :]]
    return owner.with_changes(body=owner.body.with_changes(body=new))


def _add_check(owner: cst.ClassDef, module: cst.Module, ctx: Context) -> cst.ClassDef:
    """Add the check and call it first thing where the base checks its arguments at start-up."""
    call = parse_body("self._check_int2_kv_cache()", module)
    owner = edit_method(owner, "check_server_args", ctx.path, lambda f: prepend(f, call))
    return add_methods(owner, parse_body(ctx.chosen.text("ServerArgs._check_int2_kv_cache"), module))
