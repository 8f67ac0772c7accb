"""Known defects of the source, each mended by one named function text -> text that does nothing where it is gone."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from escha_oscar.merge import textedit
from escha_oscar.model import Repair
from escha_oscar.symbols.index import Function, dotted, is_triton_jit
from escha_oscar.symbols.signatures import Signature

FixText = Callable[[str], str]


@dataclass(frozen=True)
class Defect:
    """A defect of copied or grafted text: where it can be, and the function that mends it."""

    name: str
    detail: str
    mend: FixText


def mended(text: str, defects: Iterable[Defect], place: str) -> tuple[str, tuple[Repair, ...]]:
    """Return ``text`` with its defects mended, and the record of each that it had."""
    done: list[Repair] = []
    for defect in defects:
        new = defect.mend(text)
        if new != text:
            done.append(Repair(defect.name, place, defect.detail))
        text = new
    return text, tuple(done)


def functions(text: str) -> list[Function]:
    """Return the top-level functions of ``text``."""
    return [node for node in ast.parse(text).body if isinstance(node, Function)]


def _function(text: str, name: str) -> Function | None:
    return next((f for f in functions(text) if f.name == name), None)


def rename_rebound_constexpr(text: str) -> str:
    """Give a constexpr that one kernel binds twice a second name in its second block; Triton refuses the rebinding."""
    splices: list[textedit.Splice] = []
    for kernel in (f for f in functions(text) if is_triton_jit(f)):
        seen: set[str] = set()
        for body, at, name in _constexprs(kernel.body):
            if name in seen:
                splices += _renamed(body[at:], name, f"{name}_V")
            seen.add(name)
    return textedit.splice(text, splices)


def _constexprs(body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int, str]]:
    for at, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if dotted(node.annotation).endswith("constexpr"):
                yield body, at, node.target.id
        elif isinstance(node, ast.For | ast.While):
            yield from _constexprs(node.body)
        elif isinstance(node, ast.If):
            # Two arms of one condition may each bind the name: only one of them is compiled.
            arms = [list(_constexprs(node.body)), list(_constexprs(node.orelse))]
            first = {name for _, _, name in arms[0]}
            yield from arms[0]
            yield from (item for item in arms[1] if item[2] not in first)


def _renamed(body: list[ast.stmt], old: str, new: str) -> list[textedit.Splice]:
    names = (n for statement in body for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == old)
    return [textedit.over(name, new) for name in names]


def clamp_head_tile(text: str) -> str:
    """Clamp BLOCK_H of the grouped INT2 launcher, so that no tile of query heads straddles two KV heads."""
    launcher = _function(text, "_decode_grouped_att_m_fwd_quant_int2")
    if launcher is None or any(isinstance(n, ast.Name) and n.id == "_safe_block_h" for n in ast.walk(launcher)):
        return text
    wanted = {"BLOCK_H", "kv_group_num"}
    places = [s for s in launcher.body if wanted & _assigned(s)]
    if not wanted <= {name for s in places for name in _assigned(s)}:
        return text
    return textedit.splice(text, [textedit.after(places[-1], "BLOCK_H = _safe_block_h(BLOCK_H, kv_group_num)")])


def _assigned(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds, those of its inner blocks included."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def accept_fp16_rows(text: str) -> str:
    """Let the clip launcher take fp16 rows: they are as wide as the bf16 rows that it asserts."""
    chooser = _function(text, "_vectorized_elems_per_thread")
    if chooser is None:
        return text
    splices = [
        textedit.over(node, f"{ast.unparse(node.left)} in (torch.bfloat16, torch.float16)")
        for node in ast.walk(chooser)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Eq)
        and dotted(node.comparators[0]) == "torch.bfloat16"
    ]
    return textedit.splice(text, splices)


def refuse_grouped_lloyd_max(text: str) -> str:
    """Make the Lloyd-Max switch an error with several groups per head, where the source ignores it in silence."""
    store = _function(text, "quantized_set_kv_int2_pretransformed_clip_triton")
    grouped = _function(text, "_launch_grouped_clip_int2")
    if store is None or grouped is None or "lloyd_max" not in _parameters(store):
        return text
    if "lloyd_max" in _parameters(grouped) or "needs one quantisation group" in text:
        return text
    first = store.body[1] if ast.get_docstring(store) else store.body[0]
    groups = [f"_get_num_scale_groups({side}_scales_zeros_buffer)" for side in "kv"]
    check = (
        f"if lloyd_max and max({groups[0]}, {groups[1]}) > 1:\n"
        '    raise ValueError("Lloyd-Max needs one quantisation group per head")'
    )
    return textedit.splice(text, [textedit.before(first, check)])


def _parameters(function: Function) -> set[str]:
    return {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}


def guard_imports(text: str, resolves: Callable[[ast.ImportFrom], bool]) -> str:
    """Guard module-level imports of kernels that the wheel's tree lacks and that rotations from files never use."""
    splices = []
    for node in _module_imports(ast.parse(text).body):
        if not resolves(node) and all("hadamard" in alias.name for alias in node.names):
            pad = " " * node.col_offset
            absent = " = ".join(alias.asname or alias.name for alias in node.names)
            guarded = f"try:\n{pad}    {ast.unparse(node)}\n{pad}except ImportError:\n{pad}    {absent} = None"
            splices.append(textedit.over(node, guarded))
    return textedit.splice(text, splices)


