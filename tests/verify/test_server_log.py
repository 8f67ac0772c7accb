"""The log level: sizes against config.json, and the traps that a start-up log shows."""

from __future__ import annotations

import pytest

from escha_oscar.errors import UsageError
from escha_oscar.model import Finding, Severity
from escha_oscar.serving.budget import CacheFormat, KVDtype, log_line, token_bytes
from escha_oscar.serving.model_config import ModelConfig
from escha_oscar.verify.codes import CODES, Level
from escha_oscar.verify.server_log import check_log
from escha_oscar.verify.sizes import Expectation

ARTICLE = "KV Cache is allocated. #tokens: 350257, K size: 0.21 GB, V size: 0.21 GB"
LIMITS = (
    "max_total_num_tokens=350257, chunked_prefill_size=16384, max_prefill_tokens=16384, max_running_requests=12, "
    "context_len=262144, available_gpu_mem=0.80 GB"
)
READY = "The server is fired up and ready to roll!"
SLOTS = "Mamba Cache is allocated. max_mamba_cache_size: 64, conv_state size: 0.10GB, ssm_state size: 1.20GB "


def arguments(**changes: object) -> str:
    values: dict[str, object] = {
        "model_path": "/models/x", "kv_cache_dtype": "int2", "kv_cache_quant_group_size": 32, "tp_size": 2,
        "dp_size": 1, "pp_size": 1, "page_size": 1, "max_running_requests": 12, "max_total_tokens": None,
        "enable_mixed_chunk": False,
        "mamba_scheduler_strategy": "extra_buffer",
    }  # fmt: skip
    values.update(changes)
    return f"[2026-09-15 10:00:00] server_args=ServerArgs({', '.join(f'{k}={v!r}' for k, v in values.items())})"


def problems(lines: list[str], **expected: object) -> list[Finding]:
    report = check_log(lines, Expectation(**expected))  # type: ignore[arg-type]
    return [f for f in report.findings if f.severity is not Severity.INFO]


def codes(lines: list[str], **expected: object) -> list[str]:
    return [f.code for f in problems(lines, **expected)]


def good(**changes: object) -> list[str]:
    return [arguments(**changes), SLOTS, ARTICLE, LIMITS, READY]


def test_without_a_tensor_parallel_size_an_fp8_pool_of_two_ranks_is_not_taken_for_int2(moe: ModelConfig) -> None:
    line = "KV Cache is allocated. #tokens: 350257, K size: 0.84 GB, V size: 0.84 GB"
    assert codes([line], model=moe, group_size=32) == ["log-cannot-compare"]
    assert codes([line], model=moe, tp=2, group_size=32) == ["log-int2-off"]


def test_the_articles_log_is_in_effect(moe: ModelConfig) -> None:
    report = check_log(good(), Expectation(moe, 2, 32))
    assert [f.code for f in report.findings] == ["log-int2-in-effect"]
    assert "codes only" in (report.findings[0].found or "")


@pytest.mark.parametrize("scales", [False, True], ids=["codes only", "scales counted"])
@pytest.mark.parametrize("tokens", [350257, 100_000, 1_000_000])
def test_either_form_is_accepted_and_named(moe: ModelConfig, scales: bool, tokens: int) -> None:
    per_token = token_bytes(moe, 2, CacheFormat(KVDtype.INT2, 32))
    report = check_log([log_line(tokens, per_token, scales=scales)], Expectation(moe, 2, 32))
    assert [f.code for f in report.findings] == ["log-int2-in-effect"]
    assert ("scales and zeros" in (report.findings[0].found or "")) == scales


def test_groups_of_64_print_another_size_with_scales(dense: ModelConfig) -> None:
    per_token = token_bytes(dense, 2, CacheFormat(KVDtype.INT2, 64))
    line = log_line(210001, per_token, scales=True)
    assert check_log([line], Expectation(dense, 2, 64)).ok
    assert codes([line], model=dense, tp=2, group_size=32) == ["log-size-mismatch"]


@pytest.mark.parametrize("dtype", [KVDtype.FP16, KVDtype.FP8])
def test_a_pool_of_another_format_is_an_error(moe: ModelConfig, dtype: KVDtype) -> None:
    line = log_line(350257, token_bytes(moe, 2, CacheFormat(dtype)), scales=False)
    found = problems([line], model=moe, tp=2, group_size=32)
    assert [f.code for f in found] == ["log-int2-off"]
    assert dtype.value in found[0].message


