"""Caps prefill chunks while streams decode, and holds part of a running long prefill's chunk back for short requests.

Both limits live in ``PrefillAdder``: the cap in its constructor, where it meets the first chunk of a new request and
the continuation of a running one alike; the floor where the running one takes its share. Both are off by default.
"""

from __future__ import annotations

import libcst as cst

from escha_oscar.errors import AnchorError
from escha_oscar.model import Context
from escha_oscar.transforms._anchors import Body, code, dotted, find_all, has_method, method, one
from escha_oscar.transforms._edits import (
    add_methods,
    add_parameters,
    body_of,
    edit_class,
    edit_method,
    ensure_imports,
    parse_body,
    replace_node,
    with_body,
)

TARGET = "sglang/srt/managers/schedule_policy.py"
OWNER = "PrefillAdder"
TOUCHES = (
    "<imports>",
    OWNER,
    f"{OWNER}.__init__",
    f"{OWNER}.add_chunked_req",
    f"{OWNER}.add_one_req",
    f"{OWNER}.add_one_req_ignore_eos",
    f"{OWNER}._cap_chunk_beside_decode",
    f"{OWNER}._long_prefill_budget",
    f"{OWNER}._is_short",
    f"{OWNER}.admission_order",
)

FLOOR = "SGLANG_CHUNK_FAIR_FLOOR"
_BUDGET = "self.rem_chunk_tokens"

_INIT = """
self.waiting_queue = waiting_queue or []
self.held_back_chunk_tokens = 0
self._cap_chunk_beside_decode({mixed})
"""

_METHODS = '''
def _cap_chunk_beside_decode(self, mixed_decode_tokens: int) -> None:
    """Keep the whole prefill batch within SGLANG_CHUNK_DECODE_CAP tokens while any stream decodes."""
    cap = envs.SGLANG_CHUNK_DECODE_CAP.get()
    if cap <= 0 or self.rem_chunk_tokens is None or self.running_batch is None:
        return
    if all(req.finished() for req in self.running_batch.reqs):
        return
    pages = max((cap - mixed_decode_tokens) // self.page_size, 1)
    self.rem_chunk_tokens = min(self.rem_chunk_tokens, pages * self.page_size)

def _long_prefill_budget(self) -> int:
    """Return the chunk tokens for a running long prefill: SGLANG_CHUNK_FAIR_FLOOR less while short requests wait."""
    floor = max(envs.SGLANG_CHUNK_FAIR_FLOOR.get(), 0) // self.page_size * self.page_size
    spare = self.rem_chunk_tokens - self.page_size
    if 0 < floor <= spare and any(self._is_short(req, floor) for req in self.waiting_queue):
        self.held_back_chunk_tokens = floor
    return self.rem_chunk_tokens - self.held_back_chunk_tokens

@staticmethod
def _is_short(req: Req, tokens: int) -> bool:
    """Return whether a request's input, less the prefix that is known to be cached, fits into ``tokens``."""
    return len(req.origin_input_ids) + len(req.output_ids) - len(req.prefix_indices) <= tokens

def admission_order(self, waiting_queue: List[Req]) -> List[Req]:
    """Return the queue as it is, or with the short requests first while part of the chunk is held back for them."""
    if self.held_back_chunk_tokens == 0:
        return waiting_queue
    return sorted(waiting_queue, key=lambda req: not self._is_short(req, self.held_back_chunk_tokens))
'''

# One prefill can be cut into chunks at a time: what was held back is for requests that fit whole.
_GUARDS = {
    "add_one_req": """
    if has_chunked_req and self.held_back_chunk_tokens > 0:
        return AddReqResult.OTHER
    """,
    "add_one_req_ignore_eos": """
    if self.held_back_chunk_tokens > 0:
        return AddReqResult.OTHER
    """,
}


def transform(module: cst.Module, ctx: Context) -> cst.Module:
    """Add both limits; a tree that has a floor of its own keeps it and gets the cap alone."""
    if has_method(module, OWNER, "_cap_chunk_beside_decode"):
        return module
    own_floor = FLOOR in module.code

    def edit(owner: cst.ClassDef) -> cst.ClassDef:
        owner = edit_method(owner, "__init__", ctx.path, lambda f: _extend_init(f, module, ctx.path))
        if not own_floor:
            owner = edit_method(owner, "add_chunked_req", ctx.path, lambda f: _share_chunk(f, ctx.path))
            for name in _GUARDS:
                owner = _refuse_second_chunk(owner, name, module, ctx.path)
        return add_methods(owner, parse_body(_METHODS, module))

    edited = edit_class(module, OWNER, ctx.path, edit)
    return ensure_imports(edited, ["from sglang.srt.environ import envs"])


def _extend_init(function: cst.FunctionDef, module: cst.Module, path: str) -> cst.FunctionDef:
    function = add_parameters(function, ["waiting_queue: Optional[List[Req]] = None"])
    lines = parse_body(_INIT.format(mixed=_mixed_tokens(function, path)), module)
    return with_body(function, [*body_of(function), *lines])


def _mixed_tokens(function: cst.FunctionDef, path: str) -> str:
    """Return the constructor's name for the decode rows of a mixed batch: what it takes off the chunk."""
    taken = [n for n in find_all(function, _takes_off_chunk) if isinstance(n, cst.AugAssign)]
    return code(one(taken, f"{_BUDGET} -= ... in {OWNER}.__init__", path).value)


def _takes_off_chunk(node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.AugAssign)
        and isinstance(node.operator, cst.SubtractAssign)
        and dotted(node.target) == _BUDGET
        and isinstance(node.value, cst.Name)
    )


def _share_chunk(function: cst.FunctionDef, path: str) -> cst.FunctionDef:
    """Let the running long prefill read its own share wherever it reads the chunk budget."""
    if not find_all(function, _reads_budget):
        where = f"{OWNER}.add_chunked_req"
        raise AnchorError("an anchor did not match", path=path, sought=f"{_BUDGET} in {where}", found="nothing")
    while reads := find_all(function, _reads_budget):
        function = replace_node(function, reads[0], cst.parse_expression("self._long_prefill_budget()"))
    return function


def _reads_budget(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and dotted(node) == _BUDGET


def _refuse_second_chunk(owner: cst.ClassDef, name: str, module: cst.Module, path: str) -> cst.ClassDef:
    function = method(owner, name, path)
    blocks = [n for n in find_all(function, _starts_chunked_prefill) if isinstance(n, cst.IndentedBlock)]
    block = one(blocks, f"self.new_chunked_req = req in {OWNER}.{name}", path)
    guarded = block.with_changes(body=[*parse_body(_GUARDS[name], module), *block.body])
    return edit_method(owner, name, path, lambda f: replace_node(f, block, guarded))


def _starts_chunked_prefill(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.IndentedBlock) and _assigns(node.body, "self.new_chunked_req")


def _assigns(body: Body, target: str) -> bool:
    parts = [part for line in body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    targets = [t.target for part in parts if isinstance(part, cst.Assign) for t in part.targets]
    return target in [dotted(t) for t in targets]
