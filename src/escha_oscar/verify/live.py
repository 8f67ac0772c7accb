"""Level live: what a running server says of itself, and one short completion; bounded in time and size."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from escha_oscar.errors import UsageError
from escha_oscar.model import Finding, Report
from escha_oscar.verify.codes import finding
from escha_oscar.verify.sizes import Expectation, Printed, fitting, forms

TIMEOUT = 10.0
COMPLETION_TIMEOUT = 60.0
MAX_BODY = 8 << 20
_INFO_PATHS = ("/server_info", "/get_server_info")
_PROMPT = "The capital of France is"
_TOKENS = 8


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: its status, and its JSON or the reason why there is none."""

    status: int
    data: Any = None
    reason: str = ""


def check_live(
    url: str, expected: Expectation, *, timeout: float = TIMEOUT, completion_timeout: float = COMPLETION_TIMEOUT
) -> Report:
    """Return the findings about the server at ``url``; one that cannot be asked leaves the question open.

    Raises UsageError for anything but a plain http or https address.
    """
    base = _base(url)
    answer = _info(base, timeout)
    if not isinstance(answer.data, dict):
        return Report((_unreachable(base, answer),), checks=1)
    found = [*_format(answer.data, expected), *_pool(answer.data, expected), *_completion(base, completion_timeout)]
    return Report(tuple(found), checks=4)


