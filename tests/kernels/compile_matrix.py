"""Compile what the launchers would launch and print what each program takes, one JSON object a line.

``TRITON_INTERPRET=0 python -m tests.kernels.compile_matrix SUBSET CC...``; SUBSET is ``production`` or ``all``.
"""

import itertools
import json
import sys
import tempfile

import torch

from escha_oscar.kernels import decode_attention_fwd_quantized, dequantize, extend_attention, store_kv

from .capture import recorded, resources

#: head_dim, group size, query heads, KV heads: the two wheels, each at two-way tensor parallelism.
PRODUCTION = [(256, 64, 12, 2), (256, 32, 8, 1)]
EVERY = [(d, g, 12, 2) for d in (64, 128, 256) for g in (16, 32, 64, 128, 256) if g <= d] + [
    (512, 128, 12, 2),
    (96, 96, 12, 2),
]


def _decode(shape, dtype, **options):
    dims, group, heads, kv_heads = shape
    q = torch.zeros(16, heads, dims, dtype=dtype)
    codes, scales = (
        torch.zeros(32, kv_heads, dims // 4, dtype=torch.uint8),
        torch.zeros(32, kv_heads, 2 * dims // group),
    )
    decode_attention_fwd_quantized(
        q, codes, codes, scales, scales, q, torch.zeros(17, dtype=torch.int32), torch.zeros(32, dtype=torch.int64),
        None, None, None, 8, 0.1, "int2", **options,
    )  # fmt: skip


def _extend(shape, dtype, prefix, new, **options):
    dims, group, heads, kv_heads = shape
    q, k = torch.zeros(new, heads, dims, dtype=dtype), torch.zeros(new, kv_heads, dims, dtype=dtype)
    codes, scales = (
        torch.zeros(32, kv_heads, dims // 4, dtype=torch.uint8),
        torch.zeros(32, kv_heads, 2 * dims // group),
    )
    extend_attention(
        q, k, k, q, codes, codes, scales, scales, torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32),
        torch.zeros(prefix, dtype=torch.int64), max_len_extend=new, sm_scale=0.1, **options,
    )  # fmt: skip


def _store(shape, dtype, tokens, **options):
    dims, group, _, kv_heads = shape
    x = torch.zeros(tokens, kv_heads, dims, dtype=dtype)
    codes, scales = (
        torch.zeros(32, kv_heads, dims // 4, dtype=torch.uint8),
        torch.zeros(32, kv_heads, 2 * dims // group),
    )
    store_kv(x, x, torch.zeros(tokens, dtype=torch.int64), codes, codes, scales, scales, **options)


def _dequantize(shape, dtype):
    dims, group, _, kv_heads = shape
    codes, scales = (
        torch.zeros(32, kv_heads, dims // 4, dtype=torch.uint8),
        torch.zeros(32, kv_heads, 2 * dims // group),
    )
    dequantize(codes, scales, torch.zeros(9, dtype=torch.int64), head_dim=dims, dtype=dtype)


def launch_production():
    for shape in PRODUCTION:
        _decode(shape, torch.float16)
    _extend(PRODUCTION[0], torch.float16, 6000, 2048)  # two pieces: the first and the last


def launch_all():
    for shape, dtype in itertools.product(EVERY + PRODUCTION, (torch.float16, torch.bfloat16)):
        dims = shape[0]
        rotation = torch.zeros(dims, dims)
        _decode(shape, dtype)
        _decode(shape, dtype, logit_cap=30.0, sinks=torch.zeros(shape[2]), xai_temperature_len=512)
        for prefix, new in ((0, 2048), (4096, 1), (60000, 2048)):
            _extend(shape, dtype, prefix, new)
        _extend(shape, dtype, 60000, 2048, logit_cap=30.0, sinks=torch.zeros(shape[2]), xai_temperature_len=512)
        _store(shape, dtype, 16, R_k=rotation, R_v=rotation, clip_ratio_k=0.96, clip_ratio_v=0.92)
        _store(shape, dtype, 2048)
        _dequantize(shape, dtype)
    _decode((256, 64, 12, 2), torch.float32)
    _extend((256, 64, 12, 2), torch.float32, 60000, 64)


def _loads_before_wait(ptx):
    """How many global loads precede the wait for the kernel before this one; None where nothing waits."""
    head, wait, _ = ptx.partition("griddepcontrol.wait")
    return head.count("ld.global") + head.count("cp.async") if wait else None


def main(subset, *cards):
    for cc in map(int, cards):
        with recorded(cc) as launches:
            {"production": launch_production, "all": launch_all}[subset]()
        for launch in dict.fromkeys(launches):
            compiled = launch.compile(cc)
            with tempfile.TemporaryDirectory() as folder:
                registers, stack = resources(compiled, folder)
            constants = {name: value for name, value in launch.constants if isinstance(value, (int, float, str))}
            report = {"cc": cc, "kernel": launch.kernel.__name__, "shared": compiled.metadata.shared}
            report |= {"registers": registers, "stack": stack, "constants": constants}
            report["early"] = dict(launch.options).get("launch_pdl", False)
            report["loads_before_wait"] = _loads_before_wait(compiled.asm["ptx"])
            sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
