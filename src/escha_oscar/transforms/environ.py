"""Registers the OSCAR environment variables, and any other that transplanted code reads, as fields of ``Envs``."""

from __future__ import annotations

import libcst as cst

from escha_oscar.model import Context
from escha_oscar.transforms._anchors import code
from escha_oscar.transforms._edits import edit_class, parse_body

TARGET = "sglang/srt/environ.py"
TOUCHES = ("Envs",)


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Append the missing fields at the end of ``class Envs``: later assignment would trip its name check."""

    def add_fields(envs: cst.ClassDef) -> cst.ClassDef:
        known = set(_fields(envs))
        new = [f"{name} = {default}" for name, default in ctx.extra_env.items() if name not in known]
        if not new:
            return envs
        lines = parse_body("# OSCAR INT2 KV cache\n" + "\n".join(new), module)
        first = lines[0].with_changes(leading_lines=[cst.EmptyLine(indent=False), *lines[0].leading_lines])
        body = envs.body.with_changes(body=[*envs.body.body, first, *lines[1:]])
        return envs.with_changes(body=body)

    return edit_class(module, "Envs", ctx.path, add_fields)


def _fields(envs: cst.ClassDef) -> list[str]:
    lines = [s for s in envs.body.body if isinstance(s, cst.SimpleStatementLine)]
    assigns = [p for line in lines for p in line.body if isinstance(p, cst.Assign)]
    return [code(t.target) for a in assigns for t in a.targets]
