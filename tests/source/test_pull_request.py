import errno
import os
import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from escha_oscar.errors import ExitCode, SourceError, UsageError
from escha_oscar.progress import NoProgress
from escha_oscar.source import fetch as fetching
from escha_oscar.source.pull_request import PullRequest, mapped_paths
from tests.support.pull_request import FILES, OTHER, PULL, commit, git

ENVIRON = "sglang/srt/environ.py"
DECODE = "sglang/kernels/ops/attention/decode_attention.py"


def configure(repository, **settings):
    for name, value in settings.items():
        git(repository.path, "config", f"uploadpack.{name}", str(value).lower())


def holds(location: Path, blob: str) -> bool:
    done = subprocess.run(["git", f"--git-dir={location}", "cat-file", "-e", blob], capture_output=True, check=False)
    return done.returncode == 0


def everything(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.git")) + sorted(path.name for path in folder.rglob("draft-*"))


# fetching: servers of every kind


@pytest.mark.parametrize("allow_filter", [True, False], ids=["filters", "no filters"])
@pytest.mark.parametrize(
    ("version", "wants", "by_id"),
    [
        pytest.param(2, {}, True, id="protocol 2"),
        pytest.param(0, {"allowAnySHA1InWant": True}, True, id="protocol 0, any id"),
        pytest.param(0, {"allowReachableSHA1InWant": True}, False, id="protocol 0, reachable ids"),
        pytest.param(0, {}, False, id="protocol 0, refs only"),
    ],
)
def test_every_server_gives_the_pinned_files(own, own_server, cache, allow_filter, version, wants, by_id):
    configure(own, allowFilter=allow_filter, **wants)
    own_server.version = version
    source = PullRequest.open(cache, repository=own_server.url("pr.git"), commit=own.pinned)
    assert {blob.path for blob in source.blobs} == set(FILES) - {OTHER}
    assert {path: source.read(path) for path in mapped_paths() if path in FILES} == {
        path: text.encode() for path, text in FILES.items() if path != OTHER
    }
    if allow_filter and by_id:
        assert source.filtered
        assert not holds(source.location, own.blob(OTHER))
    assert source.filtered or holds(source.location, own.blob(OTHER))


def test_the_pinned_commit_and_not_a_later_one_is_read(own, own_server, cache):
    configure(own, allowFilter=True)
    source = PullRequest.open(cache, repository=own_server.url("pr.git"), commit=own.pinned)
    assert source.read(ENVIRON) == FILES[ENVIRON].encode()
    assert source.id.commit == own.pinned
    assert source.fetched
    assert not holds(source.location, own.head)


def test_a_filtered_fetch_is_small(own, own_server, cache):
    git(own.path, "config", "uploadpack.allowFilter", "true")
    big = "x" * 10 + os.urandom(300_000).hex()
    pinned = commit(own.path, {f"python/{ENVIRON}": "a = 1\n", "python/big.bin": big})
    source = PullRequest.open(cache, repository=own_server.url("pr.git"), commit=pinned)
    assert fetching.size_of(source.location) < 20_000


def test_files_of_the_commit_that_are_absent_read_as_none(opened):
    source = opened()
    assert source.read("sglang/srt/layers/attention/triton_ops/decode_attention.py") is None
    assert source.read("sglang/srt") is None
    assert source.read("sglang/no/such/file.py") is None
    assert source.read(DECODE) == FILES[DECODE].encode()


def test_a_bundle_serves(template, cache, tmp_path):
    bundle = tmp_path / "pr.bundle"
    git(template.path, "bundle", "create", str(bundle), f"refs/pull/{PULL}/head")
    source = PullRequest.open(cache, repository=str(bundle), commit=template.pinned)
    assert source.read(ENVIRON) == FILES[ENVIRON].encode()
    assert source.read(OTHER) == FILES[OTHER].encode()
    assert not source.filtered


@pytest.mark.parametrize("spelling", ["path", "file", "clone", "odd name"])
def test_local_clones_serve(template, cache, tmp_path, spelling):
    place = {"odd name": tmp_path / "it's a --clone; $(x)", "clone": tmp_path / "clone"}.get(spelling, template.path)
    if place != template.path:
        subprocess.run(["git", "clone", "-q", "--no-checkout", str(template.path), str(place)], check=True)
        git(place / ".git", "fetch", "-q", "origin", f"refs/pull/{PULL}/head")
    repository = place.as_uri() if spelling == "file" else str(place)
    source = PullRequest.open(cache, repository=repository, commit=template.pinned)
    assert source.read(ENVIRON) == FILES[ENVIRON].encode()
    assert source.id.repository == str(place)
    assert source.filtered


def test_another_prefix(own, cache):
    pinned = commit(own.path, {f"research/py/{ENVIRON}": "b = 2\n"})
    source = PullRequest.open(cache, repository=str(own.path), commit=pinned, prefix="research/py/")
    assert source.read(ENVIRON) == b"b = 2\n"
    with pytest.raises(SourceError, match="none of the mapped files") as caught:
        PullRequest.open(cache, repository=str(own.path), commit=pinned)
    assert "--pr-prefix" in caught.value.hint


# offline


def test_after_the_first_fetch_nothing_is_asked_of_the_server(own, own_server, cache):
    configure(own, allowFilter=True)
    url = own_server.url("pr.git")
    PullRequest.open(cache, repository=url, commit=own.pinned)
    asked = list(own_server.requests)
    for offline in (False, True):
        again = PullRequest.open(cache, repository=url, commit=own.pinned, offline=offline)
        assert not again.fetched
        assert [again.read(path) for path in FILES if path != OTHER] == [
            text.encode() for path, text in FILES.items() if path != OTHER
        ]
    assert own_server.requests == asked


def test_a_file_that_was_not_asked_for_is_fetched_online_and_an_error_offline(own, own_server, cache):
    configure(own, allowFilter=True)
    url = own_server.url("pr.git")
    PullRequest.open(cache, repository=url, commit=own.pinned)
    asked = list(own_server.requests)
    offline = PullRequest.open(cache, repository=url, commit=own.pinned, offline=True)
    with pytest.raises(SourceError) as caught:
        offline.read(OTHER)
    assert (caught.value.exit_code, caught.value.hint) == (ExitCode.SOURCE, "escha-oscar fetch")
    assert own_server.requests == asked
    assert PullRequest.open(cache, repository=url, commit=own.pinned).read(OTHER) == FILES[OTHER].encode()
    assert offline.read(OTHER) == FILES[OTHER].encode()


def test_an_empty_cache_offline(opened):
    with pytest.raises(SourceError) as caught:
        opened(offline=True)
    assert (caught.value.exit_code, caught.value.hint) == (ExitCode.SOURCE, "escha-oscar fetch")


# arguments


@pytest.mark.parametrize(
    "sha", ["4b28b26", "main", "HEAD", "", "--upload-pack=x", "A" * 40, "g" * 40, "0" * 41, "0" * 64, "0" * 40 + "\n"]
)
def test_only_a_full_commit_id_is_accepted(opened, sha):
    with pytest.raises(UsageError):
        opened(commit=sha)


@pytest.mark.parametrize("prefix", ["/etc", "..", "python/../..", "a\\b", "c:"])
def test_a_prefix_stays_in_the_repository(opened, prefix):
    with pytest.raises(UsageError):
        opened(prefix=prefix)


def test_absent_files_are_looked_up_once(opened, monkeypatch):
    source = opened()
    assert source.read("sglang/absent.py") is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert source.read("sglang/absent.py") is None
    assert source.read("sglang/srt/layers/attention/triton_ops/decode_attention.py") is None


@pytest.mark.parametrize("path", ["/etc/passwd", "../README.md", "sglang/../../README.md", "a\0b"])
def test_a_path_stays_below_the_prefix(opened, path):
    with pytest.raises(SourceError):
        opened().read(path)


# a server or a repository that cannot give it


def test_a_commit_that_is_not_there_leaves_nothing_behind(opened, cache):
    with pytest.raises(SourceError) as caught:
        opened(commit="0" * 40)
    assert caught.value.exit_code is ExitCode.SOURCE
    assert "--source bundled" in caught.value.hint
    assert everything(cache) == []


def test_a_pull_ref_that_was_forced_elsewhere(own, own_server, cache):
    git(own.path, "update-ref", f"refs/pull/{PULL}/head", own.base)
    own_server.version = 0
    with pytest.raises(SourceError, match=own.pinned):
        PullRequest.open(cache, repository=own_server.url("pr.git"), commit=own.pinned)
    assert everything(cache) == []


def test_an_id_that_names_no_commit(template, opened):
    with pytest.raises(SourceError):
        opened(commit=template.blob(ENVIRON))


@pytest.mark.parametrize(
    "answer",
    [
        (404, {}, b""),
        (500, {}, b"oops"),
        (403, {}, b""),
        (401, {"WWW-Authenticate": "Basic realm=x"}, b""),
        (200, {"Content-Type": "text/html"}, b"<html>log in first</html>"),
        (200, {"Content-Type": "application/x-git-upload-pack-advertisement"}, b"garbage"),
        (302, {"Location": "file:///etc"}, b""),
        (302, {"Location": "ftp://127.0.0.1/x"}, b""),
    ],
    ids=["404", "500", "403", "401", "login page", "garbage", "redirect to file", "redirect to ftp"],
)
def test_bad_answers_are_one_error(template, server, cache, answer):
    server.answer = answer
    with pytest.raises(SourceError) as caught:
        PullRequest.open(cache, repository=server.url("pr.git"), commit=template.pinned)
    assert "--source bundled" in caught.value.hint
    assert everything(cache) == []


def test_no_server_at_all(template, server, cache):
    url = server.url("pr.git").replace(str(server.port), "1")
    with pytest.raises(SourceError, match="cannot fetch") as caught:
        PullRequest.open(cache, repository=url, commit=template.pinned)
    assert "unable to access" in caught.value.found


def test_a_server_that_never_answers(template, server, cache, monkeypatch):
    server.hang = True
    monkeypatch.setattr(fetching, "STALL_SECONDS", 0.5)
    with pytest.raises(SourceError) as caught:
        PullRequest.open(cache, repository=server.url("pr.git"), commit=template.pinned)
    assert "nothing arrived" in caught.value.found


def test_a_fetch_that_takes_too_long(template, server, cache, monkeypatch):
    server.hang = True
    monkeypatch.setattr(fetching, "FETCH_SECONDS", 0.1)
    with pytest.raises(SourceError) as caught:
        PullRequest.open(cache, repository=server.url("pr.git"), commit=template.pinned)
    assert "no end after" in caught.value.found


def test_a_fetch_that_grows_too_large(opened, cache, monkeypatch):
    monkeypatch.setattr(fetching, "MAX_BYTES", 1000)
    with pytest.raises(SourceError) as caught:
        opened()
    assert "1000 bytes" in caught.value.found
    assert everything(cache) == []


def test_git_is_missing(opened, monkeypatch, tmp_path):
    opened()
    monkeypatch.setenv("PATH", str(tmp_path))
    for offline in (False, True):
        with pytest.raises(SourceError, match="git is missing") as caught:
            opened(offline=offline)
        assert "--source bundled" in caught.value.hint


def test_a_pinned_commit_deep_below_the_pull_ref(own, own_server, cache, monkeypatch):
    monkeypatch.setattr(fetching, "PULL_DEPTH", 1)
    own_server.version = 0
    with pytest.raises(SourceError) as caught:
        PullRequest.open(cache, repository=own_server.url("pr.git"), commit=own.pinned)
    assert f"what arrived lacks {own.pinned}" in caught.value.found


def test_a_bundle_without_the_commit(template, cache, tmp_path):
    bundle = tmp_path / "main.bundle"
    git(template.path, "bundle", "create", str(bundle), "refs/heads/main")
    with pytest.raises(SourceError) as caught:
        PullRequest.open(cache, repository=str(bundle), commit=template.pinned)
    assert f"what arrived lacks {template.pinned}" in caught.value.found
    bundle.write_bytes(bundle.read_bytes()[:-30])
    with pytest.raises(SourceError):
        PullRequest.open(cache, repository=str(bundle), commit=template.base, prefix="")


def test_a_server_that_loses_a_file_after_the_first_fetch(own, own_server, cache):
    configure(own, allowFilter=True)
    source = PullRequest.open(cache, repository=own_server.url("pr.git"), commit=own.pinned)
    own_server.answer = (404, {}, b"")
    with pytest.raises(SourceError, match="cannot fetch a file") as caught:
        source.read(OTHER)
    assert "not found" in caught.value.found


def test_a_clone_of_another_user_asks_for_a_bundle(opened, monkeypatch):
    words = "fatal: detected dubious ownership in repository at 'x'; fatal: Could not read from remote repository."
    monkeypatch.setattr(fetching, "_try", lambda *_: words)
    with pytest.raises(SourceError) as caught:
        opened()
    assert "git bundle create" in caught.value.hint


@pytest.mark.parametrize(
    "script",
    ["exit 1", "echo error: unknown option filter >&2; exit 129", "kill -9 $$", "echo junk; exit 0"],
    ids=["fails in silence", "too old", "is killed", "babbles"],
)
def test_a_git_that_does_not_work(opened, cache, tmp_path, monkeypatch, script):
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncase "$*" in *version*) echo git version 2.0.0; exit 0;; esac\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(SourceError):
        opened()
    assert everything(cache) == []


