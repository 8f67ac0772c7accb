"""Store: launches and time of K and V together, with and without the rotation inside."""

import torch
from decode import DENSE, MOE, D
from timing import graph_time_us
from torch.profiler import ProfilerActivity, profile

from escha_oscar import kernels


def call(model, tokens, rotated):
    k, v = torch.randn(2, tokens, model.kv_heads, D, dtype=torch.bfloat16, device="cuda")
    shape = (tokens, model.kv_heads)
    codes = [torch.empty(*shape, D // 4, dtype=torch.uint8, device="cuda") for _ in range(2)]
    scales = [torch.empty(*shape, 2 * D // model.group_size, device="cuda") for _ in range(2)]
    loc = torch.randperm(tokens, device="cuda")
    R = torch.linalg.qr(torch.randn(D, D, device="cuda"))[0] if rotated else None
    return lambda: kernels.store_kv(k, v, loc, *codes, *scales, R_k=R, R_v=R, clip_ratio_k=0.96, clip_ratio_v=0.92)


def launches(run):
    """Number of kernels that ``run`` puts on the device."""
    run()
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        run()
        torch.cuda.synchronize()
    return sum(1 for event in record.events() if str(event.device_type).endswith("CUDA"))


def rows():
    out = []
    for model in (DENSE, MOE):
        for tokens, rotated in (
            (1, True),
            (16, True),
            (64, True),
            (65, True),
            (2048, True),
            (16, False),
            (2048, False),
        ):
            run = call(model, tokens, rotated)
            out.append({
                "model": model.name, "tokens": tokens, "rotated": rotated, "launches": launches(run),
                "us": graph_time_us([run] * 8),
            })  # fmt: skip
    return out
