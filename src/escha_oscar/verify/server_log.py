"""Level log: is INT2 in effect, judged from a start-up log against the size that config.json implies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from escha_oscar.model import Finding, Report
from escha_oscar.verify.codes import finding
from escha_oscar.verify.log_lines import Allocation, Facts, read_facts
from escha_oscar.verify.sizes import Expectation, Form, fitting, forms

_LEVEL_NEXT = "escha-oscar verify --level files --level static"


def check_log(lines: Iterable[str], expected: Expectation) -> Report:
    """Return the findings about one log; nothing about a pool in it leaves the question open (``cannot_tell``)."""
    facts = read_facts(lines)
    found = [finding_ for check in _CHECKS for finding_ in check(facts, expected)]
    return Report(tuple(dict.fromkeys(found)), checks=len(_CHECKS))


def _sizes(facts: Facts, expected: Expectation) -> Iterator[Finding]:
    pools = facts.main_pools()
    if not pools:
        yield finding(
            "log-no-allocation",
            f"no pool allocation among {facts.lines} lines",
            expected="a line 'KV Cache is allocated. #tokens: ...'",
            found="none",
            hint="start the server with --log-level info and pass the whole start-up log",
        )
        return
    if facts.arguments and facts.arguments.get("kv_cache_dtype", "int2") != "int2":
        yield _not_asked(facts)
        return
    for pool in pools:
        if pool.dtype is not None and pool.dtype != "int2":
            yield _off(pool, f"its dtype is {pool.dtype}")
        else:
            yield from _size(pool, facts, expected)


def _size(pool: Allocation, facts: Facts, expected: Expectation) -> Iterator[Finding]:
    reason = _incomparable(facts, expected)
    if reason or expected.model is None:
        yield _cannot(pool, reason)
        return
    known = forms(expected.model, _tp(facts, expected), _group(facts, expected), expected.scale_dtype)
    fits = fitting(pool.printed, known)
    if any(form.is_int2 for form in fits) and not all(form.is_int2 for form in fits):
        yield _cannot(pool, f"{pool.tokens} tokens are too few: int2 and {fits[-1].name} print the same size")
    elif fits and fits[0].is_int2:
        yield _in_effect(pool, fits)
    elif fits:
        yield _off(pool, f"its size is that of {fits[0].name}")
    else:
        yield _mismatch(pool, known)


def _incomparable(facts: Facts, expected: Expectation) -> str:
    if expected.model is None:
        return "no config.json was given, so the expected size is unknown"
    if facts.number("tp_size") is None and expected.tp is None:
        return "neither the log nor --tp says over how many GPUs the heads are spread"
    if (facts.number("pp_size") or 1) > 1:
        return "the layers are spread over pipeline stages"
    if (facts.number("dp_size") or 1) > 1 and facts.flag("enable_dp_attention"):
        return "attention is data-parallel: heads per rank are not those of --tp"
    return ""


def _tp(facts: Facts, expected: Expectation) -> int:
    return facts.number("tp_size") or expected.tp or 1


def _group(facts: Facts, expected: Expectation) -> int | None:
    return facts.number("kv_cache_quant_group_size") or expected.group_size


def _in_effect(pool: Allocation, fits: tuple[Form, ...]) -> Finding:
    return finding(
        "log-int2-in-effect",
        f"INT2 is in effect{_on(pool)}: {pool.tokens} tokens",
        line=pool.line,
        expected=" or ".join(form.at(pool.tokens) for form in fits),
        found=f"{pool.printed} ({' or '.join(form.name for form in fits)})",
    )


def _off(pool: Allocation, why: str) -> Finding:
    return finding(
        "log-int2-off",
        f"INT2 is not in effect{_on(pool)}: {why}",
        line=pool.line,
        expected="a pool of 2-bit codes",
        found=str(pool.printed),
        hint="start with --kv-cache-dtype int2, then " + _LEVEL_NEXT,
    )


def _not_asked(facts: Facts) -> Finding:
    value = facts.arguments["kv_cache_dtype"]
    return finding(
        "log-int2-not-asked",
        f"the server was started with kv_cache_dtype={value}",
        expected="kv_cache_dtype='int2'",
        found=f"kv_cache_dtype='{value}'",
        hint="start with --kv-cache-dtype int2",
    )


def _mismatch(pool: Allocation, known: tuple[Form, ...]) -> Finding:
    return finding(
        "log-size-mismatch",
        f"the pool's size fits no known format{_on(pool)}",
        line=pool.line,
        expected="; ".join(form.at(pool.tokens) for form in known[:2]),
        found=str(pool.printed),
        hint="check --config, --tp and --group-size against the launch command",
    )


def _cannot(pool: Allocation, reason: str) -> Finding:
    dtype = f"dtype {pool.dtype}, " if pool.dtype else ""
    return finding(
        "log-cannot-compare",
        f"the pool's size cannot be judged{_on(pool)}: {reason}",
        line=pool.line,
        expected="a size that tells int2 from other formats",
        found=f"{dtype}{pool.printed}",
        hint="escha-oscar verify --log FILE --config config.json --tp N --group-size N",
    )


def _on(pool: Allocation) -> str:
    return f" on {pool.rank}" if pool.rank else ""


def _arguments(facts: Facts, expected: Expectation) -> Iterator[Finding]:
    said = (("tp_size", "--tp", expected.tp), ("kv_cache_quant_group_size", "--group-size", expected.group_size))
    for name, option, value in said:
        logged = facts.number(name)
        if value is not None and logged is not None and logged != value:
            yield finding(
                "log-arguments-differ",
                f"the server ran with {name}={logged}, {option} says {value}",
                expected=f"{option} {logged}",
                found=f"{option} {value}",
                hint=f"escha-oscar verify --log FILE {option} {logged}",
            )


def _draft(facts: Facts, _: Expectation) -> Iterator[Finding]:
    for pool in facts.draft_pools():
        yield finding(
            "log-draft-pool",
            f"a second pool{_on(pool)}, of a draft model, is not counted",
            line=pool.line,
            expected="one pool per rank: INT2 KV refuses speculative decoding",
            found=str(pool.printed),
            hint="start without --speculative-algorithm",
        )


def _memory(facts: Facts, _: Expectation) -> Iterator[Finding]:
    line = facts.signs.get("out_of_memory")
    if line is None:
        return
    started = "ready" in facts.signs and facts.signs["ready"] < line
    message = "started but out of memory on first long prefill" if started else "out of memory during the start"
    yield finding(
        "log-out-of-memory",
        message,
        line=line,
        expected="free device memory after the first long prefill",
        found="an out-of-memory line",
        hint="lower --mem-fraction-static (0.88 held on 12 GB) or --max-mamba-cache-size",
    )


def _launch(facts: Facts, _: Expectation) -> Iterator[Finding]:
    line = facts.signs.get("invalid_launch")
    if line is not None:
        yield finding(
            "log-invalid-launch",
            "a kernel was launched with an invalid configuration",
            line=line,
            expected="no CUDA launch error",
            found="invalid configuration argument",
            hint="start without --enable-mixed-chunk",
        )


def _graphs(facts: Facts, _: Expectation) -> Iterator[Finding]:
    line = facts.signs.get("prefill_graph")
    if line is not None:
        yield finding(
            "log-prefill-graph",
            "a prefill graph is captured beside the INT2 pool (about 1.8 GB for 51 shapes)",
            line=line,
            expected="no prefill graph on a 12 GB card",
            found="its capture",
            hint="--disable-piecewise-cuda-graph, or from 0.5.15 --cuda-graph-backend-prefill=disabled",
        )


def _mamba(facts: Facts, _: Expectation) -> Iterator[Finding]:
    tokens, chunk = facts.limits.get("max_total_num_tokens"), _chunk(facts)
    slots = facts.mamba_slots or facts.number("max_mamba_cache_size")
    if tokens and slots and chunk and tokens / chunk > slots:
        yield finding(
            "log-mamba-slots",
            f"{tokens} tokens / chunk {chunk} = {tokens / chunk:.1f} > {slots} mamba slots: prefix reuse collapses",
            expected=f"at most {slots} chunks in the pool",
            found=f"{tokens / chunk:.1f}",
            hint=f"--chunked-prefill-size {_next_chunk(tokens, slots)}",
        )


def _chunk(facts: Facts) -> int | None:
    chunk = facts.limits.get("chunked_prefill_size") or facts.number("chunked_prefill_size")
    return chunk if chunk and chunk > 0 else None


def _next_chunk(tokens: int, slots: int) -> int:
    """Return the smallest power of two that cuts the pool into at most ``slots`` chunks."""
    return 1 << max(0, (-(-tokens // slots) - 1).bit_length())


def _overlap(facts: Facts, _: Expectation) -> Iterator[Finding]:
    line, page = facts.signs.get("overlap_disabled"), facts.number("page_size")
    no_buffer = facts.arguments.get("mamba_scheduler_strategy") == "no_buffer" and facts.mamba_slots is not None
    no_buffer = no_buffer and not facts.flag("disable_radix_cache")
    if line is not None or no_buffer:
        tail = f"; page size {page} > 1 asserts with no_buffer" if page and page > 1 else ""
        yield finding(
            "log-overlap-disabled",
            f"the overlap schedule is disabled: aggregate throughput drops by about 14 %{tail}",
            line=line,
            expected="the overlap schedule",
            found="mamba no_buffer" if no_buffer else "Disabling overlap schedule",
            hint="--mamba-scheduler-strategy extra_buffer",
        )


def _mixed_chunk(facts: Facts, _: Expectation) -> Iterator[Finding]:
    hybrid = facts.mamba_slots is not None or (facts.number("max_mamba_cache_size") or 0) > 0
    buffered = facts.arguments.get("mamba_scheduler_strategy", "").startswith("extra_buffer")
    if facts.flag("enable_mixed_chunk") and hybrid and buffered:
        yield finding(
            "log-mixed-chunk",
            "mixed chunks with extra_buffer on a hybrid model restore stale state (10 % of answers changed)",
            expected="no --enable-mixed-chunk",
            found="enable_mixed_chunk=True, mamba_scheduler_strategy=extra_buffer",
            hint="start without --enable-mixed-chunk",
        )


def _window(facts: Facts, _: Expectation) -> Iterator[Finding]:
    line = facts.signs.get("window")
    if line is not None:
        yield finding(
            "log-window-ignored",
            "mixed-precision window variables are set, but that pool is not part of the merge: ignored",
            line=line,
            expected="no SGLANG_MIXED_KV_*_TOKENS",
            found="a window variable",
            hint="unset SGLANG_MIXED_KV_PREFIX_TOKENS SGLANG_MIXED_KV_RECENT_TOKENS",
        )


def _concurrency(facts: Facts, _: Expectation) -> Iterator[Finding]:
    asked, got = facts.number("max_running_requests"), facts.limits.get("max_running_requests")
    if facts.reduced is not None:
        asked, got = facts.reduced
    if asked is not None and got is not None and got < asked:
        yield finding(
            "log-concurrency-clamped",
            f"{asked} concurrent requests were asked for, {got} are served",
            expected=f"max_running_requests={asked}",
            found=f"max_running_requests={got}",
            hint="raise --max-mamba-cache-size (4 to 5 slots per request), or ask for fewer requests",
        )


def _capped(facts: Facts, _: Expectation) -> Iterator[Finding]:
    tokens, limit = facts.limits.get("max_total_num_tokens"), facts.number("max_total_tokens")
    if facts.capped is not None:
        message = f"--max-total-tokens {facts.capped[0]} does not fit; the pool is {facts.capped[1]}"
        yield _pool(message, f"{facts.capped[0]} tokens", f"{facts.capped[1]} tokens", "lower --max-total-tokens")
    elif limit and tokens and tokens == limit:
        message = f"the pool is capped at {limit} tokens by --max-total-tokens, whatever INT2 would allow"
        yield _pool(message, "the profiled size", f"{limit} tokens", "start without --max-total-tokens")
    context = facts.limits.get("context_len")
    if tokens and context and tokens < context:
        message = f"the pool of {tokens} tokens is smaller than one context of {context}"
        yield _pool(
            message, f"at least {context} tokens", f"{tokens} tokens", "escha-oscar budget --config config.json"
        )


def _pool(message: str, expected: str, found: str, hint: str) -> Finding:
    return finding("log-pool-capped", message, expected=expected, found=found, hint=hint)


_CHECKS: tuple[Callable[[Facts, Expectation], Iterator[Finding]], ...] = (
    _sizes, _arguments, _draft, _memory, _launch, _graphs, _mamba, _overlap, _mixed_chunk, _window, _concurrency,
    _capped,
)  # fmt: skip
