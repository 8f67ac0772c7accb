"""Tells the prefill adder which requests wait, and takes them in the order that it admits them in."""

from __future__ import annotations

import libcst as cst

from escha_oscar.model import Context
from escha_oscar.transforms._anchors import code, find_all, is_call_to, keyword, one
from escha_oscar.transforms._edits import add_arguments, edit_class, replace_node

TARGET = "sglang/srt/managers/scheduler.py"
OWNER = "Scheduler"
TOUCHES = (OWNER, f"{OWNER}._get_new_batch_prefill_raw", f"{OWNER}.get_new_batch_prefill")

_QUEUE = "self.waiting_queue"
_ORDERED = "adder.admission_order(self.waiting_queue)"


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Edit the one method of the scheduler that builds a prefill batch."""
    return edit_class(module, OWNER, ctx.path, lambda owner: _edit_prefill(owner, ctx.path))


def _edit_prefill(owner: cst.ClassDef, path: str) -> cst.ClassDef:
    call = _construction(owner, path)
    if keyword(call, "waiting_queue") is not None:
        return owner
    owner = replace_node(owner, call, add_arguments(call, [f"waiting_queue={_QUEUE}"]))
    loops = [n for n in find_all(owner, _admits_requests) if isinstance(n, cst.For)]
    loop = one(loops, f"for ... in {_QUEUE}: ... adder.add_one_req(...) in class {OWNER}", path)
    return replace_node(owner, loop, loop.with_changes(iter=cst.parse_expression(_ORDERED)))


def _construction(owner: cst.ClassDef, path: str) -> cst.Call:
    calls = [n for n in find_all(owner, lambda n: is_call_to(n, "PrefillAdder")) if isinstance(n, cst.Call)]
    return one(calls, f"PrefillAdder(...) in class {OWNER}", path)


def _admits_requests(node: cst.CSTNode) -> bool:
    """Return whether ``node`` is the loop that offers the waiting requests to the adder."""
    if not isinstance(node, cst.For) or code(node.iter) != _QUEUE:
        return False
    return bool(find_all(node, lambda n: is_call_to(n, "adder.add_one_req")))
