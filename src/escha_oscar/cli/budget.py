"""``escha-oscar budget``: KV bytes, tokens and sessions that fit, from config.json alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from escha_oscar.cli._render import Output, json_option
from escha_oscar.cli._table import line, table
from escha_oscar.cli._types import Fraction
from escha_oscar.errors import UsageError
from escha_oscar.serving import budget as kv
from escha_oscar.serving.budget import CacheFormat, Fit, KVDtype, MambaStrategy, Memory, Sessions, TokenBytes
from escha_oscar.serving.model_config import ModelConfig, read_model_config

if TYPE_CHECKING:
    from rich.console import Console

_LENGTHS = (8192, 32768, 65536, 131072, 196608, 262144)


@dataclass(frozen=True)
class Request:
    """The options of one run."""

    tp: int
    cache: CacheFormat
    tokens: int | None
    context: int | None
    memory: Memory | None
    max_mamba: int | None
    max_requests: int | None
    strategy: MambaStrategy
    ssm_dtype: str | None
    chunk: int | None


@dataclass(frozen=True)
class Mamba:
    """Recurrent-state slots and the concurrency that they allow."""

    slot_bytes: int | None
    per_request: dict[str, int]
    slots: int | None
    concurrency: int | None
    chunk_slots: float | None


@dataclass(frozen=True)
class Report:
    """Everything that is printed."""

    model: ModelConfig
    request: Request
    layer: dict[str, TokenBytes]
    token: dict[str, TokenBytes]
    tokens: int
    fit: Fit | None
    mamba: Mamba | None
    sessions: tuple[Sessions, ...]
    warnings: tuple[str, ...]


@click.command()
@click.option(
    "--config", "config_path", required=True, type=click.Path(path_type=Path), help="The model's config.json."
)
@click.option("--tp", default=1, show_default=True, type=click.IntRange(1, 1024), help="Tensor-parallel size.")
@click.option("--group-size", type=int, help="Elements per scale group; default: one group per head.")
@click.option(
    "--scale-dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16", "float16"])
)
@click.option(
    "--context", type=click.IntRange(1, 1 << 30), help="Tokens of one session; default: the model's own limit."
)
@click.option("--tokens", type=click.IntRange(1, 1 << 40), help="A pool size, to see what its log line says.")
@click.option("--vram", help="Memory of one GPU, as 12GB or 12227MiB.")
@click.option("--mem-fraction", default=0.88, show_default=True, type=Fraction())
@click.option("--weights", help="Weights on one GPU, as 6GB; default: the safetensors beside config.json / tp.")
@click.option("--max-mamba", type=click.IntRange(1, 1 << 20), help="--max-mamba-cache-size.")
@click.option("--max-requests", type=click.IntRange(1, 1 << 20), help="--max-running-requests.")
@click.option(
    "--mamba-strategy",
    default="extra_buffer",
    show_default=True,
    type=click.Choice([strategy.value for strategy in MambaStrategy]),
)
@click.option("--ssm-dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="--mamba-ssm-dtype.")
@click.option("--chunk", type=click.IntRange(1, 1 << 20), help="--chunked-prefill-size.")
@json_option
def budget(config_path: Path, as_json: bool, vram: str | None, weights: str | None, **options: Any) -> int:
    """Say what the KV cache takes and what fits, before a server falls off the memory cliff."""
    model = read_model_config(config_path)
    memory = _memory(model, vram, weights, options)
    request = Request(
        tp=options["tp"],
        cache=CacheFormat(KVDtype.INT2, options["group_size"], options["scale_dtype"]),
        tokens=options["tokens"],
        context=options["context"],
        memory=memory,
        max_mamba=options["max_mamba"],
        max_requests=options["max_requests"],
        strategy=MambaStrategy(options["mamba_strategy"]),
        ssm_dtype=options["ssm_dtype"],
        chunk=options["chunk"],
    )
    report = _report(model, request)
    return Output("budget", as_json).emit(_data(report), lambda console: _text(report, console))


def _memory(model: ModelConfig, vram: str | None, weights: str | None, options: dict[str, Any]) -> Memory | None:
    if vram is None:
        if weights is not None:
            raise UsageError("--weights needs --vram", hint="add --vram SIZE (of one GPU, as 12GB)")
        return None
    if options["tokens"] is not None:
        raise UsageError("--tokens states the pool and --vram computes it", hint="leave one of them out")
    whole = kv.parse_size(vram)
    size = kv.parse_size(weights) if weights is not None else _weights_beside(Path(model.path), options["tp"])
    return Memory(whole, options["mem_fraction"], size)


def _weights_beside(config: Path, tp: int) -> int:
    files = list(config.parent.glob("*.safetensors"))
    if not files:
        raise UsageError(
            "the size of the weights is unknown",
            path=str(config.parent),
            sought="*.safetensors beside config.json",
            hint="add --weights SIZE (of one GPU, as 6GB)",
        )
    return sum(file.stat().st_size for file in files) // tp


def _report(model: ModelConfig, request: Request) -> Report:
    formats = {dtype.value: replace(request.cache, dtype=dtype) for dtype in KVDtype}
    token = {name: kv.token_bytes(model, request.tp, cache) for name, cache in formats.items()}
    slot = kv.mamba_slot_bytes(model.linear, request.tp, request.ssm_dtype) if model.linear else None
    fit = None
    if request.memory is not None:
        if model.is_hybrid and slot is None:
            raise UsageError(
                "config.json does not describe the recurrent state, so its memory is unknown", path=model.path
            )
        fit = kv.fit(request.memory, token["int2"], slot or 0, request.max_mamba)
    pool = request.tokens or (fit.tokens if fit else None)
    tokens = pool or request.context or model.max_context
    if tokens is None:
        raise UsageError("config.json states no context length", path=model.path, hint="add --context N")
    mamba = _mamba(request, slot, fit, tokens) if model.is_hybrid else None
    limit = mamba.concurrency if mamba else request.max_requests
    lengths = (request.context,) if request.context else tuple(n for n in _LENGTHS if n <= (model.max_context or n))
    layer = {name: kv.layer_bytes(model.full, request.tp, cache) for name, cache in formats.items()}
    counts = kv.sessions(pool, lengths, limit) if pool else ()
    return Report(model, request, layer, token, tokens, fit, mamba, counts, _warnings(model, request, mamba, tokens))


def _mamba(request: Request, slot: int | None, fit: Fit | None, tokens: int) -> Mamba:
    slots = request.max_mamba if request.max_mamba is not None else (fit.mamba_slots if fit else None)
    per_request = {strategy.value: kv.slots_per_request(strategy) for strategy in MambaStrategy}
    running = None
    if slots is not None:
        each = per_request[request.strategy.value]
        running = kv.concurrency(request.max_requests or slots, slots, each)
    chunks = kv.chunk_slots(tokens, request.chunk) if request.chunk else None
    return Mamba(slot, per_request, slots, running, chunks)


def _warnings(model: ModelConfig, request: Request, mamba: Mamba | None, tokens: int) -> tuple[str, ...]:
    found = []
    if request.memory is not None:
        found.append(
            "the fit is an upper bound: CUDA context, communication buffers and the loader's leftovers count too"
        )
    if model.kv_shared_layers:
        found.append(f"{model.kv_shared_layers} KV-shared layers are counted as if each held its own KV")
    if model.mtp_layers:
        found.append(f"{model.mtp_layers} MTP layer(s) are not counted: INT2 KV runs without speculative decoding")
    if model.sliding_ids:
        found.append(f"{len(model.sliding_ids)} sliding-window layers are counted at full length: an upper bound")
    if mamba and mamba.concurrency is not None and request.max_requests and mamba.concurrency < request.max_requests:
        found.append(f"--max-running-requests {request.max_requests} will be clamped to {mamba.concurrency}")
    if mamba and mamba.chunk_slots and mamba.slots and mamba.chunk_slots > mamba.slots:
        found.append(
            f"{tokens} tokens / chunk {request.chunk} = {mamba.chunk_slots:.1f} > {mamba.slots} mamba slots: "
            "prefix reuse collapses"
        )
    return tuple(found)


def _data(report: Report) -> dict[str, Any]:
    model, request = report.model, report.request
    int2 = report.token["int2"]
    return {
        "config": model.path,
        "model_type": model.model_type,
        "tp": request.tp,
        "group_size": request.cache.group_size or model.head_dim,
        "scale_dtype": request.cache.scale_dtype,
        "kv_layers": list(model.kv_layer_ids),
        "kv_heads_per_gpu": kv.kv_heads_per_gpu(model.num_kv_heads, request.tp),
        "tokens": report.tokens,
        "bytes_per_token_layer": {name: _bytes(size) for name, size in report.layer.items()},
        "bytes_per_token": {name: _bytes(size) for name, size in report.token.items()},
        "bytes_total": {name: size.total * report.tokens for name, size in report.token.items()},
        "log_line": {
            "codes_only": kv.log_line(report.tokens, int2, scales=False),
            "with_scales_and_zeros": kv.log_line(report.tokens, int2, scales=True),
        },
        "fit": asdict(report.fit) if report.fit else None,
        "memory": asdict(request.memory) if request.memory else None,
        "mamba": asdict(report.mamba) if report.mamba else None,
        "sessions": [asdict(entry) for entry in report.sessions],
        "warnings": list(report.warnings),
    }


def _bytes(size: TokenBytes) -> dict[str, int]:
    return {**asdict(size), "codes": size.codes, "scales": size.scales, "zeros": size.zeros, "total": size.total}


def _text(report: Report, console: Console) -> None:
    model, request, int2 = report.model, report.request, report.token["int2"]
    heads = kv.kv_heads_per_gpu(model.num_kv_heads, request.tp)
    line(
        console,
        f"{model.model_type}: {len(model.kv_layer_ids)} of {model.num_layers} layers hold KV, "
        f"{heads} KV head(s) of {model.head_dim} per GPU at tp {request.tp}",
    )
    _format_table(report, console)
    line(console, f"Log line, codes only (a hand-merged server): {kv.log_line(report.tokens, int2, scales=False)}")
    line(console, f"Log line, scales and zeros counted (ours): {kv.log_line(report.tokens, int2, scales=True)}")
    if report.fit and request.memory:
        memory = request.memory
        line(
            console,
            f"Fits: {report.fit.tokens} tokens in {memory.vram / kv.GIB:.2f} GiB x {memory.mem_fraction} "
            f"- {memory.weights / kv.GIB:.2f} GiB weights - {report.fit.mamba_bytes / kv.GIB:.2f} GiB recurrent state",
        )
    _mamba_text(report, console)
    if report.sessions:
        rows = [(str(s.length), str(s.fit), "concurrency" if s.clamped else "pool") for s in report.sessions]
        table(console, "Sessions that fit", ("tokens", "sessions", "limited by"), rows)
    for warning in report.warnings:
        line(console, f"warning: {warning}")


def _format_table(report: Report, console: Console) -> None:
    columns = ("format", "codes B/token/layer", "scales", "zeros", "B/token", "GiB", "GB (10^9)")
    rows = []
    for name, token in report.token.items():
        layer, total = report.layer[name], token.total * report.tokens
        counts = (layer.codes, layer.scales, layer.zeros, token.total)
        rows.append((name, *map(str, counts), f"{total / kv.GIB:.2f}", f"{total / kv.GB:.2f}"))
    table(console, f"KV per GPU; the last two columns are for {report.tokens} tokens", columns, rows)


def _mamba_text(report: Report, console: Console) -> None:
    mamba = report.mamba
    if mamba is None:
        return
    if mamba.slot_bytes is not None:
        line(console, f"Mamba slot: {mamba.slot_bytes / 2**20:.1f} MiB per GPU")
    line(console, "Slots per request: " + ", ".join(f"{name} {count}" for name, count in mamba.per_request.items()))
    if mamba.concurrency is not None:
        strategy = report.request.strategy.value
        each = mamba.per_request[strategy]
        line(console, f"Concurrency: {mamba.concurrency} ({mamba.slots} slots, {each} each with {strategy})")
