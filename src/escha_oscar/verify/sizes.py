"""The sizes that a KV pool can print, by format: the base of the log and live levels."""

from __future__ import annotations

from dataclasses import dataclass

from escha_oscar.serving.budget import GIB, CacheFormat, KVDtype, TokenBytes, scale_groups, token_bytes
from escha_oscar.serving.model_config import ModelConfig

_ROUNDING = 0.00501
_SPARE_SLOTS = 256  # a pool holds one padded page more than the tokens it reports


@dataclass(frozen=True)
class Expectation:
    """What is known beside the server: the model (None where no config was given) and what the user said of the run."""

    model: ModelConfig | None = None
    tp: int | None = None
    group_size: int | None = None
    scale_dtype: str = "float32"


@dataclass(frozen=True)
class Printed:
    """A pool as a server prints it: tokens, and sizes in GiB to two decimals, K and V apart or in one."""

    tokens: int
    k: float | None = None
    v: float | None = None
    kv: float | None = None

    def __str__(self) -> str:
        sizes = f"KV {self.kv:.2f} GB" if self.kv is not None else f"K {self.k:.2f} GB, V {self.v:.2f} GB"
        return f"{sizes} for {self.tokens} tokens"


@dataclass(frozen=True)
class Form:
    """One way in which a pool of a known format prints its size."""

    name: str
    per_token: TokenBytes
    scales: bool
    is_int2: bool

    @property
    def k(self) -> int:
        """K bytes per token in this form."""
        return self.per_token.k_total if self.scales else self.per_token.k_codes

    @property
    def v(self) -> int:
        """V bytes per token in this form."""
        return self.per_token.v_total if self.scales else self.per_token.v_codes

    def at(self, tokens: int) -> str:
        """Return the sizes of ``tokens`` in words."""
        return f"K {tokens * self.k / GIB:.2f} GB, V {tokens * self.v / GIB:.2f} GB ({self.name})"


def forms(model: ModelConfig, tp: int, group_size: int | None, scale_dtype: str) -> tuple[Form, ...]:
    """Return the int2 forms first, then every format that can be in effect in their place.

    Raises UsageError where the group size does not divide the head or tp does not fit the heads.
    """
    scale_groups(model.head_dim, group_size)
    int2 = token_bytes(model, tp, CacheFormat(KVDtype.INT2, group_size, scale_dtype))
    return (
        Form("int2, codes only: a hand merge", int2, False, True),
        Form("int2, codes with scales and zeros: this tool's merge", int2, True, True),
        Form("fp16 or bf16", token_bytes(model, tp, CacheFormat(KVDtype.FP16)), False, False),
        Form("fp8", token_bytes(model, tp, CacheFormat(KVDtype.FP8)), False, False),
    )


def fitting(pool: Printed, known: tuple[Form, ...]) -> tuple[Form, ...]:
    """Return the forms whose sizes are those of ``pool``."""
    return tuple(form for form in known if _fits(pool, form))


def _fits(pool: Printed, form: Form) -> bool:
    pairs = ((pool.k, form.k), (pool.v, form.v), (pool.kv, form.k + form.v))
    return all(_close(size, pool.tokens, each) for size, each in pairs if size is not None)


def _close(printed: float, tokens: int, per_token: int) -> bool:
    low, high = tokens * per_token / GIB, (tokens + _SPARE_SLOTS) * per_token / GIB
    return low - _ROUNDING <= printed <= high + _ROUNDING
