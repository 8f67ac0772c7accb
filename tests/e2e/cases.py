"""The attention cases of the end-to-end tests: shapes, and the batches that each of them runs through."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
Step = list[Any]

#: Cold; then chunked beside a ragged newcomer; then a cached prefix of another request mixed with decode rows; decode.
FLOW: list[Step] = [
    ["extend", [["a", 5]]],
    ["extend", [["a", 6], ["b", 3]]],
    ["share", ["c", "a", 7]],
    ["mixed", [["c", 4], ["a", 1], ["b", 1]]],
    ["decode", [["b", 1], ["c", 1], ["a", 1]]],
]
#: A prefill in two chunks, then one token at a time.
PROMPT: list[Step] = [["extend", [["a", 24]]], ["extend", [["a", 17]]]]
TOKEN: Step = ["decode", [["a", 1]]]
#: Sixteen streams: where a head tile of four would straddle two KV heads of six query heads each.
SIXTEEN: list[Step] = [
    ["extend", [[f"s{i}", 1 + i % 3] for i in range(16)]],
    ["decode", [[f"s{i}", 1] for i in range(16)]],
]


def case(q: int, kv: int, D: int, group: int | None, dtype: str, steps: list[Step] = FLOW, **more: Any) -> Case:
    """Return one case: a plain pool whose layers start at 4, or a hybrid one with layers 3 and 7."""
    layers = [3, 7] if more.get("hybrid") else [4]
    fixed = {"q_heads": q, "kv_heads": kv, "head_dim": D, "group_size": group, "dtype": dtype, "steps": steps}
    return {"hybrid": False, "layers": layers, **fixed, **more}


DENSE = {"env": {"SGLANG_OSCAR_PREFILL": "dense"}}
PR_KERNELS = {"env": {"SGLANG_OSCAR_KERNELS": "pr"}}
LLOYD = {"env": {"SGLANG_LLOYD_MAX": "1"}}

CASES: dict[str, Case] = {
    "hybrid, 6 heads a group, D 256 by 64, fp16": case(12, 2, 256, 64, "float16", hybrid=True, clip=[0.92, 0.96]),
    "8 heads a group, D 256 by 32, fp16": case(8, 1, 256, 32, "float16", clip=[0.96, 0.92]),
    "one head a group, D 128 whole, fp32": case(4, 4, 128, None, "float32", per_head=True),
    "hybrid, 24 heads a group, D 64 by 32, fp32": case(24, 1, 64, 32, "float32", hybrid=True),
    "6 heads a group, D 64 whole, fp16, per head": case(12, 2, 64, 64, "float16", per_head=True, clip=[0.9, 0.0]),
    "dense prefill, D 128 by 64, fp16": case(6, 1, 128, 64, "float16", **DENSE),
    "dense prefill, D 64 by 32, fp32": case(4, 2, 64, 32, "float32", per_head=True, **DENSE),
    "kernels of the source, D 128 by 32, fp16": case(8, 1, 128, 32, "float16", clip=[0.96, 0.92], **PR_KERNELS),
    "Lloyd-Max, D 64 whole, fp16": case(4, 1, 64, None, "float16", **LLOYD),
    # The interpreter takes a second for a step of the fp16 kernel; the long run is on the GPU too.
    "12 decode steps, fp16": case(2, 1, 64, 32, "float16", [*PROMPT, *[TOKEN] * 12]),
    "64 decode steps, fp32": case(2, 1, 64, None, "float32", [*PROMPT, *[TOKEN] * 64]),
    "sixteen streams, 6 heads a group, fp16": case(12, 2, 64, 32, "float16", SIXTEEN),
}

#: On a GPU: longer prefixes, a mixed chunk with a newcomer beside decode rows, then decode eagerly and by two graphs.
LONG_FLOW: list[Step] = [
    ["extend", [["a", 700]]],
    ["extend", [["a", 333], ["b", 129]]],
    ["share", ["c", "a", 1000]],
    ["mixed", [["c", 257], ["d", 65], ["a", 1], ["b", 1]]],
    ["decode", [["b", 1], ["c", 1], ["a", 1]]],
    *[["graph", [["a", 1], ["b", 1], ["c", 1]]], ["graph", [["b", 1], ["a", 1]]]] * 3,
]
GRAPHS: list[Step] = [*PROMPT, *[["graph", [["a", 1]]]] * 64]
MANY: list[Step] = [SIXTEEN[0], *[["graph", SIXTEEN[1][1]]] * 4]
GPU_CASES: dict[str, Case] = {
    f"{name}, {dtype}": {**shape, "slots": 4096, "dtype": dtype}
    for dtype in ("float16", "bfloat16")
    for name, shape in {
        "MoE at TP2": case(8, 1, 256, 32, "", LONG_FLOW, hybrid=True, clip=[0.96, 0.92]),
        "dense at TP2": case(12, 2, 256, 64, "", LONG_FLOW, hybrid=True, per_head=True, clip=[0.92, 0.96]),
        "dense at TP2, dense prefill": case(12, 2, 256, 64, "", LONG_FLOW, hybrid=True, **DENSE),
        "whole heads, kernels of the source": case(24, 4, 128, None, "", LONG_FLOW, **PR_KERNELS),
        "64 decode steps by graph": case(12, 2, 256, 64, "", GRAPHS),
        "sixteen streams, 6 heads a group": case(12, 2, 256, 64, "", MANY),
        "24 heads a group": case(24, 1, 256, 64, "", LONG_FLOW, per_head=True),
    }.items()
}

#: Largest error relative to the largest expected value: fp16 rounds rotated rows and the output, fp32 nearly nothing.
TOLERANCE = {"float16": 3e-3, "bfloat16": 2.5e-2, "float32": 1e-5}
#: A stored value lies within half a quantisation step of its row, and a little for the rounding of that row.
HALF_STEP = 0.52


def broken(ran: Case, answer: dict[str, Any]) -> list[str]:
    """Return what is wrong with the measured ``answer`` of a case that ran: nothing where all is well."""
    limit = TOLERANCE[ran["dtype"]]
    wrong = [f"step {i}: error {e:.2e} > {limit}" for i, e in enumerate(answer["outputs"]) if not e <= limit]
    # Lloyd-Max places its levels by the row's spread, not by its range.
    if ran.get("env") != LLOYD["env"] and not answer["stored"] <= HALF_STEP:
        wrong.append(f"a stored row lies {answer['stored']:.2f} steps off")
    return wrong
