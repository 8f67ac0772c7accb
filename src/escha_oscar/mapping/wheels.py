"""The builds of the Escha family that are known, and where a tree of the family keeps its decode kernels."""

from dataclasses import dataclass

#: The wheel's place first, then the newer tree's.
DECODE_PATHS = (
    "sglang/srt/layers/attention/triton_ops/decode_attention.py",
    "sglang/kernels/ops/attention/decode_attention.py",
)

#: Where the INT2 kernels of this project are placed, as they are.
KERNELS_DIR = "sglang/srt/layers/attention/oscar_int2"


@dataclass(frozen=True)
class Family:
    """One line of wheels: distribution name, PEP 440 local label, public versions seen, nearest stock release."""

    name: str
    distribution: str
    local: str | None
    versions: tuple[str, ...]
    tree: str


FAMILIES = (
    Family("escha-moe", "escha", "qwen3moe", ("1.0.2",), "0.5.9"),
    Family("escha-dense", "escha", "qwen3dense", ("1.2.0", "1.2.1", "1.2.2"), "0.5.15"),
    Family(
        "upstream",
        "sglang",
        None,
        ("0.5.9", "0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13", "0.5.15"),
        "itself",
    ),
)
