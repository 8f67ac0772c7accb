"""What a source must survive: an environment set against git, a forged repository, a damaged cache."""

import shutil
import stat
import zlib
from pathlib import Path

import pytest

from escha_oscar.errors import SourceError
from escha_oscar.source import _store
from escha_oscar.source._objects import object_id
from escha_oscar.source.pull_request import PullRequest
from tests.support.pull_request import FILES, OTHER, commit_tree, git, write_blob, write_tree

ENVIRON = "sglang/srt/environ.py"
CONTENT = FILES[ENVIRON].encode()


@pytest.fixture
def canary(tmp_path):
    """A program that leaves a mark when anything runs it."""
    program = tmp_path / "canary.sh"
    program.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran"\nexec cat\n')
    program.chmod(0o755)
    return program


def marked(tmp_path: Path) -> bool:
    return (tmp_path / "ran").exists()


# the environment


def test_hostile_configuration_and_hooks(own, own_server, cache, canary, tmp_path, monkeypatch):
    hooks = tmp_path / "template/hooks"
    hooks.mkdir(parents=True)
    for hook in ("post-checkout", "reference-transaction", "post-merge", "pre-auto-gc", "fsmonitor-watchman"):
        shutil.copy(canary, hooks / hook)
    config = f"""
[core]
    hooksPath = {hooks}
    fsmonitor = {canary}
    askPass = {canary}
    sshCommand = {canary}
    pager = {canary}
[init]
    templateDir = {tmp_path}/template
    defaultObjectFormat = sha256
[credential]
    helper = {canary}
[url "file:///nowhere/"]
    insteadOf = http://127.0.0.1
[http]
    proxy = http://127.0.0.1:1
[protocol]
    allow = never
[uploadpack]
    packObjectsHook = {canary}
[diff]
    external = {canary}
[fetch]
    fsckObjects = nonsense
"""
    for place in ("home/.gitconfig", "xdg/git/config"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(config)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "home/.gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(tmp_path / "home/.gitconfig"))
    for repository in (own_server.url("pr.git"), str(own.path)):
        source = PullRequest.open(cache, repository=repository, commit=own.pinned)
        assert source.read(ENVIRON) == CONTENT
    assert not marked(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GIT_DIR", "/nowhere"),
        ("GIT_WORK_TREE", "/nowhere"),
        ("GIT_COMMON_DIR", "/nowhere"),
        ("GIT_INDEX_FILE", "/nowhere/index"),
        ("GIT_OBJECT_DIRECTORY", "/nowhere/objects"),
        ("GIT_ALTERNATE_OBJECT_DIRECTORIES", "/nowhere/objects"),
        ("GIT_NAMESPACE", "elsewhere"),
        ("GIT_EXEC_PATH", "/nowhere"),
        ("GIT_TEMPLATE_DIR", "{tmp}"),
        ("GIT_SHALLOW_FILE", "/nowhere/shallow"),
        ("GIT_CONFIG_PARAMETERS", "'core.bare'='nonsense'"),
        ("GIT_CONFIG_COUNT", "nonsense"),
        ("GIT_CONFIG_GLOBAL", "/proc/self/mem"),
        ("GIT_ASKPASS", "{canary}"),
        ("SSH_ASKPASS", "{canary}"),
        ("GIT_SSH_COMMAND", "{canary}"),
        ("GIT_PROXY_COMMAND", "{canary}"),
        ("GIT_EXTERNAL_DIFF", "{canary}"),
        ("GIT_REPLACE_REF_BASE", "refs/heads/"),
        ("GIT_GRAFT_FILE", "/nowhere/grafts"),
        ("GIT_TRACE", "{tmp}/trace"),
        ("GIT_TRACE2_EVENT", "{tmp}/trace"),
        ("GIT_DEFAULT_HASH", "sha256"),
        ("GIT_ALLOW_PROTOCOL", "none"),
        ("GIT_PROTOCOL_FROM_USER", "0"),
        ("GIT_CEILING_DIRECTORIES", "/"),
    ],
)
def test_git_variables_change_nothing(opened, tmp_path, canary, monkeypatch, name, value):
    monkeypatch.setenv(name, value.format(tmp=tmp_path, canary=canary))
    assert opened().read(ENVIRON) == CONTENT
    assert not marked(tmp_path)
    assert not (tmp_path / "trace").exists()