def _base(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or parts.username:
        raise UsageError("not a server address", found=url[:100], hint="name it as --url http://127.0.0.1:30000")
    return url.rstrip("/")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses to be sent elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _ask(url: str, timeout: float, body: Mapping[str, Any] | None = None) -> Answer:
    """Send one request, through no proxy and after no redirect."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", "Accept": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(request, timeout=timeout) as response:
            return _decoded(response.status, _read(response, time.monotonic() + timeout))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, reason=f"HTTP {error.code} {error.reason}")
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, reason=str(getattr(error, "reason", error)) or type(error).__name__)


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Return the body, at most one byte above the limit; a server that only trickles runs into the deadline."""
    body = bytearray()
    while len(body) <= MAX_BODY:
        part = response.read1(1 << 16)
        if not part:
            break
        body += part
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return bytes(body[: MAX_BODY + 1])


def _decoded(status: int, body: bytes) -> Answer:
    if len(body) > MAX_BODY:
        return Answer(status, reason=f"more than {MAX_BODY} bytes")
    try:
        return Answer(status, json.loads(body))
    except (ValueError, RecursionError):
        return Answer(status, reason="the answer is no JSON")


def _info(base: str, timeout: float) -> Answer:
    answer = Answer(0)
    for path in _INFO_PATHS:
        answer = _ask(base + path, timeout)
        if answer.status != 404:
            break
    return answer


def _unreachable(base: str, answer: Answer) -> Finding:
    return finding(
        "live-unreachable",
        f"{base} cannot be asked: {answer.reason or 'the answer is no JSON object'}",
        expected="an answer of /server_info",
        found=answer.reason or type(answer.data).__name__,
        hint=f"curl -s {base}/server_info",
    )


def _format(info: dict[str, Any], expected: Expectation) -> Iterator[Finding]:
    dtype, group = info.get("kv_cache_dtype"), info.get("kv_cache_quant_group_size")
    if dtype != "int2":
        yield finding(
            "live-int2-off",
            "the server does not run with INT2 KV",
            expected="kv_cache_dtype int2",
            found=f"kv_cache_dtype {dtype}"[:100],
            hint="start with --kv-cache-dtype int2",
        )
    elif expected.group_size is not None and group != expected.group_size:
        yield finding(
            "live-group-size",
            "the server runs with another group size",
            expected=f"kv_cache_quant_group_size {expected.group_size}",
            found=f"kv_cache_quant_group_size {group}"[:100],
            hint=f"start with --kv-cache-quant-group-size {expected.group_size}",
        )


def _pool(info: dict[str, Any], expected: Expectation) -> Iterator[Finding]:
    tokens, size = _tokens(info), _kv_gib(info)
    context = _integer(info.get("context_length")) or (expected.model.max_context if expected.model else None)
    if tokens is not None and context is not None and tokens < context:
        yield finding(
            "live-pool-below-context",
            f"the pool of {tokens} tokens is smaller than one context of {context}",
            expected=f"at least {context} tokens",
            found=f"{tokens} tokens",
            hint="escha-oscar budget --config config.json",
        )
    if info.get("kv_cache_dtype") == "int2":
        yield from _size(info, expected, tokens, size)


def _size(info: dict[str, Any], expected: Expectation, tokens: int | None, size: float | None) -> Iterator[Finding]:
    tp = _integer(info.get("tp_size")) or expected.tp
    reason = _incomparable(info, expected, tp)
    if reason or expected.model is None or tokens is None or size is None or tp is None:
        yield _open_size(reason or "the server does not say its pool's size", f"{tokens} tokens, {size} GB")
        return
    group = _integer(info.get("kv_cache_quant_group_size")) or expected.group_size
    known, printed = forms(expected.model, tp, group, expected.scale_dtype), Printed(tokens, kv=size)
    fits = fitting(printed, known)
    if fits and all(form.is_int2 for form in fits):
        names = " or ".join(form.name for form in fits)
        yield finding("live-in-effect", f"INT2 is in effect: {printed} ({names})", found=str(printed))
    elif any(form.is_int2 for form in fits):
        yield _open_size(f"{tokens} tokens are too few to tell int2 from {fits[-1].name}", str(printed))
    else:
        yield finding(
            "live-size",
            "the pool's size is not that of int2",
            expected="; ".join(form.at(tokens) for form in known[:2]),
            found=f"{printed}{': ' + fits[0].name if fits else ''}",
            hint="check --config against the checkpoint that the server loads",
        )


def _incomparable(info: dict[str, Any], expected: Expectation, tp: int | None) -> str:
    """Return why a size cannot be computed, as for a log; empty where it can be."""
    if expected.model is None:
        return "no --config was given"
    if tp is None:
        return "neither the server nor --tp says over how many GPUs the heads are spread"
    if (_integer(info.get("pp_size")) or 1) > 1:
        return "the layers are spread over pipeline stages"
    if (_integer(info.get("dp_size")) or 1) > 1 and info.get("enable_dp_attention") is True:
        return "attention is data-parallel: heads per rank are not those of --tp"
    return ""


def _open_size(reason: str, found: str) -> Finding:
    return finding(
        "live-cannot-compare",
        f"the pool's size cannot be judged: {reason}",
        expected="a pool size and a config.json",
        found=found,
        hint="escha-oscar verify --url URL --config config.json --tp N --group-size N",
    )


def _states(info: dict[str, Any]) -> list[dict[str, Any]]:
    states = info.get("internal_states")
    return [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []


def _memory(info: dict[str, Any]) -> dict[str, Any]:
    usages = (state.get("memory_usage") for state in _states(info))
    return next((usage for usage in usages if isinstance(usage, dict)), {})


def _tokens(info: dict[str, Any]) -> int | None:
    return _integer(info.get("max_total_num_tokens")) or _integer(_memory(info).get("token_capacity"))


def _kv_gib(info: dict[str, Any]) -> float | None:
    size = _memory(info).get("kvcache")
    return float(size) if isinstance(size, int | float) and not isinstance(size, bool) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _completion(base: str, timeout: float) -> Iterator[Finding]:
    body = {"text": _PROMPT, "sampling_params": {"max_new_tokens": _TOKENS, "temperature": 0}}
    answer = _ask(f"{base}/generate", timeout, body)
    text = answer.data.get("text") if isinstance(answer.data, dict) else None
    if not isinstance(text, str) or not text:
        yield finding(
            "live-completion",
            f"a short completion failed: {answer.reason or 'no text came back'}",
            expected="a few tokens of text",
            found=answer.reason or "no text",
            hint="read the server's log, then escha-oscar verify --log FILE",
        )
    elif len(text) >= _TOKENS and len(set(text)) == 1:
        yield finding(
            "live-degenerate",
            "the completion repeats one character, as it does when attention yields NaN",
            expected="text",
            found=repr(text[:40]),
            hint="escha-oscar verify --level numerics",
        )