FORMS = {
    "plain": ARTICLE,
    "rank prefix": f"[2026-09-15 10:00:00 TP1 EP1] {ARTICLE}",
    "colours": f"\x1b[32mINFO\x1b[0m [TP0] {ARTICLE}\x1b[0m",
    "carriage return": f"{ARTICLE}\r\n",
    "after a progress bar": f"Loading: 10%\rLoading: 100%\r{ARTICLE}",
    "with dtype": "KV Cache is allocated. dtype: int2, #tokens: 350257, K size: 0.21 GB, V size: 0.21 GB",
    "one size": "KV Cache is allocated. #tokens: 350257, KV size: 0.42 GB",
    "one size with dtype": "KV Cache is allocated. dtype: int2, #tokens: 350257, KV size: 0.42 GB",
    "under a service manager": f"Sep 15 10:00:00 host python[812]: [2026-09-15 10:00:00 TP0] {ARTICLE}",
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_the_line_is_read(moe: ModelConfig, name: str) -> None:
    report = check_log([FORMS[name]], Expectation(moe, 2, 32))
    assert [f.code for f in report.findings] == ["log-int2-in-effect"]


def test_every_rank_is_judged(moe: ModelConfig) -> None:
    wrong = "KV Cache is allocated. #tokens: 350257, K size: 1.67 GB, V size: 1.67 GB"
    found = problems([f"[TP0] {ARTICLE}", f"[TP1] {wrong}"], model=moe, tp=2, group_size=32)
    assert [(f.code, f.line) for f in found] == [("log-int2-off", 2)]
    assert "TP1" in found[0].message


def test_a_dtype_in_the_line_is_believed(moe: ModelConfig) -> None:
    line = "KV Cache is allocated. dtype: torch.float16, #tokens: 10, K size: 0.00 GB, V size: 0.00 GB"
    assert codes([line], model=moe, tp=2, group_size=32) == ["log-int2-off"]


def test_a_draft_pool_is_kept_apart(moe: ModelConfig) -> None:
    draft = "KV Cache is allocated. #tokens: 350257, K size: 0.33 GB, V size: 0.33 GB"
    report = check_log([arguments(), f"[TP0] {ARTICLE}", f"[TP0] {draft}", LIMITS], Expectation(moe, 2, 32))
    assert [f.code for f in report.findings] == ["log-int2-in-effect", "log-draft-pool"]


def test_the_last_start_in_the_log_counts(moe: ModelConfig) -> None:
    old = [arguments(), "KV Cache is allocated. #tokens: 40000, K size: 0.19 GB, V size: 0.19 GB", "CUDA out of memory"]
    assert codes([*old, *good()], model=moe, tp=2, group_size=32) == []


CANNOT_TELL = {
    "an empty log": ([], "log-no-allocation"),
    "no allocation line": ([arguments(), READY], "log-no-allocation"),
    "a quoted word": (["grep 'KV Cache is allocated' server.log"], "log-no-allocation"),
    "too few tokens": (["KV Cache is allocated. #tokens: 100, K size: 0.00 GB, V size: 0.00 GB"], "log-cannot-compare"),
    "pipeline stages": ([arguments(pp_size=2), ARTICLE], "log-cannot-compare"),
}


@pytest.mark.parametrize("name", CANNOT_TELL)
def test_an_open_question_is_said_to_be_open(moe: ModelConfig, name: str) -> None:
    lines, code = CANNOT_TELL[name]
    report = check_log(lines, Expectation(moe, 2, 32))
    assert [f.code for f in report.findings] == [code]
    assert CODES[code].cannot_tell and report.ok


def test_without_a_config_the_size_is_not_judged() -> None:
    assert codes([ARTICLE]) == ["log-cannot-compare"]


def test_a_group_size_that_does_not_divide_is_refused(moe: ModelConfig) -> None:
    with pytest.raises(UsageError, match="48"):
        check_log([ARTICLE], Expectation(moe, 2, 48))


TRAPS: dict[str, tuple[list[str], str]] = {
    "45a prefill graph": ([*good(), "Capture piecewise CUDA graph begin. avail mem=1.90 GB"], "log-prefill-graph"),
    "45a from 0.5.15": ([*good(), "Capturing num tokens (num_tokens=4096 avail_mem=1.0 GB)"], "log-prefill-graph"),
    "45b chunks and slots": (
        [arguments(), SLOTS.replace("64", "32"), ARTICLE, LIMITS.replace("=16384,", "=4096,", 1)],
        "log-mamba-slots",
    ),
    "45e no_buffer": (
        [*good(), "WARNING Disabling overlap schedule since mamba no_buffer is not compatible with overlap schedule"],
        "log-overlap-disabled",
    ),
    "45e by the arguments": (good(mamba_scheduler_strategy="no_buffer"), "log-overlap-disabled"),
    "45h mixed chunk": (good(enable_mixed_chunk=True), "log-mixed-chunk"),
    "45i window": (["SGLANG_MIXED_KV_RECENT_TOKENS=128", *good()], "log-window-ignored"),
    "concurrency": (good(max_running_requests=16), "log-concurrency-clamped"),
    "concurrency, said so": (
        [*good(), "max_running_requests was reduced from the requested 16 to 12 (per dp worker)"],
        "log-concurrency-clamped",
    ),
    "a cap too high": (
        [*good(), "max_total_tokens=900000 is larger than the profiled value 350257."],
        "log-pool-capped",
    ),
    "a cap in effect": (good(max_total_tokens=350257), "log-pool-capped"),
    "less than one context": (
        [arguments(), SLOTS, ARTICLE, LIMITS.replace("context_len=262144", "context_len=524288")],
        "log-pool-capped",
    ),
    "45f after the start": (
        [*good(), "module device-loaded after serving started (free device mem: 0.00 GiB)"],
        "log-out-of-memory",
    ),
    "during the start": ([arguments(), SLOTS, ARTICLE, LIMITS, "torch.OutOfMemoryError: CUDA"], "log-out-of-memory"),
    "a launch error": ([*good(), "RuntimeError: CUDA error: invalid configuration argument"], "log-invalid-launch"),
    "not asked for": (good(kv_cache_dtype="auto"), "log-int2-not-asked"),
    "another tp": (
        [arguments(tp_size=1), "KV Cache is allocated. #tokens: 350257, KV size: 0.84 GB"],
        "log-arguments-differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_gives_exactly_its_finding(moe: ModelConfig, name: str) -> None:
    lines, code = TRAPS[name]
    found = problems(lines, model=moe, tp=2, group_size=32)
    assert [f.code for f in found] == [code]
    assert found[0].expected and found[0].found and found[0].hint
    ok = CODES[code].severity is not Severity.ERROR
    assert check_log(lines, Expectation(moe, 2, 32)).ok is ok


def test_case_45b_has_the_recorded_numbers(dense: ModelConfig) -> None:
    per_token = token_bytes(dense, 2, CacheFormat(KVDtype.INT2, 64))
    lines = [
        SLOTS.replace("64", "32"),
        log_line(210000, per_token, scales=True),
        "max_total_num_tokens=210000, chunked_prefill_size={}, max_running_requests=6, context_len=196608",
    ]
    bad = [line.format(4096) for line in lines]
    assert "51.3 > 32" in problems(bad, model=dense, tp=2, group_size=64)[0].message
    assert problems([line.format(8192) for line in lines], model=dense, tp=2, group_size=64) == []


def test_case_45c_ten_layers_are_counted_not_forty(moe: ModelConfig) -> None:
    assert codes([ARTICLE.replace("0.21", "0.84")], model=moe, tp=2, group_size=32) != []
    assert codes([ARTICLE], model=moe, tp=2, group_size=32) == []


def test_case_45d_the_host_pool_is_another_unit(dense: ModelConfig) -> None:
    per_token = token_bytes(dense, 2, CacheFormat(KVDtype.INT2, 64))
    lines = [
        "Allocating 1.29 GB host memory for hierarchical KV cache.",
        log_line(210001, per_token, scales=True),
    ]
    assert "KV size" not in lines[1] and "0.60 GB" in lines[1]
    assert codes(lines, model=dense, tp=2, group_size=64) == []


def test_no_buffer_without_a_prefix_cache_keeps_the_overlap_schedule(moe: ModelConfig) -> None:
    lines = good(mamba_scheduler_strategy="no_buffer", disable_radix_cache=True)
    assert codes(lines, model=moe, tp=2, group_size=32) == []


def test_case_45f_names_the_first_long_prefill(moe: ModelConfig) -> None:
    lines, _ = TRAPS["45f after the start"]
    assert (
        problems(lines, model=moe, tp=2, group_size=32)[0].message == "started but out of memory on first long prefill"
    )


def test_case_45g_kv_heads_are_replicated_never_halved(moe: ModelConfig) -> None:
    assert codes([ARTICLE], model=moe, tp=4, group_size=32) == []
    assert codes([ARTICLE.replace("0.21", "0.10")], model=moe, tp=4, group_size=32) != []


def test_every_log_code_is_met_here() -> None:
    met = {code for _, code in TRAPS.values()} | {code for _, code in CANNOT_TELL.values()}
    met |= {"log-int2-in-effect", "log-int2-off", "log-size-mismatch", "log-draft-pool"}
    assert met == {name for name, code in CODES.items() if code.level is Level.LOG}
