"""Check the placed INT2 kernels against torch: ``python numerics_probe.py SPEC.json ANSWER.json``.

SPEC names the folder of the placed package, or the tree and its decode module where there is none, and the head sizes,
the group size and the query heads per KV head. The reference below is written from the layout alone and shares no code
with the kernels. sglang is not imported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import os
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

#: largest error allowed in float16, relative to the largest reference value of the same head
BOUND = 1e-2
#: largest share of codes that may differ from torch by one step
STORE_BOUND = 1e-3
KV_HEADS = 2
#: batch and query heads per KV head at which a tile of four heads would cover two KV heads
STRADDLE = (16, 6)


def load(folder: str) -> Any:
    """Import the package from its folder under a name of its own, without the tree around it."""
    name = "escha_oscar_probed_int2"
    spec = importlib.util.spec_from_file_location(name, f"{folder}/__init__.py", submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class TreeKernels:
    """The kernels that the tree's own modules offer, behind the placed package's interface; prefill has none.

    The modules are loaded by themselves: their packages are stand-ins whose ``__init__`` never runs, and
    ``sglang.srt.utils`` answers every question about the platform with no.
    """

    extend_attention = None

    def __init__(self, root: str, decode: str) -> None:
        for dotted in ("sglang.QuantKernel", "sglang.srt.mem_cache", decode.rpartition(".")[0]):
            self._stand_in(root, dotted)
        utils = types.ModuleType("sglang.srt.utils")
        utils.__getattr__ = lambda _: lambda *args, **kwargs: False  # type: ignore[method-assign]
        sys.modules["sglang.srt.utils"] = utils
        self.clip = importlib.import_module("sglang.QuantKernel.oscar_rotation_clip_int2_kv")
        self.rows = importlib.import_module("sglang.srt.mem_cache.kv_quant_kernels")
        self.decode_attention_fwd_quantized = importlib.import_module(decode).decode_attention_fwd_quantized

    @staticmethod
    def _stand_in(root: str, dotted: str) -> None:
        parts = dotted.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            module = types.ModuleType(name)
            module.__path__ = [str(Path(root, *parts[:end]))]
            sys.modules.setdefault(name, module)

    def store_kv(self, k: Any, v: Any, loc: Any, *buffers: Any) -> None:
        """Store rows that need no rotation, without clipping."""
        self.clip.quantized_set_kv_int2_pretransformed_clip_triton(k, v, loc, *buffers, 0.0, 0.0)

    def dequantize(self, codes: Any, pairs: Any, slots: Any, *, head_dim: int, dtype: Any) -> Any:
        """Expand gathered rows."""
        return self.rows.dequantize_kv_int2_triton(codes[slots], pairs[slots], head_dim, dtype)


class Quiet(contextlib.ContextDecorator):
    """Stands in for a profiler range in a torch that was built without CUDA."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        return

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *args: Any) -> None:
        return


def quantised(x: Any, group: int) -> tuple[Any, Any]:
    """Return packed codes and interleaved scale/zero pairs of float rows ``[..., D]``."""
    import torch

    grouped = x.float().unflatten(-1, (-1, group))
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scale = (high - low).clamp(min=1e-8) / 3.0
    zero = -low / scale
    codes = (grouped / scale + zero + 0.5).trunc().clamp(0, 3).flatten(-2).to(torch.int32)
    a, b, c, d = codes.chunk(4, dim=-1)
    return (a | b << 2 | c << 4 | d << 6).to(torch.uint8), torch.cat([scale, zero], dim=-1).flatten(-2)


