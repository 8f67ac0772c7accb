"""The live level against a real HTTP server on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.errors import UsageError
from escha_oscar.serving.budget import GIB, CacheFormat, KVDtype, token_bytes
from escha_oscar.serving.model_config import ModelConfig, read_model_config
from escha_oscar.verify import live
from escha_oscar.verify.codes import CODES, Level
from escha_oscar.verify.live import check_live
from escha_oscar.verify.sizes import Expectation
from tests.support.checkpoints import MOE, write_config

TOKENS = 350257


class Scripted(BaseHTTPRequestHandler):
    """Answers from the server's ``routes``: path -> (status, body), or a callable on the handler."""

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.requests.append((self.path, self.rfile.read(length)))  # type: ignore[attr-defined]
        reply = self.server.routes.get(self.path, (404, b"{}"))  # type: ignore[attr-defined]
        if callable(reply):
            reply(self)
            return
        status, body = reply
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving(routes: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.daemon_threads = True
    server.routes, server.requests = routes, []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.requests  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def moe(tmp_path: Path) -> ModelConfig:
    return read_model_config(write_config(tmp_path, MOE))


def usage(gib: float) -> dict[str, Any]:
    return {"memory_usage": {"kvcache": gib, "weight": 5.1, "token_capacity": TOKENS}}


def info(model: ModelConfig, dtype: KVDtype = KVDtype.INT2, **changes: Any) -> dict[str, Any]:
    per_token = token_bytes(model, 2, CacheFormat(dtype, 32)).total
    record: dict[str, Any] = {
        "kv_cache_dtype": "int2", "kv_cache_quant_group_size": 32, "tp_size": 2, "context_length": 262144,
        "max_total_num_tokens": TOKENS,
        "internal_states": [usage(round(TOKENS * per_token / GIB, 2))],
    }  # fmt: skip
    return {**record, **changes}


def routes(record: Any, text: Any = " Paris.") -> dict[str, Any]:
    return {
        "/server_info": (200, json.dumps(record).encode()),
        "/generate": (200, json.dumps({"text": text}).encode()),
    }


def codes(url: str, expected: Expectation, **options: float) -> list[str]:
    return [f.code for f in check_live(url, expected, **options).findings]


def test_a_server_with_int2_is_in_effect(moe: ModelConfig) -> None:
    with serving(routes(info(moe))) as (url, requests):
        report = check_live(url + "/", Expectation(moe, 2, 32))
    assert [f.code for f in report.findings] == ["live-in-effect"] and report.ok
    assert [path for path, _ in requests] == ["/server_info", "/generate"]
    body = json.loads(requests[1][1])
    assert body["sampling_params"]["max_new_tokens"] <= 16


def test_the_older_endpoint_serves_too(moe: ModelConfig) -> None:
    table = routes(info(moe))
    table["/get_server_info"] = table.pop("/server_info")
    with serving(table) as (url, _):
        assert codes(url, Expectation(moe, 2, 32)) == ["live-in-effect"]


def test_codes_only_sizes_of_a_hand_merge_are_accepted(moe: ModelConfig) -> None:
    codes_only = round(TOKENS * token_bytes(moe, 2, CacheFormat(KVDtype.INT2, 32)).codes / GIB, 2)
    record = info(moe, internal_states=[usage(codes_only)])
    with serving(routes(record)) as (url, _):
        report = check_live(url, Expectation(moe, 2, 32))
    assert "hand merge" in report.findings[0].message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tp_size": None}, "neither the server nor --tp says"),
        ({"pp_size": 2}, "pipeline stages"),
        ({"dp_size": 2, "enable_dp_attention": True}, "data-parallel"),
        ({"internal_states": []}, "does not say its pool's size"),
    ],
    ids=["tp", "pp", "dp", "size"],
)
def test_a_size_that_cannot_be_computed_is_left_open(moe: ModelConfig, changes: dict[str, Any], reason: str) -> None:
    with serving(routes(info(moe, **changes))) as (url, _):
        (finding,) = check_live(url, Expectation(moe, None, 32)).findings
    assert finding.code == "live-cannot-compare" and reason in finding.message
    assert finding.hint is not None and "--tp N" in finding.hint


