"""KV-cache arithmetic: bytes per token, layer and GPU, tokens and sessions that fit, mamba slots."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from escha_oscar.errors import UsageError
from escha_oscar.serving.model_config import HeadShape, LinearState, ModelConfig

GIB = 1 << 30
GB = 10**9
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CONV_BYTES = 2  # the convolution window is kept in bf16 whatever the state's dtype
#: The runtime's split of free memory between recurrent state and KV where the slot count is left to it.
_MAMBA_FULL_MEMORY_RATIO = 0.9


class KVDtype(str, Enum):
    """What the KV pool stores."""

    FP16 = "fp16"
    FP8 = "fp8"
    INT2 = "int2"


class MambaStrategy(str, Enum):
    """``--mamba-scheduler-strategy``: how many state slots a running request holds."""

    NO_BUFFER = "no_buffer"
    EXTRA_BUFFER = "extra_buffer"
    EXTRA_BUFFER_LAZY = "extra_buffer_lazy"


@dataclass(frozen=True)
class CacheFormat:
    """A KV format; ``group_size`` None is one scale group per head, ``scale_dtype`` a torch name."""

    dtype: KVDtype
    group_size: int | None = None
    scale_dtype: str = "float32"


@dataclass(frozen=True)
class TokenBytes:
    """Bytes of one token on one GPU, K and V apart; scales and zeros are 0 except for int2."""

    k_codes: int
    v_codes: int
    k_scales: int = 0
    v_scales: int = 0
    k_zeros: int = 0
    v_zeros: int = 0

    @property
    def codes(self) -> int:
        """K and V values without scales and zeros."""
        return self.k_codes + self.v_codes

    @property
    def scales(self) -> int:
        """K and V scales."""
        return self.k_scales + self.v_scales

    @property
    def zeros(self) -> int:
        """K and V zeros."""
        return self.k_zeros + self.v_zeros

    @property
    def total(self) -> int:
        """Everything that one token takes."""
        return self.codes + self.scales + self.zeros

    @property
    def k_total(self) -> int:
        """K codes, scales and zeros."""
        return self.k_codes + self.k_scales + self.k_zeros

    @property
    def v_total(self) -> int:
        """V codes, scales and zeros."""
        return self.v_codes + self.v_scales + self.v_zeros

    def times(self, count: int) -> TokenBytes:
        """Bytes of ``count`` layers or tokens of this kind."""
        return TokenBytes(
            self.k_codes * count,
            self.v_codes * count,
            self.k_scales * count,
            self.v_scales * count,
            self.k_zeros * count,
            self.v_zeros * count,
        )

    def plus(self, other: TokenBytes) -> TokenBytes:
        """Sum of two."""
        return TokenBytes(
            self.k_codes + other.k_codes,
            self.v_codes + other.v_codes,
            self.k_scales + other.k_scales,
            self.v_scales + other.v_scales,
            self.k_zeros + other.k_zeros,
            self.v_zeros + other.v_zeros,
        )


def kv_heads_per_gpu(kv_heads: int, tp: int) -> int:
    """KV heads on each GPU; where there are fewer heads than GPUs each GPU holds one, a copy.

    Raises UsageError where neither number divides the other: the runtime asserts on that.
    """
    if kv_heads % tp and tp % kv_heads:
        fitting = [str(n) for n in range(1, 2 * kv_heads + 1) if not (kv_heads % n and n % kv_heads)]
        raise UsageError(f"{kv_heads} KV heads cannot be spread over --tp {tp}", hint=f"--tp {' or '.join(fitting)}")
    return max(1, kv_heads // tp)


def scale_groups(head_dim: int, group_size: int | None) -> int:
    """Scale groups of one head row; None or ``head_dim`` itself is one group.

    Raises UsageError, naming both numbers, where the groups do not tile the row or codes do not fill bytes.
    """
    size = head_dim if group_size is None else group_size
    if size < 1 or head_dim % size:
        fitting = [str(n) for n in (32, 64, 128, head_dim) if head_dim % n == 0]
        hint = f"--group-size {' or '.join(dict.fromkeys(fitting))}"
        raise UsageError(f"group size {size} does not divide head size {head_dim}", hint=hint)
    if head_dim % 4:
        raise UsageError(f"head size {head_dim} is no multiple of 4: four 2-bit codes share a byte")
    return head_dim // size


def layer_bytes(shape: HeadShape, tp: int, cache: CacheFormat) -> TokenBytes:
    """Bytes per token of one layer on one GPU."""
    heads = kv_heads_per_gpu(shape.kv_heads, tp)
    if cache.dtype is not KVDtype.INT2:
        width = 2 if cache.dtype is KVDtype.FP16 else 1
        return TokenBytes(heads * shape.head_dim * width, heads * shape.v_head_dim * width)
    number = _DTYPE_BYTES[cache.scale_dtype]
    k_scales = heads * scale_groups(shape.head_dim, cache.group_size) * number
    v_scales = heads * scale_groups(shape.v_head_dim, cache.group_size) * number
    k_codes, v_codes = heads * shape.head_dim // 4, heads * shape.v_head_dim // 4
    return TokenBytes(k_codes, v_codes, k_scales, v_scales, k_scales, v_scales)


def token_bytes(model: ModelConfig, tp: int, cache: CacheFormat) -> TokenBytes:
    """Bytes per token on one GPU over all layers that hold KV; recurrent layers count nothing."""
    total = layer_bytes(model.full, tp, cache).times(len(model.full_attention_ids))
    if not model.sliding_ids:
        return total
    return total.plus(layer_bytes(model.sliding, tp, cache).times(len(model.sliding_ids)))


def log_line(tokens: int, per_token: TokenBytes, *, scales: bool) -> str:
    """The server's start-up line for a pool: its "GB" is GiB.

    ``scales=False`` is the form that counts codes alone (hand merges), True the form that counts all buffers.
    """
    k = per_token.k_total if scales else per_token.k_codes
    v = per_token.v_total if scales else per_token.v_codes
    sizes = f"K size: {tokens * k / GIB:.2f} GB, V size: {tokens * v / GIB:.2f} GB"
    return f"KV Cache is allocated. #tokens: {tokens}, {sizes}"


def slots_per_request(strategy: MambaStrategy, *, radix: bool = True, overlap: bool = True) -> int:
    """Mamba state slots that one running request takes from ``--max-mamba-cache-size``."""
    if not radix:
        return 1
    if strategy is MambaStrategy.NO_BUFFER:
        return 3
    if strategy is MambaStrategy.EXTRA_BUFFER and overlap:
        return 5
    return 4


def mamba_slot_bytes(state: LinearState, tp: int, ssm_dtype: str | None = None) -> int:
    """Bytes of one recurrent-state slot on one GPU, all linear layers; raises UsageError where tp does not fit."""
    if state.heads % tp:
        raise UsageError(f"{state.heads} recurrent-state heads cannot be spread over --tp {tp}")
    dtype = ssm_dtype or state.ssm_dtype
    if dtype not in _DTYPE_BYTES:
        raise UsageError(f"unknown mamba state dtype {dtype!r}"[:80], sought=f"one of {', '.join(_DTYPE_BYTES)}")
    groups = state.groups if state.groups % tp == 0 else tp
    width = (state.intermediate + 2 * groups * state.state_size) // tp
    temporal = state.heads // tp * state.head_dim * state.state_size
    return state.layers * (width * (state.conv_kernel - 1) * _CONV_BYTES + temporal * _DTYPE_BYTES[dtype])


@dataclass(frozen=True)
class Memory:
    """One GPU's memory in bytes: the whole, the share the runtime may take, and the weights on it."""

    vram: int
    mem_fraction: float
    weights: int

    @property
    def free(self) -> int:
        """What is left for recurrent state and KV."""
        return int(self.vram * self.mem_fraction) - self.weights


