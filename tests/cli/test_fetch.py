import json
import os
import subprocess
import sys

import click
import pytest

from escha_oscar.cli import main
from escha_oscar.cli._options import SourceOptions, open_source, source_options
from escha_oscar.errors import SourceError
from escha_oscar.mapping import PIN
from tests.support.pull_request import FILES, OTHER, make_pull_repository

ENVIRON = "sglang/srt/environ.py"


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    return make_pull_repository(tmp_path_factory.mktemp("origin") / "pr.git")


@pytest.fixture
def pull(origin, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return origin


def arguments(pull):
    return ["--pr-repo", str(pull.path), "--pr-commit", pull.pinned]


def test_fetch_says_what_it_brought(pull, tmp_path, capsys):
    assert main(["fetch", *arguments(pull)]) == 0
    out, err = capsys.readouterr()
    assert str(tmp_path / "xdg/escha-oscar") in out
    assert pull.pinned in out
    assert "the mapped files only" in out
    assert all(path in out for path in FILES if path != OTHER)
    assert err.startswith(f"fetching {pull.pinned[:12]} from ")


def test_json_is_one_object_and_a_second_run_fetches_nothing(pull, capsys):
    found = []
    for _ in range(2):
        assert main(["fetch", *arguments(pull), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [record["fetched"] for record in found] == [True, False]
    record = found[1]
    assert (record["repository"], record["commit"], record["prefix"]) == (str(pull.path), pull.pinned, "python")
    assert record["filtered"]
    assert {blob["path"]: blob["id"] for blob in record["files"]}[ENVIRON] == pull.blob(ENVIRON)
    assert record["cache_bytes"] > 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--pr-commit", "0" * 40], 5),
        (["--pr-commit", "main"], 2),
        (["--pr-prefix", "../.."], 2),
        (["--pr-prefix", "elsewhere"], 5),
        (["--pr-repo", "/no/such/place"], 2),
        (["--pr-repo", "ssh://example.com/x"], 2),
    ],
)
def test_failures_have_their_exit_code_and_json(pull, capsys, options, code):
    assert main(["fetch", *arguments(pull), *options, "--json"]) == code
    record = json.loads(capsys.readouterr().out)
    assert (record["ok"], record["exit_code"]) == (False, code)


def test_no_network_points_to_the_bundled_source(pull, capsys):
    assert main(["fetch", "--pr-repo", "http://127.0.0.1:1/x.git"]) == 5
    assert "next: escha-oscar integrate --source bundled" in capsys.readouterr().err


def test_no_git_is_one_message(pull, tmp_path):
    (tmp_path / "bin").mkdir()
    env = {**os.environ, "PATH": str(tmp_path / "bin")}
    command = [sys.executable, "-m", "escha_oscar", "fetch", *arguments(pull)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith("error[source]: git is missing")
    assert "Traceback" not in done.stderr


def parsed(*argv):
    seen = []

    @click.command()
    @source_options
    @click.option("--other")
    def command(source, other):
        seen.append((source, other))

    command.main([*argv], standalone_mode=False)
    return seen[0]


def test_the_source_options_come_as_one_record():
    assert parsed("--other", "x") == (SourceOptions(PIN.repository, PIN.commit, "python"), "x")
    chosen, _ = parsed("--source", "pr", "--offline", "--pr-repo", "r", "--pr-commit", "c", "--pr-prefix", "p")
    assert chosen == SourceOptions("r", "c", "p", kind="pr", offline=True)
    assert parsed("--source", "bundled", "--offline")[0].kind == "bundled"


def test_either_source_opens(pull):
    options = SourceOptions(str(pull.path), pull.pinned, "python")
    with pytest.raises(SourceError):
        open_source(SourceOptions(str(pull.path), pull.pinned, "python", offline=True))
    assert open_source(options).read(ENVIRON) == FILES[ENVIRON].encode()
    assert open_source(options).id.kind == "pr"
    assert open_source(SourceOptions("", "", "", kind="bundled")).id.kind == "bundled"
