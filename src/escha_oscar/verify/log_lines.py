"""Reading a server's start-up log: colours, carriage returns and rank prefixes off, the known lines into facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from escha_oscar.verify.sizes import Printed

MAX_LINE = 1 << 16
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_SIZE = r"(\d{1,7}(?:\.\d{1,6})?) ?GB"
_ALLOCATED = re.compile(
    r"KV Cache is allocated\.\s*(?:dtype: (?P<dtype>[\w.]{1,40}), )?#tokens: (?P<tokens>\d{1,12}), "
    rf"(?:K size: (?P<k>{_SIZE}), V size: (?P<v>{_SIZE})|KV size: (?P<kv>{_SIZE}))"
)
_RANK = re.compile(r"\b((?:DP|PP|TP|EP)\d{1,4})\b")
_LIMITS = re.compile(r"\b(max_total_num_tokens|chunked_prefill_size|max_running_requests|context_len)=(-?\d{1,12})\b")
_SLOTS = re.compile(r"max_mamba_cache_size: (\d{1,9})")
_REDUCED = re.compile(r"max_running_requests was reduced from the requested (\d{1,9}) to (\d{1,9})")
_PROFILED = re.compile(r"max_total_tokens=(\d{1,12}) is larger than the profiled value (\d{1,12})")
_ARGUMENT = re.compile(r"\b([a-z_0-9]{2,60})=('[^']{0,200}'|\"[^\"]{0,200}\"|None|True|False|-?\d+(?:\.\d+)?)(?=[,)])")
_MIXED_WINDOW = re.compile(r"SGLANG_MIXED_KV_(?:PREFIX|RECENT|HP_PREFIX_POOL)_TOKENS\W{1,3}[1-9]\d*")

_SIGNS = {
    "ready": re.compile(r"server is fired up and ready"),
    "out_of_memory": re.compile(
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|free device mem: 0\.00 GiB", re.I
    ),
    "invalid_launch": re.compile(r"invalid configuration argument", re.I),
    "overlap_disabled": re.compile(r"Disabling overlap schedule|Overlap schedule[r]? is disabled", re.I),
    "prefill_graph": re.compile(
        r"Capture (?:[a-z]+ )?(?:piecewise|prefill|breakable) (?:CUDA )?graph(?: begin| end)|Capturing num tokens"
        r"|Capture cuda graph num tokens|\[BCG\] Capturing",
        re.I,
    ),
    "window": _MIXED_WINDOW,
}


@dataclass(frozen=True)
class Allocation:
    """One pool's line: ``rank`` is its prefix (``TP1``) or empty."""

    line: int
    rank: str
    dtype: str | None
    printed: Printed

    @property
    def tokens(self) -> int:
        """Return the tokens that the pool holds."""
        return self.printed.tokens


@dataclass
class Facts:
    """What the last start in a log says; ``signs`` maps a sign to the line where it was first seen."""

    allocations: list[Allocation] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    signs: dict[str, int] = field(default_factory=dict)
    mamba_slots: int | None = None
    reduced: tuple[int, int] | None = None
    capped: tuple[int, int] | None = None
    lines: int = 0

    def main_pools(self) -> list[Allocation]:
        """Return each rank's own pool: the one whose tokens the server reports, else its first."""
        total = self.limits.get("max_total_num_tokens")
        found: dict[str, Allocation] = {}
        for allocation in self.allocations:
            known = found.get(allocation.rank)
            if known is None or (known.tokens != total and allocation.tokens == total):
                found[allocation.rank] = allocation
        return list(found.values())

    def draft_pools(self) -> list[Allocation]:
        """Return the pools beside the main ones: those of a draft model."""
        main = self.main_pools()
        return [allocation for allocation in self.allocations if allocation not in main]

    def number(self, name: str) -> int | None:
        """Return a whole-number argument of the server, or None where the log does not show it."""
        text = self.arguments.get(name, "")
        return int(text) if re.fullmatch(r"-?\d{1,12}", text) else None

    def flag(self, name: str) -> bool:
        """Return whether the log shows the argument as True."""
        return self.arguments.get(name) == "True"


def read_facts(chunks: Iterable[str]) -> Facts:
    """Return the facts of the last server start among the lines; a new ``server_args=`` line begins one."""
    facts = Facts()
    for number, line in enumerate(_clean(chunks), start=1):
        if "server_args=ServerArgs(" in line:
            # the variables of a launch script are printed before the server speaks
            before = {name: at for name, at in facts.signs.items() if name == "window"}
            facts = Facts(arguments=_arguments(line), signs=before)
        facts.lines = number
        _take(facts, line, number)
    return facts


def _clean(chunks: Iterable[str]) -> Iterator[str]:
    for chunk in chunks:
        for line in chunk.rstrip("\r\n").split("\r"):
            yield _ANSI.sub("", line[:MAX_LINE])


def _take(facts: Facts, line: str, number: int) -> None:
    match = _ALLOCATED.search(line)
    if match:
        facts.allocations.append(_allocation(match, line, number))
    for name, pattern in _SIGNS.items():
        if name not in facts.signs and pattern.search(line):
            facts.signs[name] = number
    if "max_total_num_tokens=" in line and "server_args=" not in line:
        facts.limits.update((name, int(value)) for name, value in _LIMITS.findall(line))
    if match := _SLOTS.search(line):
        facts.mamba_slots = int(match[1])
    if match := _REDUCED.search(line):
        facts.reduced = int(match[1]), int(match[2])
    if match := _PROFILED.search(line):
        facts.capped = int(match[1]), int(match[2])


def _allocation(match: re.Match[str], line: str, number: int) -> Allocation:
    rank = " ".join(dict.fromkeys(_RANK.findall(line[: match.start()])))
    sizes = [_number(match[name]) for name in ("k", "v", "kv")]
    return Allocation(number, rank, match["dtype"], Printed(int(match["tokens"]), *sizes))


def _number(text: str | None) -> float | None:
    return None if text is None else float(text.removesuffix("GB").strip())


def _arguments(line: str) -> dict[str, str]:
    return {name: value.strip("'\"") for name, value in _ARGUMENT.findall(line)}
