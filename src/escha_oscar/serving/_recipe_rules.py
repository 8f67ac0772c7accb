"""The launch rules as data: values of the known checkpoints, settings with their reasons, and what breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from escha_oscar.serving import budget
from escha_oscar.serving.budget import GB, MambaStrategy
from escha_oscar.serving.model_config import ModelConfig

_SMALL_CARD = 13 * GB  # a "12 GB" card, whichever way its maker counts
WSL_LIBRARIES = "/usr/lib/wsl/lib"


@dataclass(frozen=True)
class Profile:
    """Values that a checkpoint runs with; ``None`` leaves a setting to the runtime."""

    name: str
    group_size: int | None
    context: int | None
    mem_fraction: float
    max_mamba: int
    max_requests: int
    chunk: int | None
    kv_splits: int | None
    ssm_dtype: str | None
    measured: bool


#: (is MoE, layers, query heads, KV heads, head size) -> the values it was measured with on two 12 GB cards.
KNOWN: dict[tuple[bool, int, int, int, int], Profile] = {
    (True, 40, 16, 2, 256): Profile(
        "Escha-W2 MoE (escha 1.0.2+qwen3moe)", 32, 262144, 0.88, 64, 16, None, None, None, measured=True
    ),
    (False, 64, 24, 4, 256): Profile(
        "Escha-W2 dense (escha 1.2.x+qwen3dense)", 64, 196608, 0.87, 40, 12, 6144, 64, "float16", measured=True
    ),
}


@dataclass(frozen=True)
class Request:
    """What a user asks for; ``None`` takes the profile's or the rule's value. ``vram`` is bytes of one GPU."""

    tp: int
    vram: int
    compute_capability: tuple[int, int] = (12, 0)
    wsl: bool = False
    ep: int | None = None
    backend: str = "triton"
    strategy: MambaStrategy = MambaStrategy.EXTRA_BUFFER
    mixed_chunk: bool = False
    context: int | None = None
    group_size: int | None = None
    mem_fraction: float | None = None
    max_mamba: int | None = None
    max_requests: int | None = None
    chunk: int | None = None
    pool_tokens: int | None = None
    weights: int | None = None
    model_path: str | None = None
    rotations_dir: str = "."


@dataclass(frozen=True)
class Facts:
    """A request with every value settled; what the rules look at. ``running`` is the concurrency that results."""

    model: ModelConfig
    profile: Profile
    request: Request
    ep: int
    group_size: int
    context: int
    mem_fraction: float
    max_mamba: int
    max_requests: int
    chunk: int
    pool: int

    @property
    def per_request(self) -> int:
        """Mamba slots that one request takes."""
        return budget.slots_per_request(self.request.strategy)

    @property
    def running(self) -> int:
        """Requests that can run at once."""
        if not self.model.is_hybrid:
            return self.max_requests
        return budget.concurrency(self.max_requests, self.max_mamba, self.per_request)

    @property
    def chunk_slots(self) -> float:
        """Mamba checkpoints that a full pool wants."""
        return budget.chunk_slots(self.pool, self.chunk)

    @property
    def small_card(self) -> bool:
        """True on the cards that the known values were measured on."""
        return self.request.vram < _SMALL_CARD


@dataclass(frozen=True)
class Rule:
    """How one setting gets its value (None: not set) and why; ``fixed`` marks the ones not to change."""

    name: str
    value: Callable[[Facts], str | None]
    why: Callable[[Facts], str]
    fixed: bool
    script: str | None = None


def _said(text: str) -> Callable[[Facts], str]:
    return lambda _: text


def _if(condition: Callable[[Facts], bool], value: Callable[[Facts], object]) -> Callable[[Facts], str | None]:
    return lambda facts: str(value(facts)) if condition(facts) else None


def _hybrid(facts: Facts) -> bool:
    return facts.model.is_hybrid


def _rotation(role: str, dim: Callable[[Facts], int]) -> Callable[[Facts], str | None]:
    def path(facts: Facts) -> str:
        folder = Path(facts.request.rotations_dir).absolute()
        return str(folder / f"{role}_rotation_hadamard_hd{dim(facts)}.pt")

    return path


_ROTATION_WHY = "the merged tree has no built-in rotation: without this file the server refuses to start"

ENVIRONMENT: tuple[Rule, ...] = (
    Rule(
        "LD_LIBRARY_PATH",
        _if(lambda f: f.request.wsl, _said(WSL_LIBRARIES)),
        _said("WSL keeps libcuda there; the pip-installed NVIDIA libraries have to be on the path too"),
        fixed=True,
    ),
    Rule("SGLANG_OSCAR_K_ROTATION_PATH", _rotation("k", lambda f: f.model.head_dim), _said(_ROTATION_WHY), fixed=True),
    Rule(
        "SGLANG_OSCAR_V_ROTATION_PATH", _rotation("v", lambda f: f.model.v_head_dim), _said(_ROTATION_WHY), fixed=True
    ),
    Rule(
        "SGLANG_CHUNK_DECODE_CAP",
        _said("1536"),
        _said("a long prefill no longer stalls running streams: worst gap between tokens 5.1 s -> 0.14 s; 0 is stock"),
        fixed=False,
    ),
    Rule(
        "SGLANG_CHUNK_FAIR_FLOOR",
        _said("256"),
        _said("tokens of each chunk that a long prefill leaves to short requests that wait behind it"),
        fixed=False,
    ),
)

ARGUMENTS: tuple[Rule, ...] = (
    Rule("--tp-size", lambda f: str(f.request.tp), _said("heads and weights are split over the GPUs"), fixed=True),
    Rule(
        "--ep-size",
        _if(lambda f: f.model.is_moe and f.request.tp > 1, lambda f: f.ep),
        _said("with --tp-size alone every GPU holds all experts: 11.06 GB of a 12 GB card, which does not load"),
        fixed=True,
    ),
    Rule(
        "--attention-backend",
        lambda f: f.request.backend,
        _said("the INT2 kernels live in this backend; flashinfer asserts on hybrid models on sm_120"),
        fixed=True,
        script="ATTN_BACKEND",
    ),
    Rule("--kv-cache-dtype", _said("int2"), _said("without it the context does not fit"), fixed=True),
    Rule(
        "--kv-cache-quant-group-size",
        lambda f: str(f.group_size),
        _said("elements per scale and zero: smaller is more exact and takes more memory"),
        fixed=False,
    ),
    Rule(
        "--context-length",
        lambda f: str(f.context),
        _said("the longest session; the pool is shared by all of them"),
        fixed=False,
        script="CTXLEN",
    ),
    Rule(
        "--mem-fraction-static",
        lambda f: f"{f.mem_fraction:g}",
        lambda f: (
            "do not raise: past about 11,830 MiB the card slows 190-fold without an error"
            if f.small_card
            else "leaves what 12 % of a 12 GB card left; raise it only with the memory watched during a long prefill"
        ),
        fixed=True,
        script="MEM",
    ),
    Rule(
        "--chunked-prefill-size",
        lambda f: str(f.chunk),
        lambda f: (
            f"{f.pool} / {f.chunk} = {f.chunk_slots:.1f} state checkpoints within {f.max_mamba} slots"
            if f.model.is_hybrid
            else "tokens of a prefill step: larger is faster and takes more memory"
        ),
        fixed=False,
        script="CHUNK",
    ),
    Rule(
        "--max-running-requests",
        lambda f: str(f.running),
        lambda f: (
            f"{f.max_mamba} slots / {f.per_request} per request" if f.model.is_hybrid else "requests that run at once"
        ),
        fixed=False,
        script="MAXREQ",
    ),
    Rule(
        "--max-mamba-cache-size",
        _if(_hybrid, lambda f: f.max_mamba),
        lambda f: f"{f.per_request} slots per request; more slots take memory from the KV pool",
        fixed=True,
        script="MAXMAMBA",
    ),
    Rule(
        "--mamba-scheduler-strategy",
        _if(_hybrid, lambda f: f.request.strategy.value),
        lambda f: (
            "as asked for; it disables the overlap scheduler"
            if f.request.strategy is MambaStrategy.NO_BUFFER
            else "keeps the overlap scheduler with the prefix cache on; no_buffer cost 14 % of throughput"
        ),
        fixed=True,
        script="MAMBA_SCHED",
    ),
    Rule(
        "--mamba-ssm-dtype",
        lambda f: f.profile.ssm_dtype,
        _said("halves the recurrent state"),
        fixed=False,
    ),
    Rule(
        "--triton-attention-num-kv-splits",
        lambda f: str(f.profile.kv_splits) if f.profile.kv_splits else None,
        _said("the default 8 also caps the dynamic count and cost 8 % of long-context decoding"),
        fixed=False,
    ),
    Rule(
        "--cuda-graph-bs",
        lambda f: " ".join(str(size) for size in sorted({1, 2, 4, 8, 16, f.running}) if size <= f.running),
        _said("graphs for the batch sizes that occur; each more takes memory"),
        fixed=False,
        script="CUDA_GRAPH_BS",
    ),
    Rule(
        "--enable-mixed-chunk",
        _if(lambda f: f.request.mixed_chunk, _said("")),
        _said("prefill and decode rows in one batch, as asked for"),
        fixed=False,
    ),
)


@dataclass(frozen=True)
class Trap:
    """A combination with a known outcome; ``fix`` is one next step."""

    name: str
    applies: Callable[[Facts], bool]
    why: Callable[[Facts], str]
    fix: str | None = None


REFUSALS: tuple[Trap, ...] = (
    Trap(
        "two-head-sizes",
        lambda f: f.model.two_head_sizes,
        lambda f: f"full layers have heads of {f.model.full.head_dim}, sliding ones of {f.model.sliding.head_dim}",
        "serve this model with another --kv-cache-dtype",
    ),
    Trap(
        "ep-size",
        lambda f: f.model.is_moe and f.request.tp > 1 and f.ep == 1,
        lambda f: f"--tp {f.request.tp} without expert parallelism copies all experts to every GPU: it does not load",
        "drop --ep, or give --ep the value of --tp",
    ),
    Trap(
        "ep-size",
        lambda f: f.ep > 1 and (not f.model.is_moe or f.request.tp % f.ep != 0),
        lambda f: (
            f"--ep {f.ep} does not divide --tp {f.request.tp}" if f.model.is_moe else "a dense model has no experts"
        ),
        "drop --ep",
    ),
    Trap(
        "attention-backend",
        lambda f: f.request.backend == "flashinfer" and f.request.compute_capability[0] == 12 and f.model.is_hybrid,
        _said("flashinfer asserts on the hybrid path on sm_120, and the INT2 kernels live in the triton backend"),
        "use --attention-backend triton",
    ),
    Trap(
        "attention-backend",
        lambda f: f.request.backend != "triton",
        lambda f: f"the INT2 kernels live in the triton backend, not in {f.request.backend}",
        "use --attention-backend triton",
    ),
    Trap(
        "memory",
        lambda f: f.profile.measured and f.request.vram * f.request.tp < 24 * GB,
        lambda f: f"{f.request.tp} x {f.request.vram / GB:.1f} GB: this checkpoint needs 24 GB in all",
        "name more GPUs with --tp, or larger ones with --vram",
    ),
    Trap(
        "vram-cliff",
        lambda f: f.profile.measured and f.small_card and (f.mem_fraction > 0.88 or f.max_mamba > 64),
        lambda f: (
            f"mem fraction {f.mem_fraction:g} with {f.max_mamba} mamba slots: 0.92 with 80 crossed the cliff at "
            "11,830 MiB and prefill fell from 3,056 to 16 tok/s, without an error"
        ),
        "stay at 0.88 and 64 or below",
    ),
    Trap(
        "pool",
        lambda f: f.pool < f.context,
        lambda f: f"a session of {f.context} tokens cannot fit a pool of {f.pool}",
        "lower --context or raise --pool-tokens",
    ),
    Trap(
        "mamba-slots",
        lambda f: f.model.is_hybrid and f.max_mamba < f.per_request,
        lambda f: f"{f.max_mamba} slots, and one request takes {f.per_request} with {f.request.strategy.value}",
        "raise --max-mamba",
    ),
    Trap(
        "mamba-slots",
        lambda f: f.model.is_hybrid and f.chunk_slots > f.max_mamba,
        lambda f: (
            f"{f.pool} tokens / chunk {f.chunk} = {f.chunk_slots:.1f} checkpoints for {f.max_mamba} slots: "
            "prefix reuse collapses"
        ),
        "raise --chunk or --max-mamba, or shrink the pool",
    ),
)

WARNINGS: tuple[Trap, ...] = (
    Trap(
        "mixed-chunk",
        lambda f: f.request.mixed_chunk and f.model.is_moe,
        _said(
            "--enable-mixed-chunk crashed a hand-merged MoE server (invalid configuration argument); "
            "this merge's mixed batches are checked, but not on a server with this checkpoint"
        ),
    ),
    Trap(
        "mixed-chunk",
        lambda f: f.request.mixed_chunk and f.model.is_hybrid and f.request.strategy is not MambaStrategy.NO_BUFFER,
        lambda f: (
            f"--enable-mixed-chunk with {f.request.strategy.value} on a hybrid model can restore a stale state: "
            "10 % of answers changed where it was measured"
        ),
    ),
    Trap(
        "no-buffer",
        lambda f: f.model.is_hybrid and f.request.strategy is MambaStrategy.NO_BUFFER,
        _said("no_buffer disables the overlap scheduler (14 % of throughput) and asserts for page sizes above 1"),
    ),
    Trap(
        "concurrency",
        lambda f: f.request.max_requests is not None and f.running < f.request.max_requests,
        lambda f: (
            f"--max-requests {f.request.max_requests} is more than can run at once: {f.running} is set "
            f"({f.max_mamba} slots, {f.per_request} per request)"
        ),
    ),
    Trap(
        "context",
        lambda f: f.model.max_context is not None and f.context > f.model.max_context,
        lambda f: f"context {f.context} is more than the model's own {f.model.max_context}",
    ),
    Trap(
        "groups",
        lambda f: f.model.head_dim // f.group_size == 2,
        lambda f: f"two groups per head (group size {f.group_size}): --kernels pr refuses that, the native ones do not",
    ),
    Trap(
        "prefill-graph",
        lambda f: f.small_card and not f.model.is_moe,
        _said(
            "a log that captures prefill graphs (about 1.8 GB) wants --disable-prefill-cuda-graph on a 12 GB card, "
            "where the runtime has that flag"
        ),
    ),
    Trap(
        "mtp",
        lambda f: f.model.mtp_layers > 0,
        _said("the checkpoint has an MTP layer: leave speculative decoding off, INT2 KV does not cover it"),
    ),
    Trap(
        "shared-layers",
        lambda f: f.model.kv_shared_layers > 0,
        lambda f: f"{f.model.kv_shared_layers} KV-shared layers read another layer's cache: not measured with INT2",
    ),
    Trap(
        "unmeasured",
        lambda f: not f.profile.measured,
        _said("not one of the two measured checkpoints: values follow the same rules, start with a long prefill"),
    ),
    Trap(
        "weights",
        lambda f: f.request.weights is None and not f.profile.measured,
        _said("the size of the weights is unknown, so the fit was not checked: add --weights, or run budget"),
    ),
)