def test_a_working_directory_with_a_broken_repository(opened, tmp_path, monkeypatch):
    (tmp_path / "broken/.git").mkdir(parents=True)
    (tmp_path / "broken/.git/config").write_text("[[[")
    monkeypatch.chdir(tmp_path / "broken")
    assert opened().read(ENVIRON) == CONTENT


def test_a_hostile_clone_runs_nothing(own, cache, canary, tmp_path):
    git(own.path, "config", "uploadpack.packObjectsHook", str(canary))
    git(own.path, "config", "core.fsmonitor", str(canary))
    git(own.path, "config", "core.alternateRefsCommand", str(canary))
    (own.path / "hooks").mkdir()
    for hook in ("reference-transaction", "post-update"):
        shutil.copy(canary, own.path / "hooks" / hook)
    assert PullRequest.open(cache, repository=str(own.path), commit=own.pinned).read(ENVIRON) == CONTENT
    assert not marked(tmp_path)


# a forged tree


def forged(own, path, entry):
    """Return a commit that holds ``entry`` (mode, kind, id) at ``path`` and one honest file."""
    honest = ("100644", "blob", write_blob(own.path, b"a = 1\n"))
    tree = write_tree(own.path, {f"python/{path}": entry, "python/sglang/srt/server_args.py": honest})
    return commit_tree(own.path, tree)


@pytest.mark.parametrize(
    ("path", "mode", "kind"),
    [
        (ENVIRON, "120000", "symbolic link"),
        (ENVIRON, "160000", "gitlink"),
        ("sglang/srt/mem_cache", "120000", "symbolic link"),
        ("sglang/srt/mem_cache", "160000", "gitlink"),
        ("sglang/srt/mem_cache", "100644", "regular file"),
    ],
)
def test_links_and_gitlinks_are_refused(own, cache, path, mode, kind):
    link = ("blob", write_blob(own.path, b"../../../../etc/passwd"))
    pinned = forged(own, path, (mode, *(("commit", own.base) if mode == "160000" else link)))
    with pytest.raises(SourceError, match="refusing an entry") as caught:
        PullRequest.open(cache, repository=str(own.path), commit=pinned)
    assert kind in caught.value.found
    assert caught.value.path.startswith("python/sglang/srt/")


def test_an_executable_file_is_a_file(own, cache):
    pinned = forged(own, ENVIRON, ("100755", "blob", write_blob(own.path, b"x = 1\n")))
    assert PullRequest.open(cache, repository=str(own.path), commit=pinned).read(ENVIRON) == b"x = 1\n"


def test_a_directory_in_place_of_a_file_is_no_file(own, cache):
    pinned = forged(own, f"{ENVIRON}/inner.py", ("100644", "blob", write_blob(own.path, b"")))
    assert PullRequest.open(cache, repository=str(own.path), commit=pinned).read(ENVIRON) is None


def test_a_file_beyond_the_limit_is_refused(opened, monkeypatch):
    monkeypatch.setattr(_store, "MAX_OBJECT", 40)
    with pytest.raises(SourceError, match="too large"):
        opened()


def test_files_beside_the_mapping_are_never_looked_at(own, cache):
    blob = ("100644", "blob", write_blob(own.path, b"evil"))
    evil = {f"python/{name}": blob for name in ("x.pth", "sitecustomize.py", "sglang/x.so", "setup.py")}
    honest = {f"python/{ENVIRON}": ("100644", "blob", write_blob(own.path, CONTENT))}
    pinned = commit_tree(own.path, write_tree(own.path, {**evil, **honest}))
    source = PullRequest.open(cache, repository=str(own.path), commit=pinned)
    assert [blob.path for blob in source.blobs] == [ENVIRON]


# replaced, forged and damaged objects


def test_replace_refs_of_the_server_change_nothing(own, cache):
    git(own.path, "replace", own.blob(ENVIRON), write_blob(own.path, b"evil = 1\n"))
    git(own.path, "replace", own.pinned, own.head)
    assert PullRequest.open(cache, repository=str(own.path), commit=own.pinned).read(ENVIRON) == CONTENT