def unpacked(packed: Any) -> Any:
    """Return the codes of packed rows as int32."""
    import torch

    p = packed.to(torch.int32)
    return torch.cat([p >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)


def expanded(packed: Any, pairs: Any, group: int) -> Any:
    """Return the float64 rows that codes and scale/zero pairs stand for."""
    codes = unpacked(packed).double()
    sz = pairs.double().unflatten(-1, (-1, 2)).repeat_interleave(group, dim=-2)
    return (codes - sz[..., 1]) * sz[..., 0]


def attended(q: Any, k: Any, v: Any, scale: float, causal_from: int | None = None) -> Any:
    """Return softmax attention in float64; query row i sees keys up to ``causal_from + i``."""
    import torch

    group = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if causal_from is not None:
        last = torch.arange(q.shape[0], device=q.device)[:, None] + causal_from
        scores = scores.masked_fill(torch.arange(k.shape[0], device=q.device)[None, :] > last, -math.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


class Case:
    """One cache filled by the package's own store, with its reference beside it."""

    def __init__(self, package: Any, spec: dict[str, Any], device: str, dtype: Any, slots: int) -> None:
        import torch

        self.package, self.spec, self.device, self.dtype = package, spec, device, dtype
        generator = torch.Generator().manual_seed(20260915)
        self.generator = generator
        self.k = self.rows(slots, KV_HEADS, spec["head_dim"])
        # V of each KV head lies around its own level, so that a tile that reads another head cannot pass
        level = 10.0 * torch.arange(1, KV_HEADS + 1, device=device, dtype=dtype)[None, :, None]
        self.v = self.rows(slots, KV_HEADS, spec["v_head_dim"]) + level
        self.buffers = [self.codes(slots, spec["head_dim"]), self.codes(slots, spec["v_head_dim"])]
        self.pairs = [self.scales(slots, spec["head_dim"]), self.scales(slots, spec["v_head_dim"])]
        self.loc = torch.randperm(slots, generator=generator).to(device)
        package.store_kv(self.k, self.v, self.loc, *self.buffers, *self.pairs)

    def rows(self, *shape: int) -> Any:
        """Return random rows in the case's dtype."""
        import torch

        return torch.randn(*shape, generator=self.generator).to(self.device, self.dtype)

    def codes(self, slots: int, head_dim: int) -> Any:
        """Return an empty code buffer."""
        import torch

        return torch.zeros(slots, KV_HEADS, head_dim // 4, dtype=torch.uint8, device=self.device)

    def scales(self, slots: int, head_dim: int) -> Any:
        """Return a scale/zero buffer full of NaN: what is read without being written shows."""
        import torch

        shape = (slots, KV_HEADS, 2 * head_dim // self.spec["group_size"])
        return torch.full(shape, math.nan, dtype=torch.float32, device=self.device)

    def dense(self, which: int) -> Any:
        """Return what the stored K (0) or V (1) stands for, in slot order."""
        return expanded(self.buffers[which], self.pairs[which], self.spec["group_size"])


def per_head(name: str, got: Any, want: Any) -> dict[str, Any]:
    """Compare outputs head by head: the worst error of a head over the largest value of that head."""
    errors = []
    for head in range(want.shape[1]):
        scale = want[:, head].abs().max().clamp(min=1e-6)
        errors.append(float((got[:, head].double() - want[:, head]).abs().max() / scale))
    bad = [head for head, error in enumerate(errors) if not error <= BOUND]
    worst = max(errors) if all(error == error for error in errors) else "nan"
    return {"name": name, "ok": not bad, "heads": bad, "error": worst, "bound": BOUND}


def store_check(case: Case) -> list[dict[str, Any]]:
    """Codes and scale/zero pairs of both K and V.

    A value on the border between two codes may fall to either side when a division is contracted, so a few codes may
    differ by one step and none by more.
    """
    import torch

    found: list[dict[str, Any]] = []
    for which, (name, rows) in enumerate((("K", case.k), ("V", case.v))):
        packed, pairs = quantised(rows, case.spec["group_size"])
        steps = (unpacked(case.buffers[which][case.loc]) - unpacked(packed)).abs()
        differing = float((steps > 0).double().mean())
        close = torch.allclose(case.pairs[which][case.loc], pairs, rtol=1e-5, atol=1e-5)
        ok = differing <= STORE_BOUND and int(steps.max()) <= 1 and close
        found.append({"name": f"store {name}", "ok": ok, "heads": [], "error": differing, "bound": STORE_BOUND})
    return found


def dequant_check(case: Case) -> list[dict[str, Any]]:
    """The dense rows of every slot."""
    found = []
    for which, name in enumerate(("K", "V")):
        size = case.spec["head_dim" if which == 0 else "v_head_dim"]
        got = case.package.dequantize(case.buffers[which], case.pairs[which], case.loc, head_dim=size, dtype=case.dtype)
        found.append(per_head(f"dequantise {name}", got, case.dense(which)[case.loc]))
    return found


def decode_check(case: Case, batch: int, group: int) -> dict[str, Any]:
    """One query row per request over ragged lists of slots."""
    import torch

    slots = case.loc.shape[0]
    lengths = [1 + (7 * b) % (slots - 1) for b in range(batch)]
    indptr = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=case.device)
    indices = torch.cat([case.loc[:n] for n in lengths]).to(torch.int64)
    heads = KV_HEADS * group
    q = case.rows(batch, heads, case.spec["head_dim"])
    o = torch.full((batch, heads, case.spec["v_head_dim"]), math.nan, dtype=case.dtype, device=case.device)
    logits = torch.empty(batch, heads, 8, case.spec["v_head_dim"], dtype=torch.float32, device=case.device)
    lse = torch.empty(batch, heads, 8, dtype=torch.float32, device=case.device)
    splits = torch.full((batch,), 8, dtype=torch.int32, device=case.device)
    scale = case.spec["head_dim"] ** -0.5
    case.package.decode_attention_fwd_quantized(
        q, case.buffers[0], case.buffers[1], case.pairs[0], case.pairs[1], o, indptr, indices, logits, lse, splits, 8,
        scale, "int2",
    )  # fmt: skip
    k, v = case.dense(0), case.dense(1)
    rows = [attended(q[b : b + 1], k[case.loc[:n]], v[case.loc[:n]], scale) for b, n in enumerate(lengths)]
    return per_head(f"decode batch {batch}, {group} query heads per KV head", o, torch.cat(rows))


def extend_check(case: Case, group: int) -> dict[str, Any]:
    """New rows over an INT2 prefix and themselves, one request without a prefix."""
    import torch

    prefixes, news = [case.loc.shape[0] // 2, 0], [5, 3]
    tokens, heads = sum(news), KV_HEADS * group
    q = case.rows(tokens, heads, case.spec["head_dim"])
    k = case.rows(tokens, KV_HEADS, case.spec["head_dim"])
    v = case.rows(tokens, KV_HEADS, case.spec["v_head_dim"])
    o = torch.full((tokens, heads, case.spec["v_head_dim"]), math.nan, dtype=case.dtype, device=case.device)
    ints = {"dtype": torch.int32, "device": case.device}
    scale = case.spec["head_dim"] ** -0.5
    case.package.extend_attention(
        q, k, v, o, case.buffers[0], case.buffers[1], case.pairs[0], case.pairs[1],
        torch.tensor([0, 5, 8], **ints), torch.tensor([0, prefixes[0], prefixes[0]], **ints),
        case.loc[: prefixes[0]].to(torch.int64), max_len_extend=5, sm_scale=scale,
    )  # fmt: skip
    wanted, at = [], 0
    for prefix, new in zip(prefixes, news, strict=True):
        here = slice(at, at + new)
        old = case.loc[:prefix]
        keys, values = (
            torch.cat([case.dense(0)[old], k[here].double()]),
            torch.cat([case.dense(1)[old], v[here].double()]),
        )
        wanted.append(attended(q[here], keys, values, scale, causal_from=prefix))
        at += new
    return per_head(f"extend, {group} query heads per KV head", o, torch.cat(wanted))


def checks(package: Any, spec: dict[str, Any], device: str) -> list[dict[str, Any]]:
    """Run every check on one cache."""
    import torch

    slots = 300 if device == "cuda" else 12  # Triton's interpreter takes seconds for what a GPU does in microseconds
    case = Case(package, spec, device, torch.float16, slots)
    group = spec["kv_group_num"]
    found = [*store_check(case), *dequant_check(case)]
    shapes = [(1, group), STRADDLE] if device == "cpu" else [(1, group), (STRADDLE[0], group), STRADDLE]
    found += [decode_check(case, batch, heads) for batch, heads in dict.fromkeys(shapes)]
    if package.extend_attention is not None:
        found.append(extend_check(case, group))
    return found


def main(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the device, the versions and the result of each check, or what stopped them."""
    answer: dict[str, Any] = {"checks": []}
    started = time.monotonic()
    try:
        import torch

        has_gpu = torch.cuda.is_available()
        if not has_gpu:
            os.environ["TRITON_INTERPRET"] = "1"
            torch.cuda.nvtx.range = Quiet
        import triton

        answer["versions"] = {"torch": torch.__version__, "triton": triton.__version__}
        device = "cuda" if has_gpu else "cpu"
        answer["device"] = torch.cuda.get_device_name() if has_gpu else "Triton's interpreter on the CPU"
    except Exception as error:  # no torch, no triton, or a driver that refuses: nothing can be judged
        answer["unusable"] = f"{type(error).__name__}: {error}"[:1000]
        return answer
    try:
        package = load(spec["package"]) if spec.get("package") else TreeKernels(spec["tree"], spec["decode"])
        answer["checks"] = checks(package, spec, device)
    except Exception as error:  # whatever a kernel raises is the finding
        answer["failure"] = {
            "message": f"{type(error).__name__}: {error}"[:1000],
            "trace": traceback.format_exc()[-2000:],
        }
    answer["seconds"] = round(time.monotonic() - started, 1)
    return answer


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps(main(asked)), encoding="utf-8")