def unresolved_import(resolves: Callable[[ast.ImportFrom], bool]) -> Defect:
    """Return the defect of a module-level kernel import that the wheel's tree, asked through ``resolves``, lacks."""
    return Defect(
        "hadamard-import", "an import that this tree lacks is guarded", lambda text: guard_imports(text, resolves)
    )


def _module_imports(body: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """Yield the imports that run when the module loads and that nothing guards."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _module_imports(handler.body)


def fit_softmax_call(text: str, signature: Signature) -> str:
    """Drop the keywords of ``_decode_softmax_reducev_fwd`` that the base's own version does not take.

    Only neutral ones go: a constant 1.0, or an optional output, which then becomes an error when it is asked for.
    """
    known = {*signature.positional, *signature.keyword_only}
    splices: list[textedit.Splice] = []
    for function in functions(text):
        calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and _is_softmax(n)]
        unknown = {w.arg: w for call in calls for w in call.keywords if w.arg is not None and w.arg not in known}
        if not all(_neutral(word) for word in unknown.values()):
            continue
        splices += [_without_keywords(text, call, set(unknown)) for call in calls if unknown]
        asked = [word.value.id for word in unknown.values() if isinstance(word.value, ast.Name)]
        if calls and asked:
            first = function.body[1] if ast.get_docstring(function) else function.body[0]
            check = (
                f'if {asked[0]} is not None:\n    raise NotImplementedError("{asked[0]}: this tree has no such output")'
            )
            splices.append(textedit.before(first, check))
    return textedit.splice(text, splices)


def unknown_softmax_keywords(signature: Signature) -> Defect:
    """Return the defect of calls that the base's ``_decode_softmax_reducev_fwd``, of this signature, cannot take."""
    return Defect(
        "softmax-keywords", "keywords that this base does not take", lambda text: fit_softmax_call(text, signature)
    )


def _is_softmax(call: ast.Call) -> bool:
    return dotted(call.func) == "_decode_softmax_reducev_fwd"


def _neutral(word: ast.keyword) -> bool:
    constant = isinstance(word.value, ast.Constant) and word.value.value == 1.0
    return constant or (isinstance(word.value, ast.Name) and word.value.id == "output_lse")


def _without_keywords(text: str, call: ast.Call, names: set[str]) -> textedit.Splice:
    kept = [ast.get_source_segment(text, a) or "" for a in call.args]
    kept += [f"{w.arg}={ast.get_source_segment(text, w.value)}" for w in call.keywords if w.arg not in names]
    pad = " " * (call.col_offset + 4)
    lines = "".join(f"\n{pad}{argument}," for argument in kept)
    return textedit.over(call, f"{dotted(call.func)}({lines}\n{' ' * call.col_offset})")


REBOUND_CONSTEXPR = Defect(
    "rebound-constexpr", "a constexpr bound twice in one kernel does not compile", rename_rebound_constexpr
)
HEAD_TILE = Defect("head-tile", "a tile of query heads could straddle two KV heads", clamp_head_tile)
FP16_ROWS = Defect("fp16-rows", "the clip launcher asserted bf16", accept_fp16_rows)
GROUPED_LLOYD_MAX = Defect(
    "grouped-lloyd-max", "Lloyd-Max was ignored in silence with several groups", refuse_grouped_lloyd_max
)

#: Mended in grafted decode functions.
DECODE_DEFECTS = (REBOUND_CONSTEXPR, HEAD_TILE)
#: Mended in copied files, where the function in question is.
COPY_DEFECTS = (FP16_ROWS, GROUPED_LLOYD_MAX)