# the cache


def test_the_cache_is_private(opened, cache):
    cache.mkdir(mode=0o755)
    source = opened()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, source.location.parent)] == [0o700, 0o700]


def test_a_cache_that_cannot_be_made(template, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="source cache"):
        PullRequest.open(tmp_path / "file", repository=str(template.path), commit=template.pinned)


@pytest.mark.parametrize("name", ["mkdtemp", "rename"])
def test_a_disk_that_fails_is_one_error(opened, cache, monkeypatch, name):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/the/place")

    monkeypatch.setattr(*((fetching.tempfile, name) if name == "mkdtemp" else (Path, name)), full)
    with pytest.raises(SourceError, match="No space left") as caught:
        opened()
    assert caught.value.path == "/the/place"
    assert everything(cache) == []


def test_a_cache_of_another_user(opened, cache, monkeypatch):
    cache.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SourceError, match="another user"):
        opened()


def test_four_at_once_end_with_one_store(opened, cache):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: opened().read(ENVIRON), range(4)))
    assert found == [FILES[ENVIRON].encode()] * 4
    assert len(everything(cache)) == 1


def test_drafts_of_a_killed_run_are_removed(opened, cache):
    folder = opened().location.parent
    shutil.rmtree(opened().location)
    (folder / "draft-dead/git").mkdir(parents=True)
    opened()
    assert [name for name in everything(cache) if name.startswith("draft")] == []


def test_an_interrupted_fetch_leaves_nothing(opened, cache):
    class Interrupt(NoProgress):
        def step(self, text):
            if text.endswith("files"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(progress=Interrupt())
    assert everything(cache) == []
    assert opened().fetched


def test_steps_are_reported(template, opened):
    class Steps(NoProgress):
        def __init__(self):
            self.seen = []

        def step(self, text):
            self.seen.append(text)

    steps = Steps()
    opened(progress=steps)
    count = len(FILES) - 1
    assert steps.seen == [f"fetching {template.pinned[:12]} from {template.path}", f"fetching {count} files"]