def test_tp_is_taken_from_the_user_where_the_server_does_not_say(moe: ModelConfig) -> None:
    with serving(routes(info(moe, tp_size=None, dp_size=2))) as (url, _):
        assert codes(url, Expectation(moe, 2, 32)) == ["live-in-effect"]


def _slow(handler: Scripted) -> None:
    time.sleep(1.5)
    handler.send_response(200)
    handler.end_headers()


def _redirect(handler: Scripted) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:9/")
    handler.end_headers()


def _endless(handler: Scripted) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b"[" * 65536)
    except OSError:
        return


def _trickle(handler: Scripted) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(20):
            handler.wfile.write(b" ")
            time.sleep(0.1)
    except OSError:
        return


def broken(moe: ModelConfig) -> dict[str, tuple[dict[str, Any], str]]:
    good = routes(info(moe))
    return {
        "another dtype": (routes(info(moe, kv_cache_dtype="auto")), "live-int2-off"),
        "another group": (routes(info(moe, KVDtype.INT2, kv_cache_quant_group_size=None)), "live-group-size"),
        "the size of fp16": (routes(info(moe, KVDtype.FP16)), "live-size"),
        "no size": (routes(info(moe, internal_states=[])), "live-cannot-compare"),
        "too few tokens": (
            routes(info(moe, max_total_num_tokens=8, context_length=8, internal_states=[usage(0.0)])),
            "live-cannot-compare",
        ),
        "a small pool": (routes(info(moe, context_length=900000)), "live-pool-below-context"),
        "a failing completion": ({**good, "/generate": (500, b"{}")}, "live-completion"),
        "an empty completion": (routes(info(moe), ""), "live-completion"),
        "a slow completion": ({**good, "/generate": _slow}, "live-completion"),
        "a stuck completion": (routes(info(moe), "!" * 16), "live-degenerate"),
        "no JSON": ({"/server_info": (200, b"<html>")}, "live-unreachable"),
        "a list": ({"/server_info": (200, b"[]")}, "live-unreachable"),
        "an error": ({"/server_info": (401, b"{}")}, "live-unreachable"),
        "a redirect": ({"/server_info": _redirect}, "live-unreachable"),
        "a slow answer": ({"/server_info": _slow}, "live-unreachable"),
        "an endless answer": ({"/server_info": _endless}, "live-unreachable"),
        "a trickling answer": ({"/server_info": _trickle}, "live-unreachable"),
        "deep nesting": ({"/server_info": (200, b"[" * 100000)}, "live-unreachable"),
    }  # fmt: skip


NAMES = (
    "another dtype", "another group", "the size of fp16", "no size", "too few tokens", "a small pool",
    "a failing completion", "a trickling answer", "an empty completion", "a slow completion", "a stuck completion",
    "no JSON", "a list", "an error", "a redirect",
    "a slow answer", "an endless answer", "deep nesting",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_fault_has_its_finding(moe: ModelConfig, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(live, "MAX_BODY", 1 << 20)
    table, code = broken(moe)[name]
    with serving(table) as (url, _):
        report = check_live(url, Expectation(moe, 2, 32), timeout=0.5, completion_timeout=0.5)
    found = [f for f in report.findings if f.code != "live-in-effect"]
    if name == "another group":
        assert {f.code for f in found} == {code}
    else:
        assert [f.code for f in found] == [code]
    assert all(f.message and f.hint for f in found)


def test_nobody_listens(moe: ModelConfig) -> None:
    with serving({}) as (url, _):
        pass
    assert codes(url, Expectation(moe, 2, 32)) == ["live-unreachable"]


@pytest.mark.parametrize(
    "url", ["ftp://h/", "127.0.0.1:30000", "http://", "http://u:p@h", "http://h/?a=1", "http://h:x"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        check_live(url, Expectation())


def test_every_live_code_is_met_here(moe: ModelConfig) -> None:
    met = {code for _, code in broken(moe).values()} | {"live-in-effect"}
    assert set(broken(moe)) == set(NAMES)
    assert met == {name for name, code in CODES.items() if code.level is Level.LIVE}