@dataclass(frozen=True)
class Fit:
    """What fits into one GPU: KV tokens and mamba slots."""

    tokens: int
    mamba_slots: int
    mamba_bytes: int


def fit(memory: Memory, per_token: TokenBytes, slot_bytes: int, slots: int | None) -> Fit:
    """Divide free memory between mamba slots and KV tokens.

    ``slot_bytes`` is 0 for models without recurrent state; ``slots`` None leaves the split to the runtime's ratio.
    Raises UsageError where not one token is left.
    """
    free = memory.free
    if slot_bytes and slots is None:
        share = free * _MAMBA_FULL_MEMORY_RATIO / (1 + _MAMBA_FULL_MEMORY_RATIO)
        slots = max(0, int(share // slot_bytes))
    mamba = (slots or 0) * slot_bytes
    tokens = (free - mamba) // per_token.total
    if tokens < 1:
        raise UsageError(
            "no memory is left for KV",
            sought="more than weights and recurrent state",
            found=f"{memory.vram * memory.mem_fraction / GIB:.2f} GiB usable, {memory.weights / GIB:.2f} GiB weights, "
            f"{mamba / GIB:.2f} GiB recurrent state",
            hint="raise --tp, or lower --max-mamba (--weights is what one GPU holds)",
        )
    return Fit(tokens, slots or 0, mamba)


def concurrency(max_requests: int, slots: int, per_request: int) -> int:
    """Requests that can run at once: what was asked for, clamped by the mamba slots."""
    return min(max_requests, slots // per_request)


def chunk_slots(tokens: int, chunk: int) -> float:
    """Mamba checkpoints that a full pool wants, one per prefill chunk; above the slots prefix reuse collapses."""
    return tokens / chunk


@dataclass(frozen=True)
class Sessions:
    """How many sessions of one length the pool holds, and whether concurrency is the tighter limit."""

    length: int
    fit: int
    clamped: bool


def sessions(tokens: int, lengths: tuple[int, ...], limit: int | None = None) -> tuple[Sessions, ...]:
    """Count the sessions of each length that fit a pool of ``tokens``."""
    counts = []
    for length in lengths:
        count = tokens // length
        clamped = limit is not None and limit < count
        counts.append(Sessions(length, min(count, limit) if limit is not None else count, clamped))
    return tuple(counts)


_UNITS = {"GB": GB, "GIB": GIB, "MB": 10**6, "MIB": 1 << 20}
_SIZE = re.compile(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*(GB|GiB|MB|MiB)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Read a memory size into bytes; "GB" is 10^9 and "GiB" 2^30, a number without a unit is refused."""
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        sought = "a number and GB, GiB, MB or MiB"
        hint = "write the unit, as 12GB (10^9 bytes) or 12227MiB (what nvidia-smi prints)"
        raise UsageError(f"not a memory size: {text!r}"[:80], sought=sought, hint=hint)
    return size