def test_replace_refs_in_the_cache_change_nothing(template, opened):
    location = opened().location
    git(location, "replace", template.blob(ENVIRON), write_blob(location, b"evil = 1\n"))
    assert opened(offline=True).read(ENVIRON) == CONTENT


def put_loose(location: Path, oid: str, content: bytes) -> None:
    """Write ``content`` as the loose object ``oid``, whatever its true id is."""
    shutil.rmtree(location / "objects")
    (location / "objects" / oid[:2]).mkdir(parents=True)
    (location / "objects" / oid[:2] / oid[2:]).write_bytes(zlib.compress(content))


def test_a_commit_object_that_is_not_the_pinned_one(template, opened):
    location = opened().location
    other = b"tree " + b"0" * 40 + b"\n\nevil\n"
    put_loose(location, template.pinned, b"commit %d\0" % len(other) + other)
    with pytest.raises(SourceError) as caught:
        opened(offline=True)
    assert caught.value.hint == "escha-oscar fetch"


def test_a_blob_that_is_not_what_its_id_says(template, opened):
    location = opened().location
    blob = template.blob(ENVIRON)
    place = location / "objects" / blob[:2] / blob[2:]
    assert place.is_file()
    place.chmod(0o644)
    place.write_bytes(zlib.compress(b"blob 9\0evil = 1\n"))
    with pytest.raises(SourceError):
        opened(offline=True)
    assert opened().read(ENVIRON) == CONTENT


def objects_of(location: Path) -> list[Path]:
    return sorted(path for path in (location / "objects").rglob("*") if path.is_file() and path.stat().st_size)


def outcome(opened) -> str:
    """Return how an offline open ended; content that is not the pinned one fails the test."""
    try:
        source = opened(offline=True)
    except SourceError as error:
        assert error.hint == "escha-oscar fetch"
        return "refused"
    assert {path: source.read(path) for path in FILES if path != OTHER} == {
        path: text.encode() for path, text in FILES.items() if path != OTHER
    }
    return "right"


@pytest.mark.parametrize("damage", ["cut in half", "emptied", "removed"])
def test_every_truncated_object_is_refused_or_does_not_matter(opened, damage):
    location = opened().location
    results = []
    for path in objects_of(location):
        saved, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
        path.unlink()
        if damage != "removed":
            path.write_bytes(saved[: len(saved) // 2] if damage == "cut in half" else b"")
        results.append(outcome(opened))
        path.unlink(missing_ok=True)
        path.write_bytes(saved)
        path.chmod(mode)
    assert results.count("refused") > len(results) // 2
    assert outcome(opened) == "right"


def test_flipped_bits_never_change_what_is_read(opened):
    location = opened().location
    refused = 0
    for path in objects_of(location):
        saved = path.read_bytes()
        path.chmod(0o644)
        for at in {len(saved) // 3, len(saved) - 3}:
            path.write_bytes(saved[:at] + bytes([saved[at] ^ 0x10]) + saved[at + 1 :])
            refused += outcome(opened) == "refused"
        path.write_bytes(saved)
    assert refused
    assert outcome(opened) == "right"


def test_a_damaged_cache_is_fetched_anew_when_there_is_a_network(opened):
    for path in objects_of(opened().location):
        path.chmod(0o644)
        path.write_bytes(b"junk")
    again = opened()
    assert again.fetched
    assert again.read(ENVIRON) == CONTENT
    assert outcome(opened) == "right"


def test_a_hostile_configuration_of_the_cache_itself(opened, tmp_path, canary):
    config = opened().location / "config"
    config.write_text(config.read_text() + f"[core]\n\tfsmonitor = {canary}\n\tpager = {canary}\n")
    assert outcome(opened) == "right"
    config.write_text("[[[")
    assert outcome(opened) == "refused"
    assert not marked(tmp_path)


def test_a_store_that_points_at_other_objects(opened, tmp_path):
    location = opened().location
    (tmp_path / "elsewhere").mkdir()
    (location / "objects").rename(tmp_path / "elsewhere/objects")
    (location / "objects/info").mkdir(parents=True)
    (location / "objects/info/alternates").write_text(f"{tmp_path}/elsewhere/objects\n")
    assert outcome(opened) == "right"


def test_object_ids_are_gits_own(template):
    assert object_id("blob", CONTENT) == template.blob(ENVIRON)
